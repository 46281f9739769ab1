"""Lists and ranges of budgets as people write them: ``5GB:10GB:1GB``, ``6GiB,50%``."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from monet.base.amounts import ByteBudget, ByteCount, PeakShare, parse_budget
from monet.errors import ConfigError

MOST = 1000
"""More budgets than this are a slip of the pen (a step in bytes instead of gigabytes)."""

_FORM = "write FIRST:LAST:STEP, such as 5GB:10GB:1GB or 30%:100%:10%, or single budgets, with commas between them"


def parse_budgets(text: str) -> tuple[ByteBudget, ...]:
    """The budgets that ``text`` names, in its order, each once. A range has both of its ends.

    Raises :class:`ConfigError`: an empty list, a malformed or empty range, or over ``MOST`` budgets.
    """
    budgets: dict[ByteBudget, None] = {}
    for part in text.split(","):
        for budget in _read(part.strip(), text):
            budgets[budget] = None
            if len(budgets) > MOST:
                raise ConfigError(f"{text!r} names more than {MOST} budgets; take a larger step")
    return tuple(budgets)


def _read(part: str, text: str) -> Iterator[ByteBudget]:
    if not part:
        raise ConfigError(f"{text!r} has an empty place in its list of budgets; {_FORM}")
    ends = part.split(":")
    if len(ends) == 1:
        yield parse_budget(part)
        return
    if len(ends) != 3:
        raise ConfigError(f"{part!r} is not a range of budgets; {_FORM}")
    first, last, step = (parse_budget(end) for end in ends)
    if isinstance(first, ByteCount) and isinstance(last, ByteCount) and isinstance(step, ByteCount):
        _not_empty(part, first.bytes <= last.bytes)
        count = (last.bytes - first.bytes) // step.bytes + 1
        for k in range(min(count, MOST + 1)):
            yield ByteCount(first.bytes + k * step.bytes)
    elif isinstance(first, PeakShare) and isinstance(last, PeakShare) and isinstance(step, PeakShare):
        _not_empty(part, first.share <= last.share)
        count = int((last.share - first.share) / step.share) + 1
        for k in range(min(count, MOST + 1)):
            yield PeakShare(Fraction(first.share + k * step.share))
    else:
        raise ConfigError(f"the range {part!r} mixes bytes and shares of eager's peak; write all three the same way")


def _not_empty(part: str, rising: bool) -> None:
    if not rising:
        raise ConfigError(f"the range {part!r} is empty: its first budget is larger than its last")

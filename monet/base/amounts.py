"""Amounts of memory as people write them, read once at the edge: everywhere else bytes are ``int``.

``6GB`` is 6 * 10**9 bytes and ``6GiB`` is 6 * 2**30. A budget may also be ``50%``: a share of the
peak of the same step run eagerly, which is known only once the step has been captured. What is then shown, or
refused, is written in the unit of the budget.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from typing import TypeAlias

from monet.errors import ConfigError, InfeasibleBudget

_UNITS = {
    "B": 1,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
_SPELLINGS = {**{unit.lower(): unit for unit in _UNITS}, "": "B", "byte": "B", "bytes": "B"}
_MOST_BYTES = 2**60
_DECIMAL_UNITS, _BINARY_UNITS = ("TB", "GB", "MB", "kB"), ("TiB", "GiB", "MiB", "KiB")
DEFAULT_UNIT = _DECIMAL_UNITS[0]
"""Amounts are shown in the largest decimal unit that they fill, where nobody wrote one."""
_AMOUNT = re.compile(
    r"\s*(?P<number>\d{1,30}(\.\d{1,30})?(e[+-]?\d{1,2})?)\s*(?P<unit>[A-Za-z]*|%)\s*", re.ASCII | re.IGNORECASE
)
_GROUPED = re.compile(r"\s*(?P<number>\d{1,3}(,\d{3}){1,9})\s*(B|bytes?)?\s*", re.ASCII | re.IGNORECASE)
"""Bytes as a refusal names them: ``3,000,000 bytes``."""
_ACCEPTED_COUNT = (
    f"a number of bytes such as 6000000000, 500MB, 6GB (10^9) or 5.5GiB (2^30); units: {', '.join(_UNITS)}"
)
_ACCEPTED_BUDGET = f"{_ACCEPTED_COUNT}; or a share of eager's peak such as 50%"


@dataclass(frozen=True, slots=True)
class ByteCount:
    """A budget of so many bytes. ``unit``: that it was written in, or the largest to show it in."""

    bytes: int
    unit: str = field(default=DEFAULT_UNIT, compare=False)

    def resolve(self, baseline_peak_bytes: int) -> int:
        """The budget in bytes, whatever eager's peak is."""
        return self.bytes

    def __str__(self) -> str:
        return format_bytes(self.bytes, self.unit)


@dataclass(frozen=True, slots=True)
class PeakShare:
    """A budget of ``share`` times eager's peak; ``share`` is exact, 50% is 1/2."""

    share: Fraction

    def resolve(self, baseline_peak_bytes: int) -> int:
        """The budget in bytes, rounded down, where eager's peak is ``baseline_peak_bytes``."""
        return int(self.share * baseline_peak_bytes)

    @property
    def unit(self) -> str:
        """The largest unit to show it in: any decimal one."""
        return DEFAULT_UNIT

    def __str__(self) -> str:
        return f"{float(self.share * 100):g}% of eager's peak"


ByteBudget: TypeAlias = ByteCount | PeakShare


def parse_budget(value: ByteBudget | int | float | str) -> ByteBudget:
    """A budget from ``"6GB"``, ``"5.5GiB"``, ``"50%"``, a number of bytes, or a budget itself.

    Fractions of a byte are dropped. Raises :class:`ConfigError` for anything else, for amounts
    under one byte included.
    """
    if isinstance(value, ByteCount | PeakShare):
        return value
    amount, unit = _read(value, _ACCEPTED_BUDGET)
    if unit == "%":
        if amount == 0:
            raise ConfigError(f"a budget of {value!r} holds nothing; write {_ACCEPTED_BUDGET}")
        return PeakShare(amount / 100)
    count = int(amount * _UNITS[unit])
    if count == 0:
        raise ConfigError(f"a budget of {value!r} is less than one byte; write {_ACCEPTED_BUDGET}")
    if count > _MOST_BYTES:
        raise ConfigError(f"a budget of {value!r} is more than any machine has; write {_ACCEPTED_BUDGET}")
    return ByteCount(count, unit)


def parse_memory(value: ByteCount | int | float | str) -> ByteCount:
    """An amount of memory, as ``parse_budget`` reads budgets, but no share of eager's peak. Raises ``ConfigError``."""
    if isinstance(value, ByteCount):
        return value
    amount, unit = _read(value, _ACCEPTED_COUNT)
    if unit == "%":
        raise ConfigError(f"{value!r} is a share of eager's peak, which fits or not by itself; give bytes, as 16GB")
    count = int(amount * _UNITS[unit])
    if count == 0:
        raise ConfigError(f"a memory of {value!r} is less than one byte; write {_ACCEPTED_COUNT}")
    return ByteCount(count, unit)


def parse_byte_count(value: int | float | str) -> int:
    """A number of bytes, zero included, from ``"500MB"`` or ``0``; raises :class:`ConfigError`."""
    amount, unit = _read(value, _ACCEPTED_COUNT)
    if unit == "%":
        raise ConfigError(f"{value!r} is a share, not an amount of memory; write {_ACCEPTED_COUNT}")
    return int(amount * _UNITS[unit])


def format_bytes(count: int, unit: str = DEFAULT_UNIT) -> str:
    """``count`` for people, in ``unit``, or the largest smaller one of its kind that it fills.

    ``5.998 GB``, ``294.000 MB`` or ``512 B`` where the unit is ``GB``; in ``B`` it is ``5,998,000,000 bytes``.
    """
    if unit == "B":
        return f"{count:,} bytes"
    kind = _BINARY_UNITS if unit in _BINARY_UNITS else _DECIMAL_UNITS
    for name in kind[kind.index(unit) :]:
        scaled = count / _UNITS[name]
        if round(abs(scaled), 3) >= 1:
            return f"{scaled:.3f} {name}"
    return f"{count} B"


def format_exactly(count: int, unit: str) -> str:
    """As ``format_bytes``, and to the byte, so that it works as a budget: ``5.998 GB (5,998,123,456 bytes)``."""
    exact, rounded = format_bytes(count, "B"), format_bytes(count, unit)
    return exact if rounded in (exact, f"{count} B") else f"{rounded} ({exact})"


@contextmanager
def refusals_in(unit: str) -> Iterator[None]:
    """Budgets that are refused inside are told in ``unit``, and to the byte."""
    try:
        yield
    except InfeasibleBudget as error:
        error.show = partial(format_exactly, unit=unit)
        raise


@contextmanager
def refusals_of(budget: ByteBudget, baseline_peak_bytes: int) -> Iterator[None]:
    """Where ``budget`` is a share of eager's peak, refusals inside name the smallest one as such a share, too."""
    try:
        yield
    except InfeasibleBudget as error:
        if isinstance(budget, PeakShare):
            error.full_bytes = baseline_peak_bytes
        raise


def _read(value: int | float | str, accepted: str) -> tuple[Fraction, str]:
    """The exact number and the unit ("%" included) that ``value`` states."""
    if isinstance(value, str):
        if (grouped := _GROUPED.fullmatch(value)) is not None:
            return Fraction(grouped["number"].replace(",", "")), "B"
        match = _AMOUNT.fullmatch(value)
        unit = None if match is None else {**_SPELLINGS, "%": "%"}.get(match["unit"].lower())
        if match is not None and unit is not None:
            return Fraction(match["number"]), unit
    elif isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < float("inf"):
        return Fraction(value), "B"
    raise ConfigError(f"{value!r} is not an amount of memory; write {accepted}")


def parse_percentage(text: str) -> float:
    """``10%`` is 0.1; it may be negative.

    Raises:
        ConfigError: anything else.
    """
    match = re.fullmatch(r"\s*([+-]?\d{1,9}(?:\.\d{1,9})?)\s*%\s*", text, re.ASCII)
    if match is None:
        raise ConfigError(f"{text!r} is not a percentage such as 10% or 2.5%")
    return float(Fraction(match.group(1)) / 100)

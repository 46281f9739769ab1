"""Names of variants on the command line.

The planner's registry calls MONeT's whole program ``all``. On the command line ``all`` means every variant,
so there and in everything a sweep writes the whole program is called ``monet``.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from monet.errors import ConfigError
from monet.planner.schedules import ABLATION, BASELINES, SCHEDULES, STORAGE

MONET = "monet"
_WHOLE_PROGRAM = "all"


def label(schedule: str) -> str:
    """The name in a sweep of an entry of ``monet.planner.schedules.SCHEDULES``."""
    return MONET if schedule == _WHOLE_PROGRAM else schedule


def schedule_name(variant: str) -> str:
    """The entry of the registry that ``variant`` is; the reverse of :func:`label`."""
    return _WHOLE_PROGRAM if variant == MONET else variant


def storage_of(variants: Iterable[str]) -> tuple[str, ...]:
    """Compressed storages that must be measured for these variants, sorted."""
    return tuple(sorted(frozenset[str]().union(*(STORAGE.get(name, frozenset()) for name in variants))))


def known_variants() -> tuple[str, ...]:
    """Every variant and baseline, in the registry's order."""
    return tuple(label(name) for name in SCHEDULES)


def groups() -> dict[str, tuple[str, ...]]:
    """Names that stand for several variants: ``all``, ``ablation`` (parts of MONeT) and ``baselines``."""
    return {
        "all": known_variants(),
        "ablation": tuple(label(name) for name in ABLATION),
        "baselines": tuple(label(name) for name in BASELINES),
    }


def parse_variants(text: str) -> tuple[str, ...]:
    """The variants that a list with commas names, each once, in the registry's order.

    Raises :class:`ConfigError`, which lists the names, for an unknown or an empty one.
    """
    known, meaning = known_variants(), groups()
    chosen: set[str] = set()
    for part in (part.strip() for part in text.split(",")):
        if part in meaning:
            chosen |= set(meaning[part])
        elif part in known:
            chosen.add(part)
        else:
            close = difflib.get_close_matches(part, [*meaning, *known], n=1)
            guess = f" (did you mean {close[0]}?)" if close else ""
            raise ConfigError(
                f"no variant is called {part!r}{guess}; variants are {', '.join(known)}; "
                f"several at once: {', '.join(meaning)}"
            )
    return tuple(variant for variant in known if variant in chosen)

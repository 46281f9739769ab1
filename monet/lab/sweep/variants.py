"""Variants as people name them, one or several at once."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

from monet.errors import ConfigError
from monet.planner.ablation import MONET
from monet.planner.schedules import ABLATION, BASELINES, MOVING, STORAGE, VARIANTS
from monet.step.second_memory.offload import Offload, variant_with

GROUPS: Mapping[str, tuple[str, ...]] = {
    "all": (*ABLATION, *BASELINES),
    "ablation": ABLATION,
    "moving": MOVING,
    "baselines": BASELINES,
}
"""Names that stand for several variants: each that needs no second memory, MONeT with the parts of it, what moves to
a second memory, and what they are compared with."""


def check_moving(variants: Iterable[str], offload: Offload | None) -> None:
    """Raises :class:`ConfigError` for a variant that moves tensors where there is no memory to move them to, or none
    that it can use."""
    chosen = tuple(variants)
    for name in chosen:
        if name in MOVING:
            try:
                variant_with(offload, name)
            except ConfigError as error:
                others = ",".join(other for other in chosen if other != name)
                advice = f"; leave it out: --variants {others}" if offload is not None and others else ""
                raise ConfigError(f"{error}{advice}") from error


def storage_of(variants: Iterable[str]) -> tuple[str, ...]:
    """Compressed storages that must be measured for these variants, sorted."""
    return tuple(sorted(frozenset[str]().union(*(STORAGE.get(name, frozenset()) for name in variants))))


def parse_variant(text: str) -> str:
    """The one variant that ``text`` names.

    Raises :class:`ConfigError`, which lists the names, for an unknown one and for a name of several.
    """
    name = text.strip()
    if name in GROUPS:
        raise ConfigError(
            f"{name!r} stands for several variants; choose one of {', '.join(VARIANTS)}: "
            f"the whole program is called {MONET}"
        )
    if name not in VARIANTS:
        raise ConfigError(_unknown(name, [*VARIANTS]))
    return name


def parse_variants(text: str) -> tuple[str, ...]:
    """The variants that a list with commas names, each once, in the registry's order.

    Raises :class:`ConfigError`, which lists the names, for an unknown or an empty one.
    """
    chosen: set[str] = set()
    for part in (part.strip() for part in text.split(",")):
        if part not in GROUPS and part not in VARIANTS:
            raise ConfigError(f"{_unknown(part, [*GROUPS, *VARIANTS])}; several at once: {', '.join(GROUPS)}")
        chosen |= set(GROUPS.get(part, (part,)))
    return tuple(variant for variant in VARIANTS if variant in chosen)


def _unknown(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    guess = f" (did you mean {close[0]}?)" if close else ""
    return f"no variant is called {name!r}{guess}; variants are {', '.join(VARIANTS)}"

"""Variants as people name them, one or several at once."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from monet.errors import ConfigError
from monet.planner.ablation import MONET
from monet.planner.problem import STATIC
from monet.planner.schedules import ABLATION, BASELINES, MOVING, STORAGE, VARIANTS

if TYPE_CHECKING:
    from monet.second_memory.offload import Offload

GROUPS: Mapping[str, tuple[str, ...]] = {
    "all": (*ABLATION, *BASELINES),
    "ablation": ABLATION,
    "moving": MOVING,
    "baselines": BASELINES,
}
"""Names that stand for several variants: each that needs no second memory, MONeT with the parts of it, what moves to
a second memory, and what they are compared with."""


def check_moving(variants: Iterable[str], offload: Offload | None) -> None:
    """Raises :class:`ConfigError` for variants that move tensors where there is no memory to move them to, or none that
    they can use."""
    moving = [name for name in variants if name in MOVING]
    if offload is not None and offload.disk and STATIC in moving:
        raise ConfigError("the variant static is for a memory that operators can address, which a disk is not")
    if moving and offload is None:
        raise ConfigError(f"{', '.join(moving)}: tensors are moved to a second memory; give one with --offload")


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

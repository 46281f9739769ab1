"""What runs in place of an island's operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from monet.capture.islands.island import Derivation, Island
from monet.capture.islands.operators import ISLAND, ISLAND_BACKWARD


def island_of(target: Callable[..., Any], args: tuple[Any, ...], islands: Mapping[str, Island]) -> Island | None:
    """The island whose operator ``target`` is."""
    if target is ISLAND:
        return islands[args[1]]
    return islands[args[2]] if target is ISLAND_BACKWARD else None


def island_call(
    target: Callable[..., Any], args: tuple[Any, ...], islands: Mapping[str, Island]
) -> Callable[..., Any] | None:
    """What to call instead of ``target``, with its arguments; None where that is no island's operator."""
    island = island_of(target, args, islands)
    if island is None:
        return None
    return island.forward if target is ISLAND else Derivation(island)

"""What runs in place of an island's operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from monet.capture.islands.island import Island
from monet.capture.islands.operators import ISLAND, ISLAND_BACKWARD, RANDOM_ISLAND


def island_call(
    target: Callable[..., Any], args: tuple[Any, ...], islands: Mapping[str, Island], *, again: bool
) -> tuple[Callable[..., Any], tuple[Any, ...]] | None:
    """What to call instead of ``target(*args)``, and on which of them; None where that is no island's operator.
    ``again``: it has run in this step before."""
    if target in (ISLAND, RANDOM_ISLAND):
        inputs, key, _ = args
        return (islands[key].again if again else islands[key].forward), (inputs,)
    if target is ISLAND_BACKWARD:
        inputs, gradients, states, key, outputs, wanted = args
        return islands[key].backward, (inputs, gradients, states, outputs, wanted)
    return None

"""Implementations of a model's islands: parts that run as they are inside of a plan, see ``monet.capture.islands``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from monet.base.graph import Graph
from monet.base.measurement import Measurement
from monet.ops.catalogue import Catalogue
from monet.ops.measuring.bench import Bench
from monet.ops.measuring.profiling import implementations
from monet.ops.measuring.signature import signature
from monet.ops.offers.generic import draw, draw_again
from monet.ops.offers.implementation import Implementation

if TYPE_CHECKING:
    from monet.capture.islands.island import Island


def bound(run: Implementation, islands: Mapping[str, Island], *, again: bool = False) -> Implementation:
    """``run`` with what is to be called in place of an island's operator; ``again``: it has run in this step before."""
    if not islands:
        return run
    from monet.capture.islands.binding import island_call

    drawn = run.call in (draw, draw_again)
    # Before the operator's arguments, a random one's call has the operator, and maybe the generator's state.
    before = (1 if run.call is draw else 2) if drawn else 0
    called = island_call(run.args[0] if drawn else run.call, run.args[before:], islands, again=again)
    if called is None:
        return run
    function, args = called
    if drawn:
        return replace(run, args=(function, *run.args[1:before], *args))
    return replace(run, call=function, args=args)


def island_of(run: Implementation, islands: Mapping[str, Island]) -> tuple[Island, bool] | None:
    """The island whose operator an implementation runs, and whether it is the backward one."""
    call = bound(run, islands)
    function = call.args[0] if call.call in (draw, draw_again) else call.call
    owner = getattr(function, "__self__", None)
    found = next((island for island in islands.values() if island is owner), None)
    return None if found is None else (found, function.__name__ == "backward")


def island_costs(catalogue: Catalogue, islands: Mapping[str, Island]) -> dict[str, Measurement]:
    """By signature: what the islands' operators ask the arena for, which is their results, and the seconds that they
    took when they were tried."""
    found: dict[str, Measurement] = {}
    bench = Bench(device=catalogue.graph.device)
    for run in implementations(catalogue):
        of = island_of(run, islands)
        key = signature(run, catalogue.values)
        if of is None or key in found:
            continue
        island, is_backward = of
        island.rehearsed = True
        measured = bench.measure(bound(run, islands), catalogue.values)
        island.rehearsed = False
        found[key] = replace(measured, time_s=island.backward_s if is_backward else island.forward_s)
    return found


def maybe_absent(graph: Graph, islands: Mapping[str, Island]) -> dict[str, tuple[Island, int]]:
    """Sources whose gradient is one island's alone, which may have none for them in a step (an expert that no token is
    sent to), and their positions there: eager leaves such a ``.grad`` None."""
    if not islands:
        return {}
    from monet.capture.islands.operators import ISLAND_BACKWARD

    made = {
        name: (islands[op.args[3]], position)
        for op in graph.backward
        if op.target is ISLAND_BACKWARD
        for name, position in zip(op.outputs, op.args[5], strict=True)
        if name is not None
    }
    return {source: made[name] for source, name in graph.gradients.items() if name in made}

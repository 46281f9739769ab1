"""From runs to steps in an order of small peak, each of their buffers at its place in one arena."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

from monet.pipeline.lowering import Lowered
from monet.pipeline.run_graph import reorder
from monet.pipeline.schedule import Call, Copy, calls, with_copies
from monet.pipeline.unrolling import Unrolled, place, unroll
from monet.planner.layout import Layout, layout
from monet.planner.layout.arena import Lifetime
from monet.planner.order import Ordered
from monet.planner.replay import replay
from monet.planner.solution import Runs
from monet.plans.format import ALIGNMENT, COPY_ALIGNMENT, CUDA_ALIGNMENT, Buffer

# Seconds for the order, where none of the fast ones is proven best.
ORDER_S = 10.0
# What a layout takes at most that ends after a number of tries.
LAYOUT_S = 15.0


@dataclass(frozen=True)
class Placement:
    """Steps and the lifetimes of their buffers, with the certificates of their order and of the arena."""

    unrolled: Unrolled
    ordered: Ordered
    layout: Layout

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        return place(self.unrolled, self.layout.offsets)


def placement(runs: Runs, lowered: Lowered, budget_bytes: int, time_limit_s: float = math.inf) -> Placement:
    """The runs in an order of small peak, placed. The search for a smaller arena ends when it fits in what the fixed
    bytes leave of the budget.

    ``time_limit_s``: wall seconds, but for one order and one layout by a heuristic, which there are in any case. Equal
    input gives an equal placement where that is not what ends a search.
    """
    deadline_s = time.monotonic() + time_limit_s
    schedule: Sequence[Call | Copy]
    copied = bool(runs.moved or lowered.problem.carried)
    if copied:
        schedule, ordered = with_copies(runs, lowered), _as_planned(runs, lowered)
    else:
        schedule, ordered = reorder(calls(runs, lowered), lowered, time_limit_s=min(ORDER_S, time_limit_s / 2))
    unrolled = unroll(schedule, lowered)
    lifetimes = [Lifetime(b.id, b.bytes, b.begin, b.end) for b in unrolled.buffers]
    capacity_bytes = max(0, budget_bytes - lowered.problem.fixed_bytes)
    left_s = max(0.0, deadline_s - time.monotonic())
    # A search that is given a limit uses all of it; without one it ends after a number of tries.
    limit_s = None if left_s > LAYOUT_S else left_s
    alignment = _alignment(lowered, copied=copied)
    placed = layout(lifetimes, alignment=alignment, capacity_bytes=capacity_bytes, time_limit_s=limit_s)
    if ordered.interrupted or placed.interrupted:  # both keep what they have, but whoever interrupts wants no plan now
        raise KeyboardInterrupt
    return Placement(unrolled, ordered, placed)


def _alignment(lowered: Lowered, *, copied: bool) -> int:
    """What each offset is a multiple of, in bytes."""
    if copied:
        return COPY_ALIGNMENT
    return CUDA_ALIGNMENT if lowered.catalogue.graph.device.type == "cuda" else ALIGNMENT


def _as_planned(runs: Runs, lowered: Lowered) -> Ordered:
    """The order of a plan with copies: another one would hide them behind other operators. Of other orders nothing is
    proven."""
    peak_bytes = replay(lowered.problem, runs).peak_bytes - lowered.problem.fixed_bytes
    return Ordered((), peak_bytes, 0, "as planned: copies are timed by it")

"""From runs to steps in an order of small peak, each of their buffers at its place in one arena."""

from __future__ import annotations

from dataclasses import dataclass

from monet.pipeline.lowering import Lowered
from monet.pipeline.run_graph import reorder
from monet.pipeline.schedule import calls
from monet.pipeline.unrolling import Unrolled, place, unroll
from monet.planner.layout import Layout, layout
from monet.planner.layout.arena import Lifetime
from monet.planner.order import Ordered
from monet.planner.solution import Runs
from monet.plans.plan import ALIGNMENT, Buffer

# Seconds for the order, where none of the fast ones is proven best.
ORDER_S = 10.0


@dataclass(frozen=True)
class Placement:
    """Steps and the lifetimes of their buffers, with the certificates of their order and of the arena."""

    unrolled: Unrolled
    ordered: Ordered
    layout: Layout

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        return place(self.unrolled, self.layout.offsets)


def placement(runs: Runs, lowered: Lowered, budget_bytes: int) -> Placement:
    """The runs in an order of small peak, placed. The search for a smaller arena ends when it fits in what the fixed
    bytes leave of the budget."""
    schedule, ordered = reorder(calls(runs, lowered), lowered, time_limit_s=ORDER_S)
    unrolled = unroll(schedule, lowered)
    lifetimes = [Lifetime(b.id, b.bytes, b.begin, b.end) for b in unrolled.buffers]
    capacity_bytes = max(0, budget_bytes - lowered.problem.fixed_bytes)
    placed = layout(lifetimes, alignment=ALIGNMENT, capacity_bytes=capacity_bytes)
    if ordered.interrupted or placed.interrupted:  # both keep what they have, but whoever interrupts wants no plan now
        raise KeyboardInterrupt
    return Placement(unrolled, ordered, placed)

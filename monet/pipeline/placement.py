"""From runs to steps in an order of small peak, each of their buffers at its place in one arena."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace

from monet.pipeline.carried_copies import copied, with_carried_copies
from monet.pipeline.lowering import Lowered
from monet.pipeline.run_graph import as_scheduled, reorder
from monet.pipeline.schedule import calls, with_moves
from monet.pipeline.unrolling import Unrolled, place, unroll
from monet.planner.channel import Traffic
from monet.planner.layout import Layout, layout
from monet.planner.layout.lifetimes import Lifetime, pieces_of
from monet.planner.order import Ordered
from monet.planner.replay import replay
from monet.planner.solution import Runs, Solution
from monet.plans.format import ALIGNMENT, COPY_ALIGNMENT, CUDA_ALIGNMENT, Buffer

ORDER_S = 10.0
"""Seconds for the order, where none of the fast ones is proven best."""
FIRST_SHARE = 0.7
"""Of the time: for a layout of the order that the program counted in."""
FILLED = (1.0, 0.97, 0.92, 0.85)
"""Of the arena: what copies of parameters and state may fill, one after the other until a layout fits."""
LAYOUT_S = 15.0
"""What a layout takes at most that ends after a number of tries."""


@dataclass(frozen=True)
class Placement:
    """Steps and the lifetimes of their buffers, with the certificates of their order and of the arena. ``traffic``: all
    that is copied, where parameters or state are."""

    unrolled: Unrolled
    ordered: Ordered
    layout: Layout
    traffic: Traffic | None = None

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        return place(self.unrolled, self.layout.offsets)


def placement(runs: Runs, lowered: Lowered, budget_bytes: int | None, time_limit_s: float = math.inf) -> Placement:
    """The runs in an order of small peak, placed. The search for a smaller arena ends when it fits in what the fixed
    bytes leave of the budget, or once none can. ``budget_bytes``: None looks for the smallest arena.

    Where the load along the order that the program counted in is within the budget, that order is laid out first, in
    most of the time: seconds for a better order are lost where what is missing is a layout without gaps.

    ``time_limit_s``: wall seconds, but for one order and one layout by a heuristic, which there are in any case. Equal
    input gives an equal placement where that is not what ends a search.
    """
    deadline_s = time.monotonic() + time_limit_s
    capacity_bytes = None if budget_bytes is None else max(0, budget_bytes - lowered.problem.fixed_bytes)
    if lowered.carried:
        return _streamed(runs, lowered, capacity_bytes, time_limit_s)
    if runs.moved:
        arena = _Arena(COPY_ALIGNMENT, capacity_bytes)
        unrolled = unroll(with_moves(runs, lowered), lowered)
        return Placement(unrolled, _as_planned(runs, lowered), arena.layout(unrolled, time_limit_s))
    cuda = lowered.catalogue.graph.device.type == "cuda"
    arena = _Arena(CUDA_ALIGNMENT if cuda else ALIGNMENT, capacity_bytes)
    schedule = calls(runs, lowered)
    counted = unroll(schedule, lowered)
    first = arena.layout(counted, FIRST_SHARE * time_limit_s) if arena.may_hold(counted) else None
    left_s = deadline_s - time.monotonic()
    reordered, ordered = reorder(schedule, lowered, time_limit_s=min(ORDER_S, left_s / 2))
    if ordered.interrupted:  # it keeps what it has, but whoever interrupts wants no plan now
        raise KeyboardInterrupt
    if first is not None and reordered == tuple(schedule):
        return Placement(counted, ordered, first)
    unrolled = unroll(reordered, lowered)
    if first is None or arena.load_bytes(unrolled) < first.arena_bytes:
        placed = arena.layout(unrolled, deadline_s - time.monotonic())
        if first is None or placed.arena_bytes < first.arena_bytes:
            return Placement(unrolled, ordered, placed)
    return Placement(counted, as_scheduled(schedule, lowered, ordered.bound_bytes), first)


def _streamed(runs: Runs, lowered: Lowered, capacity_bytes: int | None, time_limit_s: float) -> Placement:
    """With copies of parameters and state, which use the memory that the runs leave: the less of it, the more often one
    has not fitted; none of it for the smallest arena."""
    arena, moves = _Arena(COPY_ALIGNMENT, capacity_bytes), with_moves(runs, lowered)
    ordered = _as_planned(runs, lowered)
    found: list[Placement] = []
    filled = [0] if capacity_bytes is None else [int(share * capacity_bytes) for share in FILLED]
    for filled_bytes in filled:
        schedule = with_carried_copies(moves, lowered, filled_bytes)
        unrolled = unroll(schedule, lowered)
        placed = arena.layout(unrolled, time_limit_s / len(filled))
        found.append(Placement(unrolled, ordered, placed, copied(schedule, lowered)))
        if capacity_bytes is not None and placed.arena_bytes <= capacity_bytes:
            break
    return min(found, key=lambda each: each.layout.arena_bytes)


def as_placed(solution: Solution, lowered: Lowered, placed: Placement) -> Solution:
    """``solution`` with the seconds of all copies, where its placement has decided on some of them."""
    if placed.traffic is None:
        return solution
    counted = replay(lowered.problem, solution.runs)
    moves = counted.traffic
    counted_s = 0.0 if moves is None else moves.waited_s + moves.slowdown_s
    objective_s = counted.objective_s - counted_s + placed.traffic.waited_s + placed.traffic.slowdown_s
    status = solution.status
    if status == "optimal" and objective_s > counted.objective_s * (1 + 1e-9):
        status = "time_limit"  # of the search; when copies are made is not proven best
    return replace(solution, objective_s=objective_s, status=status)


@dataclass(frozen=True, slots=True)
class _Arena:
    """``alignment``: what each offset is a multiple of. ``capacity_bytes``: what it should fit in; None: in the least
    that there is."""

    alignment: int
    capacity_bytes: int | None

    def load_bytes(self, unrolled: Unrolled) -> int:
        """No layout is smaller."""
        return pieces_of(_lifetimes(unrolled), self.alignment).bound() * self.alignment

    def may_hold(self, unrolled: Unrolled) -> bool:
        """Whether the load is within the capacity."""
        return self.capacity_bytes is None or self.load_bytes(unrolled) <= self.capacity_bytes

    def layout(self, unrolled: Unrolled, left_s: float) -> Layout:
        """Raises ``KeyboardInterrupt``."""
        # A search that is given a limit uses all of it; without one it ends after a number of tries.
        limit_s = None if left_s > LAYOUT_S else max(0.0, left_s)
        lifetimes, capacity_bytes = _lifetimes(unrolled), self.capacity_bytes
        placed = layout(lifetimes, alignment=self.alignment, capacity_bytes=capacity_bytes, time_limit_s=limit_s)
        if placed.interrupted:  # it keeps what it has, but whoever interrupts wants no plan now
            raise KeyboardInterrupt
        return placed


def _lifetimes(unrolled: Unrolled) -> list[Lifetime]:
    return [Lifetime(b.id, b.bytes, b.begin, b.end) for b in unrolled.buffers]


def _as_planned(runs: Runs, lowered: Lowered) -> Ordered:
    """The order of a plan with copies: another one would hide them behind other operators. Of other orders nothing is
    proven."""
    peak_bytes = replay(lowered.problem, runs).peak_bytes - lowered.problem.fixed_bytes
    return Ordered((), peak_bytes, 0, "as planned: copies are timed by it")

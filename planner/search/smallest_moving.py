"""The smallest budget where there is a second memory: budgets halved between what is proven too small and a plan.

The program of moments proves that no plan fits a budget, or that none that fits is fast enough, moves included; the
program of ``smallest.py`` has no moves to minimise over.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from monet.errors import SolverError
from monet.planner.construction.first_plans import fastest_plan, smallest_budget
from monet.planner.memory_floor import floor_bytes
from monet.planner.program.index import Index, index_of
from monet.planner.search.best import BestPlan
from monet.planner.search.hunt import Hunt, cancelled_by_ctrl_c, hunt_for
from monet.planner.search.moments import MomentSearch
from monet.planner.search.solving import Solving
from monet.planner.search.two_memories import improve_around_moves
from monet.planner.solution import Runs, Solution

CONSTRUCTION_SHARE, WITHOUT_SHARE, STEP_SHARE = 0.15, 0.2, 0.12
"""Of the time limit: for constructed plans, for plans without moves, and for each budget of the first round, at most;
twice that in the next."""
MOMENTS_SHARE = 0.7
"""Of a budget's time: for the program of moments; the rest is for what it found."""


def halve_budgets(hunt: Hunt, limit_s: float, start: Runs | None, without_moves: Callable[[float], Solution]) -> None:
    """Offers plans of at most ``limit_s`` seconds with less and less memory; the hunt's bound, in bytes, is about every
    plan that is as fast. ``without_moves`` makes the best plan of another search, in so many seconds.

    Raises:
        InfeasibleBudget: no plan is that fast.
        SolverError: none that fast was found in time.
    """
    best, problem, clock = hunt.best, hunt.best.problem, hunt.clock
    hunt.scope, hunt.bound = "full", float(floor_bytes(problem))
    fastest = fastest_plan(problem)
    if fastest is not None:
        best.offer(fastest.runs)
    if start is not None:
        best.offer(start)
    known = smallest_budget(problem, time.monotonic() + CONSTRUCTION_SHARE * clock.time_limit_s)
    if known is not None:
        best.offer(known[1].runs)
    if not _is_done(hunt):
        try:
            hunt.take(without_moves(WITHOUT_SHARE * clock.time_limit_s))
        except SolverError:
            if best.cost is None:  # moves make no plan faster: where none is known without them, none is looked for
                raise
    index = index_of(problem)
    hunt.built_s = clock.elapsed_s()
    step_s = STEP_SHARE * clock.time_limit_s
    while best.cost is not None and not _is_done(hunt) and clock.left_s() > 0:
        _halve(hunt, index, limit_s, step_s)
        step_s *= 2
    hunt.status = "optimal" if _is_done(hunt) else "time_limit"


def _tried(index: Index, budget_bytes: int, solving: Solving, limit_s: float) -> Hunt:
    """A hunt for any plan with moves that fits and takes at most ``limit_s``."""
    best = BestPlan.fastest_within(index.problem, budget_bytes)
    hunt = hunt_for(best, solving, None, enough=limit_s)
    with cancelled_by_ctrl_c(hunt.clock):
        moments = MomentSearch(index, budget_bytes, hunt.solve, best, hunt.clock, solving.gap, enough=limit_s)
        moments.run(MOMENTS_SHARE * solving.time_limit_s)
        hunt.known = moments.bound
        hunt.status = "infeasible" if moments.infeasible else "time_limit"
        if best.runs is not None and not hunt.is_over():
            improve_around_moves(hunt, moments, budget_bytes, solving.time_limit_s)
    return hunt


def _is_done(hunt: Hunt, low_bytes: float = 0.0) -> bool:
    """Whether the best plan is as near as was asked for to the bound, or to ``low_bytes``, if that is more."""
    value, bound = hunt.best.value, max(low_bytes, hunt.bound)
    return hunt.best.cost is not None and value - bound <= max(1.0, hunt.solving.gap * value)


def _halve(hunt: Hunt, index: Index, limit_s: float, step_s: float) -> None:
    """Once, from the bound up to the best plan; a budget for which none is found in ``step_s`` counts as too small."""
    best, clock = hunt.best, hunt.clock
    low = int(hunt.bound)
    while clock.left_s() > 0 and not _is_done(hunt, low):
        middle = int(low + best.value) // 2
        solving = replace(hunt.solving, time_limit_s=min(step_s, clock.left_s()), prove=False)
        tried = _tried(index, middle, solving, limit_s)
        if tried.best.runs is None or not best.offer(tried.best.runs):
            low = middle
            if tried.status == "infeasible" or tried.known > limit_s:
                hunt.bound = max(hunt.bound, float(middle))
        clock.tell(best, hunt.bound)
        if tried.clock.cancelled:
            clock.cancellation.asked = True

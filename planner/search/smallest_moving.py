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
from monet.planner.search.incumbent import Incumbent
from monet.planner.search.moments import MomentSearch
from monet.planner.search.solving import Solving
from monet.planner.search.state import SearchState, begun_state, cancelled_by_ctrl_c
from monet.planner.search.two_memories import improve_around_moves
from monet.planner.solution import Runs, Solution

CONSTRUCTION_SHARE, WITHOUT_SHARE, STEP_SHARE = 0.15, 0.2, 0.12
"""Of the time limit: for constructed plans, for plans without moves, and for each budget of the first round, at most;
twice that in the next."""
MOMENTS_SHARE = 0.7
"""Of a budget's time: for the program of moments; the rest is for what it found."""


def halve_budgets(
    state: SearchState, limit_s: float, start: Runs | None, without_moves: Callable[[float], Solution]
) -> None:
    """Offers plans of at most ``limit_s`` seconds with less and less memory; the bound, in bytes, is about every
    plan that is as fast. ``without_moves`` makes the best plan of another search, in so many seconds.

    Raises:
        InfeasibleBudget: no plan is that fast.
        SolverError: none that fast was found in time.
    """
    best, problem, deadline = state.incumbent, state.incumbent.problem, state.deadline
    state.scope, state.program_bound = "full", float(floor_bytes(problem))
    fastest = fastest_plan(problem)
    if fastest is not None:
        best.offer(fastest.runs)
    if start is not None:
        best.offer(start)
    known = smallest_budget(problem, time.monotonic() + CONSTRUCTION_SHARE * deadline.time_limit_s)
    if known is not None:
        best.offer(known[1].runs)
    if not _is_done(state):
        try:
            state.take(without_moves(WITHOUT_SHARE * deadline.time_limit_s))
        except SolverError:
            if best.cost is None:  # moves make no plan faster: where none is known without them, none is looked for
                raise
    index = index_of(problem)
    state.built_s = deadline.elapsed_s()
    step_s = STEP_SHARE * deadline.time_limit_s
    while best.cost is not None and not _is_done(state) and deadline.left_s() > 0:
        _halve(state, index, limit_s, step_s)
        step_s *= 2
    state.status = "optimal" if _is_done(state) else "time_limit"


def _tried(index: Index, budget_bytes: int, solving: Solving, limit_s: float) -> SearchState:
    """A state for any plan with moves that fits and takes at most ``limit_s``."""
    best = Incumbent.fastest_within(index.problem, budget_bytes)
    state = begun_state(best, solving, None, enough=limit_s)
    with cancelled_by_ctrl_c(state.deadline):
        moments = MomentSearch(index, budget_bytes, state.solve, best, state.deadline, solving.gap, enough=limit_s)
        moments.run(MOMENTS_SHARE * solving.time_limit_s)
        state.full_bound = moments.bound
        state.status = "infeasible" if moments.infeasible else "time_limit"
        if best.runs is not None and not state.is_over():
            improve_around_moves(state, moments, budget_bytes, solving.time_limit_s)
    return state


def _is_done(state: SearchState, low_bytes: float = 0.0) -> bool:
    """Whether the best plan is as near as was asked for to the bound, or to ``low_bytes``, if that is more."""
    value, bound = state.incumbent.value, max(low_bytes, state.program_bound)
    return state.incumbent.cost is not None and value - bound <= max(1.0, state.solving.gap * value)


def _halve(state: SearchState, index: Index, limit_s: float, step_s: float) -> None:
    """Once, from the bound up to the best plan; a budget for which none is found in ``step_s`` counts as too small."""
    best, deadline = state.incumbent, state.deadline
    low = int(state.program_bound)
    while deadline.left_s() > 0 and not _is_done(state, low):
        middle = int(low + best.value) // 2
        solving = replace(state.solving, time_limit_s=min(step_s, deadline.left_s()), prove=False)
        tried = _tried(index, middle, solving, limit_s)
        if tried.incumbent.runs is None or not best.offer(tried.incumbent.runs):
            low = middle
            if tried.status == "infeasible" or tried.full_bound > limit_s:
                state.program_bound = max(state.program_bound, float(middle))
        deadline.tell(best, state.program_bound)
        if tried.deadline.cancelled:
            deadline.cancellation.asked = True

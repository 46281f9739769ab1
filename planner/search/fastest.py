"""The fastest plan under a budget: from a ``Problem`` to a verified ``Solution``.

    program of moments: a bound on every plan, first plans
      →  the windowed program, or where that is too large the exact program with few stages around those plans:
         improve neighbourhoods, solve all of it
      →  the integer program of moments, for a better bound
      →  replay

The search can be stopped at any time: every better point is kept as soon as it is found, and what is
returned has always been replayed.
"""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from dataclasses import replace

from monet.errors import InfeasibleBudget, InvalidPlan, SolverError
from monet.planner.construction.first_plans import construct, smallest_budget
from monet.planner.memory_floor import floor_bytes
from monet.planner.problem import Problem
from monet.planner.program.aggregation import add_aggregation
from monet.planner.program.index import Index, index_of
from monet.planner.program.windows import NO_STAGES
from monet.planner.progress import Progress
from monet.planner.runs import without_useless
from monet.planner.search.incumbent import Incumbent
from monet.planner.search.moments import MomentSearch
from monet.planner.search.proof import bound_full_program
from monet.planner.search.refusal import refusal
from monet.planner.search.scope import (
    LARGEST,
    LARGEST_WINDOWED,
    Scope,
    build,
    few_stages,
    is_within,
    needed_besides,
    scope_of,
)
from monet.planner.search.search import Search
from monet.planner.search.solving import Solving
from monet.planner.search.state import SearchState, begun_state, cancelled_by_ctrl_c
from monet.planner.search.two_memories import improve_around_moves, search_moves
from monet.planner.solution import Runs, Solution

log = logging.getLogger(__name__)

MOMENTS_SHARE = 0.5
"""Of the time limit: how long the program of moments is looked at, at most, where there are others."""
POOR_MOMENTS_SHARE = 0.2
"""The same as long as its plans are poor."""
WINDOWED_MOMENTS, WINDOWED_FIRST = 0.04, 0.3
CONSTRUCTION_SHARE = 0.25
"""Of the time limit: how long plans are constructed, at most."""
FIRST_SHARE, ALONE_SHARE = 0.08, 0.25
"""For which share of the time limit neighbourhoods are improved first; ``ALONE`` where there is no worker."""
FEW_GAP_SHARE = 0.1
"""Of the gap: how near to the bound of the program with few stages its search ends. That bound is about few plans, so
the search goes on until the plan is near a bound on all of them, or there is nothing left to find."""
PLANS_SHARE = 0.6
"""Until which share of the time limit an exact program is solved; what is left goes to the bound on every plan, where
the windowed program's plan is not near one by then."""
PROOF_SHARE = 0.2
"""Of the time limit: for a bound on every plan with moves, before plans are improved around theirs: branch and bound
finds some to begin with, too."""


def plan_problem(
    problem: Problem,
    budget_bytes: int,
    solving: Solving | None = None,
    *,
    start: Runs | None = None,
    enough_s: float | None = None,
    progress: Progress | None = None,
) -> Solution:
    """The fastest plan found whose every moment fits in ``budget_bytes``, fixed bytes included.

    ``solving``: None is ``Solving()``. ``start``: a plan to begin with; ignored if it does not fit. ``enough_s``: stop
    at any plan of so many seconds or less, or once there is proven to be none. ``progress`` is called from this thread,
    about 20 times a second during solves. Equal inputs give equal plans when no solve, round or phase ends by its time
    limit, and the solve of the whole is over before its worker begins.

    Ctrl-C returns the best plan so far, with status ``interrupted``, or is raised if there is none.

    Raises:
        InfeasibleBudget: no plan fits, or none was found in time and the smallest budget known is larger.
        SolverError: the solver is missing, fails, or returns something that is not a plan.
    """
    solving = solving or Solving()
    least = floor_bytes(problem)
    if budget_bytes < least:
        scope = "every plan in the order that is counted"
        raise refusal(problem, budget_bytes, "infeasible", scope, solving.time_limit_s, least)
    best = Incumbent.fastest_within(problem, budget_bytes)
    state = begun_state(best, solving, progress, enough=float("-inf") if enough_s is None else enough_s)
    with cancelled_by_ctrl_c(state.deadline):
        _search_all(state, budget_bytes, start)
    solution = state.solution(state.proof())
    if solution is None:
        if state.deadline.cancelled:
            raise KeyboardInterrupt
        raise refusal(problem, budget_bytes, state.status, state.scope, solving.time_limit_s, known=state.smallest)
    return solution


def _search_all(state: SearchState, budget_bytes: int, start: Runs | None) -> None:
    best, deadline, limit_s = state.incumbent, state.deadline, state.solving.time_limit_s
    index = index_of(best.problem)
    _offer_start(best, start, budget_bytes)
    if state.is_enough():
        return
    if best.problem.second is not None:
        _search_with_moves(state, index, budget_bytes)
        return
    scope = scope_of(best.problem, state.solving.window)
    windowed = is_within(index, scope, LARGEST_WINDOWED)
    few = is_within(index, Scope(1, NO_STAGES), LARGEST)
    moments = MomentSearch(index, budget_bytes, state.solve, best, deadline, state.solving.gap)
    share = WINDOWED_MOMENTS if windowed else MOMENTS_SHARE if few else 1.0
    try:
        moments.run(limit_s * share, limit_s * max(share, POOR_MOMENTS_SHARE))
    finally:  # also where Ctrl-C comes between solves
        state.full_bound = moments.bound
    state.built_s = deadline.elapsed_s()
    if moments.infeasible:
        state.status, state.scope = "infeasible", "full"
        return
    state.status = "optimal" if moments.is_close() else "time_limit"
    if state.is_over():
        return
    if windowed or best.runs is None:
        _construct(state, index, budget_bytes)
    if state.is_over():
        return
    planned: Search | None = None
    if windowed:
        planned = _search_windows(state, scope, budget_bytes)
    elif few and best.runs is not None:
        planned = _search_few_stages(state, moments, budget_bytes)
    hopeless = state.program_bound > state.enough > 0  # nothing in the program, and what it leaves out is seldom better
    if best.runs is not None and not state.is_over() and not hopeless:
        _prove(state, moments, planned)


def _search_with_moves(state: SearchState, index: Index, budget_bytes: int) -> None:
    """With a second memory; what recomputation alone finds is offered as well, so that no plan is slower than that."""

    def without_moves(limit_s: float) -> None:
        problem, solving = replace(state.incumbent.problem, second=None), replace(state.solving, time_limit_s=limit_s)
        with suppress(InfeasibleBudget):
            try:
                state.take(plan_problem(problem, budget_bytes, replace(solving, prove=False)))
            except SolverError as error:  # what moves find is not lost with it
                log.warning("plans without moves are not looked for: %s", error)

    moments = search_moves(state, index, budget_bytes, without_moves)
    if state.status == "infeasible" or state.is_over():
        return
    if state.incumbent.runs is None:
        _construct(state, index, budget_bytes)
    limit_s = state.solving.time_limit_s
    if state.incumbent.runs is not None and not state.is_over():
        _prove(state, moments, None, min(limit_s, state.deadline.elapsed_s() + PROOF_SHARE * limit_s))
    if state.incumbent.runs is not None and not state.is_over():
        improve_around_moves(state, moments, budget_bytes, limit_s)
        if state.is_close():
            state.status = "optimal"


def _offer_start(incumbent: Incumbent, start: Runs | None, budget_bytes: int) -> None:
    """The caller's plan, if it is one of this problem and fits."""
    if start is None:
        return
    try:
        if not incumbent.offer(without_useless(incumbent.problem, start)):
            log.warning("the given start does not fit %d bytes and is ignored", budget_bytes)
    except (InvalidPlan, KeyError) as error:
        log.warning("the given start is no plan of this problem and is ignored: %s", error)


def _construct(state: SearchState, index: Index, budget_bytes: int) -> None:
    """Offers constructed plans; where there is none at all, the smallest one known."""
    best, share_s = state.incumbent, CONSTRUCTION_SHARE * state.solving.time_limit_s
    made = construct(index, budget_bytes, time.monotonic() + min(share_s, state.deadline.left_s()))
    if made is not None:
        best.offer(made)
    deadline_s = time.monotonic() + min(share_s, state.deadline.left_s())
    if best.runs is None and (known := smallest_budget(best.problem, deadline_s)) is not None:
        state.smallest = known
        best.offer(known[1].runs)


def _search_few_stages(state: SearchState, moments: MomentSearch, budget_bytes: int) -> Search | None:
    """Searches the program with few stages around the plans seen so far; None where it is too large."""
    best, solving = state.incumbent, state.solving
    assert best.runs is not None
    seen = sorted(moments.seen, key=lambda made: max(0, made[1].peak_bytes - budget_bytes))
    also_at = few_stages(moments.index, [best.runs, *(runs for runs, _ in seen)], LARGEST)
    if also_at is None:
        return None
    program = build(best.problem, budget_bytes, Scope(1, NO_STAGES), also_at)
    add_aggregation(program)
    first_s = state.deadline.elapsed_s() + state.first_s(FIRST_SHARE, ALONE_SHARE)
    bound, scope = state.program_bound, state.scope
    gap = FEW_GAP_SHARE * solving.gap
    search = state.run(program, first_s, PLANS_SHARE * solving.time_limit_s, gap)
    # What is proven of this program alone is nothing that anybody asked for.
    state.program_bound, state.scope = bound, scope
    if state.status == "optimal" and not state.is_close():
        state.status = "time_limit"
    return search


def _search_windows(state: SearchState, scope: Scope, budget_bytes: int) -> Search:
    """Searches the windowed program, and bounds the full one where that was asked for."""
    best, solving = state.incumbent, state.solving
    now_s = state.deadline.elapsed_s()
    first_s = now_s + state.first_s(WINDOWED_FIRST, ALONE_SHARE)
    if scope.after_peaks:
        # In the smaller program first: what is easy to find there is hard to find in the larger one.
        plain = Scope(scope.window, NO_STAGES)
        small = build(best.problem, budget_bytes, plain, needed_besides(best.problem, best.runs, plain))
        state.improve(small, now_s + FIRST_SHARE * solving.time_limit_s)
    program = build(best.problem, budget_bytes, scope, needed_besides(best.problem, best.runs, scope))
    full = program.scope == "full"
    turn_s = float("inf") if full or best.runs is None else PLANS_SHARE * solving.time_limit_s
    search = state.run(program, first_s, turn_s=turn_s)
    if solving.prove and best.runs is not None and not state.is_over() and not full:
        full_s, state.status = bound_full_program(search, budget_bytes, solving.time_limit_s)
        state.full_bound = max(state.full_bound, full_s)
    return search


def _prove(state: SearchState, moments: MomentSearch, planned: Search | None, until_s: float | None = None) -> None:
    """Bounds every plan by branch and bound until ``until_s`` (None: the time limit), while a worker
    goes on improving the best. Where the best is already proven within its windows, that takes no longer than
    everything before it."""
    status, limit_s = state.status, state.solving.time_limit_s if until_s is None else until_s
    moments.bound = max(moments.bound, state.full_bound)
    try:
        moments.prove(min(limit_s, 2 * state.deadline.elapsed_s()) if status == "optimal" else limit_s, planned)
    finally:
        state.full_bound = moments.bound
    state.status = "optimal" if state.is_close() else status

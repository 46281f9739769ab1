"""The fastest plan under a budget: from a ``Problem`` to a verified ``Solution``.

The search can be stopped at any time: every better point is kept as soon as it is found, and what is
returned has always been replayed.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from monet.errors import InvalidPlan
from monet.planner.construction.kept import keep_what_fits
from monet.planner.memory_floor import floor_bytes
from monet.planner.problem import Problem
from monet.planner.progress import Progress
from monet.planner.runs import without_useless
from monet.planner.search.incumbent import Incumbent
from monet.planner.search.policy import fastest
from monet.planner.search.refusal import ORDERED, refusal
from monet.planner.search.solving import Solving
from monet.planner.search.state import SearchState, begun_state, cancelled_by_ctrl_c
from monet.planner.solution import Runs, Solution

log = logging.getLogger(__name__)
LATE = 0.03
"""Of the time limit: how late a search may end that has used it up, to keep what there is room for."""


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
        raise refusal(problem, budget_bytes, "infeasible", ORDERED, solving.time_limit_s, least)
    best = Incumbent.fastest_within(problem, budget_bytes)
    enough = float("-inf") if enough_s is None else enough_s
    state = begun_state(best, budget_bytes, solving, progress, enough=enough)
    found = None
    with cancelled_by_ctrl_c(state.deadline):
        _offer_start(state, start)
        state.follow(fastest)
        found = best.both()
        if found is not None and not state.deadline.cancelled:
            deadline_s = state.deadline.begun + (1 + LATE) * solving.time_limit_s
            best.offer(keep_what_fits(problem, found[0], budget_bytes, deadline_s))
            if state.is_close():
                state.status = "optimal"
    solution = state.solution(state.proof())
    if solution is None:
        raise refusal(problem, budget_bytes, state.status, state.scope, solving.time_limit_s, known=state.smallest)
    before = found[0] if found else None
    if state.unfilled is not None and before is state.unfilled[0]:
        before = state.unfilled[1]
    return replace(solution, unfilled=None if before == solution.runs else before)


def _offer_start(state: SearchState, start: Runs | None) -> None:
    """The caller's plan, if it is one of this problem and fits."""
    if start is None:
        return
    best = state.incumbent
    try:
        state.started = best.offer(without_useless(best.problem, start))
    except (InvalidPlan, KeyError) as error:
        log.warning("the given start is no plan of this problem and is ignored: %s", error)
        return
    if not state.started:
        log.warning("the given start does not fit %d bytes and is ignored", state.budget_bytes)

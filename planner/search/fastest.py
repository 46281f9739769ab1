"""The fastest plan under a budget: from a ``Problem`` to a verified ``Solution``.

    construct a plan  →  build the program around it  →  improve stretches  →  solve all of it  →  replay

The search can be stopped at any time: every better point is kept as soon as it is found, and what is
returned has always been replayed.
"""

from __future__ import annotations

import logging
import time

from monet.errors import InvalidPlan
from monet.planner.construction.first_plans import construct, smallest_budget
from monet.planner.memory_floor import floor_bytes
from monet.planner.problem import Problem
from monet.planner.program.index import index_of
from monet.planner.progress import Progress
from monet.planner.runs import without_useless
from monet.planner.search.best import BestPlan
from monet.planner.search.hunt import Hunt, hunt_for
from monet.planner.search.proof import bound_full_program
from monet.planner.search.refusal import refusal
from monet.planner.search.scope import Scope, build, needed_besides, scope_of
from monet.planner.search.solving import Solving
from monet.planner.solution import Proof, Runs, Solution

log = logging.getLogger(__name__)

CONSTRUCTION_SHARE = 0.25
"""Of the time limit: how long plans are constructed, at most."""
FIRST_SHARE, ALONE_SHARE = 0.08, 0.25
"""Until which share of the time limit stretches are improved first; ``ALONE`` where there is no companion."""


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
    limit, and the solve of the whole is over before its companion begins.

    Ctrl-C returns the best plan so far, with status ``interrupted``, or is raised if there is none.

    Raises:
        InfeasibleBudget: no plan fits, or none was found in time and the smallest budget known is larger.
        SolverError: the solver is missing, fails, or returns something that is not a plan.
    """
    solving = solving or Solving()
    best = BestPlan(problem, lambda cost: cost.objective_s, lambda cost: cost.peak_bytes <= budget_bytes)
    hunt = hunt_for(best, solving, progress, enough=float("-inf") if enough_s is None else enough_s)
    least = floor_bytes(problem)
    if budget_bytes < least:
        scope = "every plan in the captured order"
        raise refusal(problem, budget_bytes, "infeasible", scope, solving.time_limit_s, least)
    with hunt:
        _hunt(hunt, budget_bytes, start)
    bound_s = max(0.0, min(hunt.bound, best.value))
    solution = hunt.solution(None if hunt.scope == "none" else Proof(bound_s, hunt.scope))
    if solution is None:
        raise refusal(problem, budget_bytes, hunt.status, hunt.scope, solving.time_limit_s)
    return solution


def _hunt(hunt: Hunt, budget_bytes: int, start: Runs | None) -> None:
    best, solving = hunt.best, hunt.solving
    scope = scope_of(best.problem, solving.window)
    _first_plans(best, start, budget_bytes, solving.time_limit_s)
    hunt.built_s = hunt.clock.elapsed_s()
    hunt.stop_if_enough()
    if scope.after_peaks:
        # In the smaller program first: what is easy to find there is hard to find in the larger one.
        plain = Scope(scope.window, frozenset())
        small = build(best.problem, budget_bytes, plain, needed_besides(best.problem, best.runs, plain))
        hunt.improve(small, FIRST_SHARE)
    building = hunt.clock.elapsed_s()
    program = build(best.problem, budget_bytes, scope, needed_besides(best.problem, best.runs, scope))
    hunt.built_s += hunt.clock.elapsed_s() - building
    search = hunt.run(program, FIRST_SHARE, ALONE_SHARE)
    if solving.prove and best.runs is not None and hunt.status != "interrupted" and program.scope != "full":
        full_s, hunt.status = bound_full_program(search, budget_bytes, solving.time_limit_s)
        if full_s > 0:
            hunt.bound, hunt.scope = full_s, "full"


def _first_plans(best: BestPlan, start: Runs | None, budget_bytes: int, time_limit_s: float) -> None:
    """Offers the caller's start and constructed plans."""
    deadline_s = time.monotonic() + CONSTRUCTION_SHARE * time_limit_s
    if start is not None:
        try:
            if not best.offer(without_useless(best.problem, start)):
                log.warning("the given start does not fit %d bytes and is ignored", budget_bytes)
        except (InvalidPlan, KeyError) as error:
            log.warning("the given start is no plan of this problem and is ignored: %s", error)
    made = construct(index_of(best.problem), budget_bytes, deadline_s)
    if made is not None:
        best.offer(made)
    deadline_s += CONSTRUCTION_SHARE * time_limit_s
    if best.runs is None and (known := smallest_budget(best.problem, deadline_s)) is not None:
        best.offer(known[1].runs)

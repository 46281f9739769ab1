"""Plan a problem: from a ``Problem`` and a budget to a verified ``Solution``.

    construct a plan  →  build the program around it  →  improve stretches  →  solve all of it  →  replay

The search can be stopped at any time: every better point is kept as soon as it is found, and what is
returned has always been replayed.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace

from monet.errors import InvalidPlan
from monet.planner.construction.first_plans import construct, smallest_budget
from monet.planner.memory_floor import floor_bytes
from monet.planner.problem import Problem
from monet.planner.program.windows import windows
from monet.planner.progress import Progress
from monet.planner.runs import without_useless
from monet.planner.search.best import Best, Clock, GoodEnough
from monet.planner.search.companion import has_room
from monet.planner.search.proof import bound_full_program
from monet.planner.search.refusal import _infeasible
from monet.planner.search.scope import Scope, build, needed_besides, scope_of
from monet.planner.search.search import Search
from monet.planner.solution import Runs, Solution
from monet.planner.solvers.finder import solver as find_solver

log = logging.getLogger(__name__)
CONSTRUCTION_SHARE = 0.25
"""Of the time limit: how long plans are constructed, at most."""
FIRST_SHARE, ALONE_SHARE = 0.08, 0.25
"""Until which share of the time limit stretches are improved first; ``ALONE`` where there is no companion."""


def plan_problem(
    problem: Problem,
    budget_bytes: int,
    *,
    window: int | None = None,
    time_limit_s: float = 120.0,
    gap: float = 0.01,
    solver: str = "HIGHS",
    progress: Progress | None = None,
    start: Solution | None = None,
    prove: bool = False,
    enough_s: float | None = None,
    cores: int | None = None,
) -> Solution:
    """The fastest plan found whose every moment fits in ``budget_bytes``, fixed bytes included.

    ``window``: recomputation is considered in so many stages before each tensor's last use, and right after the
    largest peaks; None chooses by size, and a window that spans all stages is the full program. ``gap``:
    relative; stop when the plan is proven within it. ``start``: a plan to begin with; ignored if it does not
    fit. ``prove``: afterwards, spend up to ``time_limit_s`` once more to bound the full program.
    ``enough_s``: stop at any plan of so many seconds or less, or once there is proven to be none.
    ``cores``: how many may be busy at once; None is all that this process may use. ``progress`` is called from
    this thread, about 20 times a second during solves. Equal inputs give equal plans when no solve, round or phase
    ends by its time limit, and the solve of the whole is over before its companion begins.

    Ctrl-C returns the best plan so far, with status ``interrupted``, or is raised if there is none.

    Raises:
        InfeasibleBudget: no plan fits, or none was found in time and the smallest budget known is larger.
        SolverError: the solver is missing, fails, or returns something that is not a plan.
    """
    solve = find_solver(solver)
    clock = Clock(time_limit_s, progress)
    least = floor_bytes(problem)
    if budget_bytes < least:
        raise _infeasible(
            problem,
            budget_bytes,
            "infeasible",
            "every plan in the captured order",
            time_limit_s,
            least,
        )
    best = Best(problem, lambda cost: cost.objective_s, lambda cost: cost.peak_bytes <= budget_bytes)
    enough = float("-inf") if enough_s is None else enough_s
    bound_s, status, name = 0.0, "interrupted", "none"
    built_s, size = clock.elapsed_s(), (0, 0)
    try:
        scope = scope_of(problem, window)
        _first_plans(best, start, budget_bytes, time_limit_s)
        built_s = clock.elapsed_s()
        if best.cost is not None and best.cost.objective_s <= enough:
            raise GoodEnough
        if scope.everywhere:
            # In the smaller program first: what is easy to find there is hard to find in the larger one.
            plain = Scope(scope.window, frozenset())
            small = build(problem, budget_bytes, plain, needed_besides(problem, best.runs, plain))
            Search(small, solve, best, clock, gap, enough).improve(FIRST_SHARE * time_limit_s)
        building = clock.elapsed_s()
        program = build(problem, budget_bytes, scope, needed_besides(problem, best.runs, scope))
        built_s += clock.elapsed_s() - building
        name, size = program.scope, (len(program.rows.costs), len(program.rows.lower))
        companion = has_room(solver, cores)
        search = Search(program, solve, best, clock, gap, enough, companion=companion)
        try:
            search.improve((FIRST_SHARE if companion else ALONE_SHARE) * time_limit_s)
            status = search.run()
        finally:
            bound_s = search.bound
        if prove and best.runs is not None and status != "interrupted" and program.scope != "full":
            full_s, status = bound_full_program(search, budget_bytes, time_limit_s)
            bound_s, name = (full_s, "full") if full_s > 0 else (bound_s, name)
    except GoodEnough:
        status = "good_enough"
    except KeyboardInterrupt:
        if best.runs is None:
            raise
        status = "interrupted"
    if best.runs is None or best.cost is None:
        raise _infeasible(problem, budget_bytes, status, name, time_limit_s)
    return replace(
        best.runs.solution(),
        objective_s=best.cost.objective_s,
        bound_s=max(0.0, min(bound_s, best.cost.objective_s)),
        bound_scope=name,
        peak_bytes=best.cost.peak_bytes,
        status=status,
        build_s=built_s,
        solve_s=clock.elapsed_s() - built_s,
        columns=size[0],
        rows=size[1],
    )


def _first_plans(best: Best, start: Solution | None, budget_bytes: int, time_limit_s: float) -> None:
    """Offers the caller's start and constructed plans."""
    deadline_s = time.monotonic() + CONSTRUCTION_SHARE * time_limit_s
    if start is not None:
        try:
            runs = without_useless(best.problem, Runs(start.forward, start.stages))
            if not best.offer(runs):
                log.warning("the given start does not fit %d bytes and is ignored", budget_bytes)
        except (InvalidPlan, KeyError) as error:
            log.warning("the given start is no plan of this problem and is ignored: %s", error)
    made = construct(windows(best.problem, None), budget_bytes, deadline_s)
    if made is not None:
        best.offer(made)
    deadline_s += CONSTRUCTION_SHARE * time_limit_s
    if best.runs is None and (known := smallest_budget(best.problem, deadline_s)) is not None:
        best.offer(Runs(known[1].forward, known[1].stages))

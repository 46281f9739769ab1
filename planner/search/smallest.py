"""The smallest budget: the plan with the least peak, at any cost or at a bounded one.

The program of ``program.py`` with the peak as a column: every memory row is at most ``peak``, which is what is
minimised. A bound on the plan's time is one row more. The rest of the search is the same.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from monet.errors import InfeasibleBudget, SolverError
from monet.planner.construction.first_plans import smallest_budget
from monet.planner.memory_floor import floor_bytes
from monet.planner.problem import Problem
from monet.planner.program.constraints import build_program
from monet.planner.program.memory_rows import add_memory_rows
from monet.planner.program.program import Program
from monet.planner.progress import Progress
from monet.planner.search.best import Best, Clock
from monet.planner.search.companion import has_room
from monet.planner.search.fastest import CONSTRUCTION_SHARE, plan_problem
from monet.planner.search.scope import Scope, needed_besides, scope_of
from monet.planner.search.search import Search
from monet.planner.solution import Runs, Solution
from monet.planner.solvers.finder import solver as find_solver
from monet.planner.solvers.rows import Sum

FIRST_SHARE, ALONE_SHARE = 0.2, 0.8
"""Until which share of the time limit stretches are improved first; ``ALONE`` where there is no companion."""
DESCENT_SHARE, DESCENT_STEP = 0.6, 0.12
"""Under a limit of plan time: shares of the time limit for halving budgets, and for each half."""


@dataclass(frozen=True, slots=True)
class SmallestBudget:
    """``solution``: the plan with the least ``peak_bytes`` found; its ``bound_s`` is 0, nothing is known of its time.

    ``bound_bytes``: no plan of the program named by ``solution.bound_scope`` has a smaller peak.
    """

    solution: Solution
    bound_bytes: int

    @property
    def gap(self) -> float:
        """(peak − bound) / peak, a fraction."""
        return 1.0 - self.bound_bytes / self.solution.peak_bytes


def smallest_plan(
    problem: Problem,
    most_s: float | None = None,
    *,
    window: int | None = None,
    time_limit_s: float = 120.0,
    gap: float = 0.01,
    solver: str = "HIGHS",
    progress: Progress | None = None,
    start: Solution | None = None,
    cores: int | None = None,
) -> SmallestBudget:
    """The plan of least peak whose time is at most ``most_s`` seconds (None: any time).

    Options as for ``plan_problem``; ``progress`` is told bytes instead of seconds.

    Raises:
        InfeasibleBudget: no plan is that fast.
        SolverError: no plan was found in time, or the solver is missing or fails.
    """
    solve = find_solver(solver)
    clock = Clock(time_limit_s, progress)
    limit_s = float("inf") if most_s is None else most_s
    best = Best(problem, lambda cost: cost.peak_bytes, lambda cost: cost.objective_s <= limit_s)
    bound, status, name = 0.0, "interrupted", "none"
    built_s, size = clock.elapsed_s(), (0, 0)
    try:
        options = {"window": window, "gap": gap, "solver": solver, "cores": cores}
        bound = float(max(floor_bytes(problem), _first_plans(best, start, limit_s, clock, options)))
        scope = scope_of(problem, window)
        program = _build(problem, best, scope, most_s)
        name, built_s = program.scope, clock.elapsed_s()
        size = (len(program.rows.costs), len(program.rows.lower))
        companion = has_room(solver, cores)
        search = Search(program, solve, best, clock, gap, bound=bound, companion=companion)
        try:
            search.improve((FIRST_SHARE if companion else ALONE_SHARE) * time_limit_s)
            status = search.run()
        finally:
            bound = max(bound, search.bound)
    except KeyboardInterrupt:
        if best.runs is None:
            raise
        status = "interrupted"
    if best.runs is None or best.cost is None:
        if status == "infeasible":
            raise InfeasibleBudget(f"no plan of {problem.name} takes at most {limit_s:.6g} s; allow more overhead")
        raise SolverError(
            f"no plan of {problem.name} that takes at most {limit_s:.6g} s was found in {time_limit_s:g} s"
        )
    found = replace(
        best.runs.solution(),
        objective_s=best.cost.objective_s,
        bound_scope=name,
        peak_bytes=best.cost.peak_bytes,
        status=status,
        build_s=built_s,
        solve_s=clock.elapsed_s() - built_s,
        columns=size[0],
        rows=size[1],
    )
    least = max(problem.fixed_bytes, int(np.ceil(bound - 1e-3)))
    return SmallestBudget(found, min(least, found.peak_bytes))


def _first_plans(best: Best, start: Solution | None, limit_s: float, clock: Clock, options: Mapping[str, Any]) -> int:
    """Plans to begin with: the caller's and the thriftiest known; under a limit of time, also from budgets halved
    between what is too slow and what is fast enough, since the search for time under a budget finds better plans.

    Returns a budget that was proven too small on the way, or 0.
    """
    problem = best.problem
    if start is not None:
        best.offer(Runs(start.forward, start.stages))
    known = smallest_budget(problem, time.monotonic() + CONSTRUCTION_SHARE * clock.time_limit_s)
    if known is None:
        return 0
    best.offer(Runs(known[1].forward, known[1].stages))
    if best.cost is not None and best.cost.peak_bytes <= known[0]:
        return 0
    if limit_s == float("inf"):
        return 0
    low, high, proven = known[0], keep_everything_bytes(problem), 0
    while clock.left_s() > (1 - DESCENT_SHARE) * clock.time_limit_s and high - low > max(1.0, options["gap"] * high):
        middle = (low + high) // 2
        try:
            made = plan_problem(
                problem, middle, enough_s=limit_s, time_limit_s=clock.time_limit_s * DESCENT_STEP, **options
            )
        except (InfeasibleBudget, SolverError):
            low = middle
            continue
        if made.objective_s <= limit_s and best.offer(Runs(made.forward, made.stages)):
            high = made.peak_bytes
        else:
            low = middle
            proven = middle if made.bound_s > limit_s else proven
        if made.status == "interrupted":
            raise KeyboardInterrupt
    return proven


def keep_everything_bytes(problem: Problem) -> int:
    """An upper bound on the peak of any plan: every tensor and every workspace at once."""
    tensors = sum(tensor.bytes for tensor in problem.tensors) + sum(v.bytes for v in problem.intermediates)
    workspaces = [
        max((q.workspace_bytes, q.recompute_workspace_bytes or 0)) for o in problem.forward for q in o.implementations
    ]
    workspaces += [q.workspace_bytes for o in problem.backward for q in o.implementations]
    gradients = max((operator.live_during_bytes for operator in problem.backward), default=0)
    return problem.fixed_bytes + tensors * 2 + gradients + max(workspaces, default=0)


def _build(problem: Problem, best: Best, scope: Scope, most_s: float | None) -> Program:
    """The program of least peak, in shares of the best plan's peak; without a plan, of everything kept at once."""
    most_bytes = best.cost.peak_bytes if best.cost is not None else keep_everything_bytes(problem)
    program = build_program(
        problem, most_bytes, scope.window, needed_besides(problem, best.runs, scope), scope.after_peaks
    )
    rows = program.rows
    if most_s is not None:
        rows.at_most(Sum(0.0, {column: cost for column, cost in enumerate(rows.costs) if cost}), most_s)
    rows.costs = [0.0] * len(rows.costs)
    program.peak = rows.share()
    rows.costs[program.peak] = float(most_bytes)
    add_memory_rows(program)
    return program

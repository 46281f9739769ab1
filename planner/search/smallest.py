"""The smallest budget: the plan with the least peak, at any cost or at a bounded one.

The program of ``program.py`` with the peak as a column: every memory row is at most ``peak``, which is what is
minimised. A bound on the plan's time is one row more. The rest of the search is the same. Where there is a second
memory, budgets are halved instead (``smallest_moving.py``).
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np

from monet.errors import InfeasibleBudget, SolverError
from monet.planner.construction.first_plans import smallest_budget
from monet.planner.memory_floor import floor_bytes
from monet.planner.problem import Problem
from monet.planner.program.constraints import build_program
from monet.planner.program.memory_rows import add_memory_rows
from monet.planner.program.program import Program
from monet.planner.progress import Progress
from monet.planner.search.fastest import CONSTRUCTION_SHARE, plan_problem
from monet.planner.search.incumbent import Incumbent
from monet.planner.search.scope import Scope, needed_besides, scope_of
from monet.planner.search.smallest_moving import halve_budgets
from monet.planner.search.solving import Solving
from monet.planner.search.state import SearchState, begun_state, cancelled_by_ctrl_c
from monet.planner.solution import Runs, Solution
from monet.planner.solvers.rows import Sum

FIRST_SHARE, ALONE_SHARE = 0.2, 0.8
"""Until which share of the time limit neighbourhoods are improved first; ``ALONE`` where there is no worker."""
DESCENT_SHARE, DESCENT_STEP = 0.6, 0.12
"""Under a limit of plan time: shares of the time limit for halving budgets, and for each half."""


@dataclass(frozen=True, slots=True)
class SmallestBudget:
    """``solution``: the plan with the least ``peak_bytes`` found; nothing is proven of its time.

    ``bound_bytes``: no plan of the program named by ``scope`` (as in ``Proof``) has a smaller peak.
    """

    solution: Solution
    bound_bytes: int
    scope: str

    @property
    def gap(self) -> float:
        """(peak − bound) / peak, a fraction."""
        return 1.0 - self.bound_bytes / self.solution.peak_bytes


def smallest_plan(
    problem: Problem,
    most_s: float | None = None,
    solving: Solving | None = None,
    *,
    start: Runs | None = None,
    progress: Progress | None = None,
) -> SmallestBudget:
    """The plan of least peak whose time is at most ``most_s`` seconds (None: any time).

    Other arguments as for ``plan_problem``; ``progress`` is told bytes instead of seconds, and ``solving.prove`` is not
    heeded.

    Raises:
        InfeasibleBudget: no plan is that fast.
        SolverError: no plan was found in time, or the solver is missing or fails.
    """
    solving = solving or Solving()
    limit_s = float("inf") if most_s is None else most_s
    best = Incumbent(problem, lambda cost: cost.peak_bytes, lambda cost: cost.objective_s <= limit_s)
    state = begun_state(best, solving, progress)
    with cancelled_by_ctrl_c(state.deadline):
        if problem.second is not None:

            def without_moves(time_limit_s: float) -> Solution:
                plain, less = replace(problem, second=None), replace(solving, time_limit_s=time_limit_s)
                return smallest_plan(plain, most_s, less).solution

            halve_budgets(state, limit_s, start, without_moves)
        else:
            _search(state, start, most_s, limit_s)
    solution = state.solution(None)
    if solution is None:
        if state.deadline.cancelled:
            raise KeyboardInterrupt
        if state.status == "infeasible":
            raise InfeasibleBudget(f"no plan of {problem.name} takes at most {limit_s:.6g} s; allow more overhead")
        raise SolverError(
            f"no plan of {problem.name} that takes at most {limit_s:.6g} s was found in {solving.time_limit_s:g} s"
        )
    least = max(problem.fixed_bytes, int(np.ceil(state.program_bound - 1e-3)))
    return SmallestBudget(solution, min(least, solution.peak_bytes), state.scope)


def _search(state: SearchState, start: Runs | None, most_s: float | None, limit_s: float) -> None:
    best, problem, solving = state.incumbent, state.incumbent.problem, state.solving
    state.program_bound = float(max(floor_bytes(problem), _first_plans(state, start, limit_s)))
    if state.deadline.cancelled:
        return
    program = _build(problem, best, scope_of(problem, solving.window), most_s)
    state.built_s = state.deadline.elapsed_s()
    state.run(program, state.first_s(FIRST_SHARE, ALONE_SHARE))


def _first_plans(state: SearchState, start: Runs | None, limit_s: float) -> int:
    """Plans to begin with: the caller's and the thriftiest known; under a limit of time, also from budgets halved
    between what is too slow and what is fast enough, since the search for time under a budget finds better plans.

    Returns a budget that was proven too small on the way, or 0.
    """
    best, problem, deadline = state.incumbent, state.incumbent.problem, state.deadline
    if start is not None:
        best.offer(start)
    known = smallest_budget(problem, time.monotonic() + CONSTRUCTION_SHARE * deadline.time_limit_s)
    if known is None:
        return 0
    best.offer(known[1].runs)
    if best.cost is not None and best.cost.peak_bytes <= known[0]:
        return 0
    if limit_s == float("inf"):
        return 0
    step = replace(state.solving, time_limit_s=deadline.time_limit_s * DESCENT_STEP, prove=False)
    low, high, proven = known[0], keep_everything_bytes(problem), 0
    while deadline.left_s() > (1 - DESCENT_SHARE) * deadline.time_limit_s and high - low > max(1.0, step.gap * high):
        middle = (low + high) // 2
        try:
            plan = plan_problem(problem, middle, step, enough_s=limit_s)
        except InfeasibleBudget:
            low = middle
            continue
        if plan.objective_s <= limit_s and best.offer(plan.runs):
            high = plan.peak_bytes
        else:
            low = middle
            proven = middle if plan.bound_scope == "full" and plan.bound_s > limit_s else proven
        if plan.status == "interrupted":
            state.deadline.cancellation.asked = True
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


def _build(problem: Problem, incumbent: Incumbent, scope: Scope, most_s: float | None) -> Program:
    """The program of least peak, in shares of the best plan's peak; without a plan, of everything kept at once."""
    most_bytes = incumbent.cost.peak_bytes if incumbent.cost is not None else keep_everything_bytes(problem)
    program = build_program(
        problem, most_bytes, scope.window, needed_besides(problem, incumbent.runs, scope), scope.after_peaks
    )
    rows = program.rows
    if most_s is not None:
        rows.at_most(Sum(0.0, {column: cost for column, cost in enumerate(rows.costs) if cost}), most_s)
    rows.costs = [0.0] * len(rows.costs)
    program.peak = rows.share()
    rows.costs[program.peak] = float(most_bytes)
    add_memory_rows(program)
    return program

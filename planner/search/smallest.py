"""The smallest budget: the plan with the least peak, at any cost or at a bounded one."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from monet.errors import InfeasibleBudget, SolverError
from monet.planner.problem import Problem
from monet.planner.progress import Progress
from monet.planner.search.incumbent import Incumbent
from monet.planner.search.policy import smallest
from monet.planner.search.solving import Solving
from monet.planner.search.state import begun_state, cancelled_by_ctrl_c
from monet.planner.solution import Runs, Solution


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
    solving = replace(solving or Solving(), prove=False)
    limit_s = float("inf") if most_s is None else most_s
    best = Incumbent(problem, lambda cost: cost.peak_bytes, lambda cost: cost.objective_s <= limit_s)
    state = begun_state(best, limit_s, solving, progress)
    with cancelled_by_ctrl_c(state.deadline):
        if start is not None:
            best.offer(start)
        state.follow(smallest)
    solution = state.solution(None)
    if solution is None:
        if state.status == "infeasible":
            raise InfeasibleBudget(f"no plan of {problem.name} takes at most {limit_s:.6g} s; allow more overhead")
        took_s = state.deadline.elapsed_s()
        raise SolverError(f"no plan of {problem.name} of at most {limit_s:.6g} s was found in {took_s:.3g} s")
    least = max(problem.fixed_bytes, int(np.ceil(state.program_bound - 1e-3)))
    return SmallestBudget(solution, min(least, solution.peak_bytes), state.scope)

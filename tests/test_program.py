"""The 0-1 program against exhaustion on random small problems."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from planner_problems import best_by_exhaustion, problems

from monet.errors import InfeasibleBudget
from monet.planner.planning import plan_problem
from monet.planner.problem import Problem
from monet.planner.replay import replay
from monet.planner.windows import windows

quick = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)


def cheapest(problem: Problem, budget_bytes: int, window: int | None) -> float:
    try:
        solution = plan_problem(problem, budget_bytes, window=window, gap=0.0)
    except InfeasibleBudget:
        return float("inf")
    found = replay(problem, solution)
    assert found.peak_bytes == solution.peak_bytes <= budget_bytes
    assert found.objective_s == pytest.approx(solution.objective_s)
    return solution.objective_s


@quick
@given(problem=problems(), extra=st.integers(0, 30))
def test_optimum_is_the_exhaustive_one(problem: Problem, extra: int) -> None:
    budget = problem.fixed_bytes + extra
    best = best_by_exhaustion(problem, budget, [bool(names) for names in windows(problem, None).reads])
    assume(best is not None)
    assert cheapest(problem, budget, None) == pytest.approx(best)

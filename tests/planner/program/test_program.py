"""The 0-1 program against exhaustion on random small problems, and what planning promises."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from plan_front import optimum
from planner_problems import best_by_exhaustion, chain, problems, repeated_problems
from random_examples import examples

from monet.errors import InfeasibleBudget, SolverError
from monet.planner.construction.first_plans import construct, smallest_budget
from monet.planner.problem import Problem
from monet.planner.program.constraints import build_program
from monet.planner.program.memory_rows import add_memory_rows
from monet.planner.program.readback import earlier, read_point, write_point
from monet.planner.program.windows import windows
from monet.planner.replay import cost_of_plan, replay
from monet.planner.runs import without_useless
from monet.planner.search import Solving, plan_problem
from monet.planner.solution import Runs
from monet.planner.solvers.model import Model

quick = settings(
    max_examples=examples(100), deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)


def cheapest(problem: Problem, budget_bytes: int, window: int | None) -> float:
    try:
        solution = plan_problem(problem, budget_bytes, Solving(window=window, gap=0.0))
    except InfeasibleBudget:
        return float("inf")
    found = replay(problem, solution.runs)
    assert found.peak_bytes == solution.peak_bytes <= budget_bytes
    assert found.objective_s == pytest.approx(solution.objective_s)
    assert solution.bound_s <= solution.objective_s
    return solution.objective_s


@quick
@given(problem=problems(), extra=st.integers(8, 45))
def test_full_optimum_is_the_exhaustive_one(problem: Problem, extra: int) -> None:
    budget = problem.fixed_bytes + extra
    best = best_by_exhaustion(problem, budget, [True] * len(problem.backward))
    assume(best is not None)
    assert cheapest(problem, budget, None) == pytest.approx(best)
    assert optimum(build_program(problem, budget, None)) == pytest.approx(best)


@quick
@given(problem=problems(pinned=True), extra=st.integers(8, 45))
def test_pinned_tensors_never_make_a_plan_better_than_exhaustion(problem: Problem, extra: int) -> None:
    # The program counts a pinned tensor up to its last possible read, so it may miss the optimum.
    budget = problem.fixed_bytes + extra
    best = best_by_exhaustion(problem, budget, [True] * len(problem.backward))
    assume(best is not None)
    assert best is not None
    assert cheapest(problem, budget, None) >= best * (1 - 1e-9)


@quick
@given(problem=problems(operators=5, pinned=True), extra=st.integers(10, 60))
@pytest.mark.slow
def test_a_larger_window_is_never_worse(problem: Problem, extra: int) -> None:
    budget = problem.fixed_bytes + extra
    costs = [cheapest(problem, budget, window) for window in (1, 2, 4, None)]
    for small, large in itertools.pairwise(costs):
        assert large <= small * (1 + 1e-9)


@quick
@given(problem=problems(operators=6, pinned=True), extra=st.integers(10, 60))
def test_constructed_plans_are_points_of_the_program(problem: Problem, extra: int) -> None:
    budget = problem.fixed_bytes + extra
    runs = construct(windows(problem, None), budget)
    assume(runs is not None)
    assert runs is not None
    program = build_program(problem, budget, 2, earlier(windows(problem, 2), runs))
    add_memory_rows(program)
    x = write_point(program, runs)
    assert x is not None
    arrays = program.rows.arrays()
    cost = replay(problem, runs)
    assert cost.peak_bytes <= budget
    assert arrays.cost @ x == pytest.approx(cost.objective_s)
    assert read_point(program, x) == without_useless(problem, runs)
    full = build_program(problem, budget, None)
    add_memory_rows(full)
    point = write_point(full, runs)
    assert point is not None
    if not full.windows.pinned:
        assert Model(full.rows.arrays(), point * 0, point * 0 + 1).violation(point) <= 1e-9


@quick
@given(problem=repeated_problems(), extra=st.integers(0, 30))
def test_memory_rows_ask_for_no_more_than_the_peak(problem: Problem, extra: int) -> None:
    """Of plans with operators that overwrite what they read, also when they run again, in a budget of their peak."""
    known = smallest_budget(problem)
    assume(known is not None)
    assert known is not None
    runs = construct(windows(problem, None), known[0] + extra)
    runs = _overwriting(problem, known[1].runs if runs is None else runs)
    cost = replay(problem, runs)
    program = build_program(problem, cost.peak_bytes, None)
    add_memory_rows(program)
    assume(not program.windows.pinned)
    x = write_point(program, runs)
    assert x is not None
    assert Model(program.rows.arrays(), x * 0, x * 0 + 1).violation(x) <= 1e-9


def _overwriting(problem: Problem, runs: Runs) -> Runs:
    """The plan with what overwrites an input wherever that may run, from the end on."""
    offered = {o.id: [q.name for q in o.implementations if q.overwrites is not None] for o in problem.forward}
    places = [(t, n) for t, stage in enumerate(runs.stages) for n in range(len(stage.recompute))]
    for t, n in reversed(places):
        for name in offered[runs.stages[t].recompute[n].operator]:
            again, stages = list(runs.stages[t].recompute), list(runs.stages)
            again[n] = replace(again[n], implementation=name)
            stages[t] = replace(stages[t], recompute=tuple(again))
            if cost_of_plan(problem, other := Runs(runs.forward, tuple(stages))) is not None:
                runs = other
    return runs


@quick
@given(problem=problems(operators=6))
def test_smallest_budget_is_feasible_and_found(problem: Problem) -> None:
    known = smallest_budget(problem)
    assume(known is not None)
    assert known is not None
    smallest, solution = known
    assert replay(problem, solution.runs).peak_bytes == smallest
    assert plan_problem(problem, smallest, Solving(window=2)).peak_bytes <= smallest


def test_infeasible_budget_names_the_smallest_known() -> None:
    problem = chain(8)
    known = smallest_budget(problem)
    assert known is not None
    with pytest.raises(InfeasibleBudget) as caught:
        plan_problem(problem, problem.fixed_bytes + 1)
    assert caught.value.smallest_bytes == known[0]
    assert f"{known[0]:,}" in str(caught.value)
    assert f"{problem.fixed_bytes + 1:,}" in str(caught.value)


@pytest.mark.slow
def test_less_memory_costs_more_time_and_large_budgets_recompute_nothing() -> None:
    problem = chain(10)
    total = problem.fixed_bytes + sum(tensor.bytes for tensor in problem.tensors) * 3
    free = plan_problem(problem, total)
    assert not any(stage.recompute for stage in free.runs.stages)
    known = smallest_budget(problem)
    assert known is not None
    budgets = range(known[0], free.peak_bytes + 1, max(1, (free.peak_bytes - known[0]) // 5))
    costs = [plan_problem(problem, budget, Solving(window=None, gap=0.0)).objective_s for budget in budgets]
    assert costs == sorted(costs, reverse=True)
    assert costs[0] > costs[-1]


def test_equal_inputs_give_equal_plans() -> None:
    problem = chain(10)
    known = smallest_budget(problem)
    assert known is not None
    one, other = (plan_problem(problem, known[0] + 2, Solving(gap=0.0)) for _ in range(2))
    assert one.status == other.status == "optimal"
    assert replace(one, build_s=0.0, solve_s=0.0) == replace(other, build_s=0.0, solve_s=0.0)


def test_a_given_start_is_used_or_ignored() -> None:
    problem = chain(6)
    budget = problem.fixed_bytes + sum(tensor.bytes for tensor in problem.tensors)
    plan = plan_problem(problem, budget, Solving(gap=0.0))
    again = plan_problem(problem, budget, Solving(gap=0.0), start=plan.runs)
    assert again.objective_s == pytest.approx(plan.objective_s)
    broken = replace(plan.runs, stages=plan.runs.stages[1:])
    assert plan_problem(problem, budget, Solving(gap=0.0), start=broken).objective_s == pytest.approx(plan.objective_s)


def test_unknown_solver_lists_the_installed() -> None:
    with pytest.raises(SolverError, match="HIGHS"):
        plan_problem(chain(3), 10**6, Solving(solver="NO_SUCH_SOLVER"))

"""Plans with one recomputation less, where memory is left."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from planner_problems import chain, problems

from monet.planner.construction.first_plans import fastest_plan, smallest_budget
from monet.planner.construction.kept import keep_what_fits, next_peak_bytes
from monet.planner.problem import Problem
from monet.planner.replay import replay


@given(problems(operators=5), st.floats(1.0, 2.0))
def test_what_fits_is_kept_and_the_plan_stays_one(problem: Problem, room: float) -> None:
    smallest = smallest_budget(problem)
    if smallest is None:
        return
    budget_bytes = int(smallest[0] * room)
    kept = keep_what_fits(problem, smallest[1].runs, budget_bytes)
    cost = replay(problem, kept)
    assert cost.peak_bytes <= max(budget_bytes, smallest[1].peak_bytes)
    assert cost.objective_s <= smallest[1].objective_s


@pytest.mark.parametrize("room", [0.0, 0.1, 0.3, 0.6])
def test_one_recomputation_less_does_not_fit(room: float) -> None:
    problem = chain(12)
    smallest, fastest = smallest_budget(problem), fastest_plan(problem)
    assert smallest is not None and fastest is not None
    budget_bytes = int(smallest[0] + room * (fastest.peak_bytes - smallest[0]))
    kept = keep_what_fits(problem, smallest[1].runs, budget_bytes)
    needed = next_peak_bytes(problem, kept)
    assert needed is not None and needed > budget_bytes >= replay(problem, kept).peak_bytes
    if room:
        assert replay(problem, kept).objective_s < smallest[1].objective_s


def test_nothing_is_recomputed_where_all_fits() -> None:
    problem = chain(12)
    smallest, fastest = smallest_budget(problem), fastest_plan(problem)
    assert smallest is not None and fastest is not None
    assert any(stage.recompute for stage in smallest[1].runs.stages)
    kept = keep_what_fits(problem, smallest[1].runs, fastest.peak_bytes)
    assert not any(stage.recompute for stage in kept.stages)
    assert next_peak_bytes(problem, kept) is None

"""Plans of the relaxation, filled with what there is room for."""

from __future__ import annotations

import pytest
from planner_problems import chain

from monet.planner.construction.first_plans import fastest_plan, smallest_budget
from monet.planner.replay import replay
from monet.planner.search.checkpoints import CheckpointSearch
from monet.planner.search.incumbent import Incumbent
from monet.planner.search.solving import Solving
from monet.planner.search.state import SearchState, begun_state
from monet.planner.search.walks import Filling


def state_with_a_thrifty_plan() -> SearchState:
    problem = chain(12)
    smallest, fastest = smallest_budget(problem), fastest_plan(problem)
    assert smallest is not None and fastest is not None
    budget_bytes = (smallest[0] + fastest.peak_bytes) // 2
    state = begun_state(Incumbent.fastest_within(problem, budget_bytes), budget_bytes, Solving(time_limit_s=60))
    search = CheckpointSearch(state.index, budget_bytes, state.solve, state.incumbent, state.deadline, 0.01)
    seen = (smallest[1].runs, fastest.runs)
    search.seen += [(runs, replay(problem, runs)) for runs in seen]
    state.checkpoints = search
    state.incumbent.offer(smallest[1].runs)
    return state


def test_a_plan_is_filled_and_what_it_was_is_known() -> None:
    state = state_with_a_thrifty_plan()
    before = state.incumbent.runs
    Filling(share=0.5).run(state)
    filled = state.incumbent
    assert filled.cost is not None and before is not None and filled.cost.peak_bytes <= state.budget_bytes
    assert filled.value < replay(filled.problem, before).objective_s
    assert state.unfilled == (filled.runs, before)


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_without_time_or_plans_nothing_is_filled(share: float) -> None:
    state = state_with_a_thrifty_plan()
    if share:
        state.checkpoints = None
    before = state.incumbent.runs
    Filling(share).run(state)
    assert state.incumbent.runs is before and state.unfilled is None

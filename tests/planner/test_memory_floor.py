"""The bound on every plan's memory: never above a plan, exact where one operator is all there is."""

from __future__ import annotations

import itertools
import math
import time
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from planner_problems import chain, every_run, every_stage, problems

from monet.errors import InfeasibleBudget, InvalidPlan
from monet.planner.construction import passes
from monet.planner.construction.first_plans import construct, fastest_plan, smallest_budget
from monet.planner.memory_floor import floor_bytes, floor_s
from monet.planner.problem import (
    BackwardImplementation,
    BackwardOperator,
    ForwardImplementation,
    ForwardOperator,
    Problem,
    Tensor,
)
from monet.planner.program.windows import windows
from monet.planner.replay import replay
from monet.planner.search import plan_problem
from monet.planner.solution import Runs


@settings(deadline=None)
@given(problem=problems(operators=5))
def test_no_plan_needs_less(problem: Problem) -> None:
    known = smallest_budget(problem)
    assume(known is not None)
    assert known is not None
    assert floor_bytes(problem) <= known[0]
    fastest = fastest_plan(problem)
    assert fastest is not None
    assert floor_bytes(problem) <= replay(problem, fastest.runs).peak_bytes == fastest.peak_bytes
    assert floor_s(problem) <= min(fastest.objective_s, known[1].objective_s) + 1e-12


@given(problem=problems(operators=2))
def test_no_schedule_of_a_small_problem_needs_less(problem: Problem) -> None:
    least = math.inf
    runs = [every_run(problem, operator) for operator in problem.forward]
    stages = [every_stage(problem, t, True) for t in range(len(problem.backward))]
    for forward in itertools.islice(itertools.product(*runs), 8):
        for backward in itertools.islice(itertools.product(*stages), 100):
            try:
                least = min(least, replay(problem, Runs(forward, backward)).peak_bytes)
            except InvalidPlan:
                continue
    assert floor_bytes(problem) <= least


def test_one_operator_is_all_there_is() -> None:
    problem = Problem(
        name="one",
        tensors=(Tensor("x", 100),),
        forward=(
            ForwardOperator(
                "f", (), ("x",), (ForwardImplementation("a", 1.0, 7), ForwardImplementation("b", 2.0, 3)), True
            ),
        ),
        intermediates=(),
        backward=(BackwardOperator("g", (BackwardImplementation("a", 1.0, ("x",), 20),), 0, 50),),
        fixed_bytes=1000,
    )
    assert floor_bytes(problem) == 1000 + 50 + 20 + 100
    known = smallest_budget(problem)
    assert known is not None and known[0] == floor_bytes(problem)


def test_a_budget_below_it_is_refused_at_once_without_advice_that_cannot_help() -> None:
    problem = chain(8)
    with pytest.raises(InfeasibleBudget, match="proven for every plan in the order that is counted") as caught:
        plan_problem(problem, floor_bytes(problem) - 1)
    assert "window" not in str(caught.value) and "time limit" not in str(caught.value)
    assert caught.value.smallest_bytes is not None and caught.value.counted_bytes == floor_bytes(problem)


def test_a_budget_below_what_any_plan_holds_says_so() -> None:
    problem = replace(chain(8), fixed_bytes=1000)
    said = r"fits in 999 bytes: what is there in any plan .* takes 1,000 bytes"
    with pytest.raises(InfeasibleBudget, match=said) as caught:
        plan_problem(problem, 999)
    assert "smaller batch" not in str(caught.value)


def test_a_deadline_that_is_over_leaves_the_fastest_plan() -> None:
    problem = chain(30)
    past = time.monotonic() - 1.0
    known, fastest = smallest_budget(problem, past), fastest_plan(problem)
    assert known is not None and fastest is not None
    assert known[0] == fastest.peak_bytes and not any(stage.recompute for stage in known[1].runs.stages)
    unhurried = smallest_budget(problem)
    assert unhurried is not None and unhurried[0] < known[0]
    assert construct(windows(problem, None), unhurried[0], past) is None


def test_plans_that_run_everything_again_are_not_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the square of the length of the model: too many to put in order, and far too slow to train with."""

    def recomputed() -> int:
        known = smallest_budget(chain(30))
        assert known is not None
        return sum(len(stage.recompute) for stage in known[1].runs.stages)

    anything = recomputed()
    monkeypatch.setattr(passes, "MOST_AGAIN", anything - 1)
    assert 0 < recomputed() < anything

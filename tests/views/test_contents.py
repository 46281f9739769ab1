"""What buffers are for, and what is in memory when: against a count that goes tick by tick."""

from __future__ import annotations

import pytest
from random_plans import random_plan

from monet.lab.views.contents import KINDS, TEMPORARY, kinds, last_tick, loads_by_step, peak
from monet.lab.views.overview import operator_of, overview
from monet.plans.format import PlanStep
from monet.plans.plan import Plan


@pytest.mark.parametrize("seed", range(30))
def test_loads_are_those_of_the_buffers(seed: int) -> None:
    plan = random_plan(seed)
    named = kinds(plan)
    stops = [*(step.begin for step in plan.steps[1:]), last_tick(plan)]
    by_tick = [
        tuple(
            sum(b.bytes for b, kind in zip(plan.buffers, named, strict=True) if kind == row and b.begin <= tick < b.end)
            for row in KINDS
        )
        for tick in range(last_tick(plan))
    ]
    for step, stop, counts in zip(plan.steps, stops, loads_by_step(plan), strict=True):
        assert counts in by_tick[step.begin : stop]
        assert sum(counts) == max(map(sum, by_tick[step.begin : stop]))
    most = peak(plan)
    if most is None:
        assert not plan.buffers
        return
    assert most.load_bytes == max(map(sum, by_tick)) == sum(b.bytes for b in most.buffers)
    assert plan.steps[most.step].begin <= most.tick < stops[most.step]
    assert list(most.buffers) == sorted(most.buffers, key=lambda b: -b.bytes)


@pytest.mark.parametrize("seed", range(10))
def test_what_nothing_writes_is_temporary(seed: int) -> None:
    plan = random_plan(seed)
    written = {number for step in plan.steps for number in step.writes.values()}
    for buffer, kind in zip(plan.buffers, kinds(plan), strict=True):
        assert (kind == TEMPORARY) == (buffer.id not in written)
        assert (kind == "gradient") == buffer.leaves
        if kind == "recomputed":
            assert plan.steps[buffer.first].kind == "recompute"


def test_a_plan_without_buffers() -> None:
    step = PlanStep("forward", "add", "aten", {}, {}, (None,), (64,), 0)
    plan = Plan(100, 0, 0, 10, {"parameters": 10}, (step,), ())
    assert peak(plan) is None and loads_by_step(plan) == ((0,) * len(KINDS),)


def test_figures_that_a_solver_does_not_give() -> None:
    plan = random_plan(1)
    assert overview(plan).overhead is None and overview(plan).predicted_s == 0.5
    odd = Plan(
        1, 0, 0, 0, {}, (), (), solver={"objective_s": "fast", "baseline_s": True, "status": 3}, model={"name": 7}
    )
    found = overview(odd)
    assert (found.predicted_s, found.eager_s, found.status, found.name) == (None, None, None, "a model without a name")


@pytest.mark.parametrize(
    ("node", "operator"),
    [
        ("convolution_12", "convolution"),
        ("convolution", "convolution"),
        ("max_pool2d_with_indices_1", "max_pool2d_with_indices"),
        ("relu_1.bits", "relu.bits"),
        ("convolution_backward_3_input", "convolution_backward_input"),
    ],
)
def test_operators_of_nodes(node: str, operator: str) -> None:
    assert operator_of(node) == operator

"""Models that people train, small: captured as eager runs them, planned at two budgets, and as large as promised."""

from __future__ import annotations

import copy
from importlib.util import find_spec

import pytest
from eager_reference import compare_steps
from evaluation import compare_with_eager, evaluate
from model_zoo import MODELS
from peak_meter import measured_peak_bytes

from monet.capture import capture
from monet.ops.catalogue import catalogue
from monet.pipeline.planning import plan_prepared, plan_smallest
from monet.pipeline.preparation import prepare
from monet.planner.search import Solving

QUICK = ("unet3d",)
# The loss of one model is a number, and another's logits are thousands: a larger rate drives some to infinity.
RATE = 1e-4

pytestmark = [
    pytest.mark.usefixtures("hasty_orders"),
    pytest.mark.skipif(
        any(find_spec(package) is None for package in ("torchvision", "transformers", "monai")),
        reason="needs the models extra",
    ),
]


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in MODELS])
def test_planned_steps_equal_eager_and_hold_what_is_promised(name: str) -> None:
    case = MODELS[name]
    model = case.model()
    args, kwargs = case.inputs(0)
    captured = capture(model, args, kwargs)
    env = evaluate(catalogue(captured.graph), captured, copy.deepcopy(model), [*args, *kwargs.values()])
    compare_with_eager(captured, env, copy.deepcopy(model), args, kwargs)
    prepared = prepare(model, args, kwargs)
    full = plan_prepared(prepared, "100%", Solving(time_limit_s=5)).plan
    smallest = plan_smallest(prepared, solving=Solving(time_limit_s=5)).plan
    assert smallest.peak_bytes <= full.peak_bytes
    for plan in (full, smallest):
        assert measured_peak_bytes(copy.deepcopy(model), plan, case.inputs) == plan.peak_bytes
        compare_steps(model, plan, case.inputs, rate=RATE)

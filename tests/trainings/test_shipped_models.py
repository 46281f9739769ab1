"""The shipped models at a small size: three SGD steps equal eager's at budgets from 100 % to the smallest feasible."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
import torch
from eager_reference import compare_steps
from smallest_budget import at_smallest_budget

import monet
from monet.models.config import InputSpec, load_config
from monet.models.model_loading import build_model
from monet.models.sample_inputs import make_inputs

pytestmark = pytest.mark.slow

SIZES = {
    "resnet50": (4, 3, 64, 64),
    "vgg16": (2, 3, 64, 64),
    "googlenet": (4, 3, 64, 64),
    "mobilenet_v2": (4, 3, 64, 64),
    "unet": (2, 3, 64, 64),
}


@pytest.mark.parametrize("name", SIZES)
def test_three_steps_at_every_budget(name: str) -> None:
    config = load_config(f"{name}.yaml")
    assert isinstance(config.inputs, tuple)
    shape = (*SIZES[name][:1], config.inputs[0].shape[1], *SIZES[name][2:])
    config = config.model_copy(update={"inputs": (InputSpec(shape=shape),)})
    model = build_model(config)

    def inputs(seed: int) -> tuple[Sequence[torch.Tensor], Mapping[str, torch.Tensor]]:
        return make_inputs(config, seed)

    args, kwargs = inputs(0)
    full = monet.plan(model, args, kwargs, budget="100%", time_limit_s=30)
    smallest = at_smallest_budget(
        lambda budget: monet.plan(model, args, kwargs, budget=budget, time_limit_s=30), full.fixed_bytes + 1
    )
    budget = smallest.budget_bytes
    plans = [full, smallest]
    for share in (70, 35):
        between = smallest.peak_bytes + (full.peak_bytes - smallest.peak_bytes) * share // 100
        plans.append(monet.plan(model, args, kwargs, budget=max(between, budget), time_limit_s=30))
    for plan in plans:
        assert plan.peak_bytes <= plan.budget_bytes
        # Cotangents are of size 1 an output, a thousand of them: a larger rate drives VGG to infinity in eager, too.
        compare_steps(model, plan, inputs, rate=1e-4)

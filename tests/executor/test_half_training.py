"""Whole training steps in bfloat16, and with bfloat16 data and float32 parameters: bit by bit eager's, buffers too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from eager_reference import compare_steps, is_exact
from torch import nn

from monet.ops.catalogue import Catalogue
from monet.ops.measuring.profiling import Profile, profile
from monet.ops.measuring.signature import signature
from monet.ops.offers.offering import Offering
from monet.pipeline.planning import plan_prepared, plan_smallest
from monet.pipeline.preparation import prepare
from monet.planner.search import Solving

_f = nn.functional


class Norms(nn.Module):
    """A norm of each kind, activations with bits, and dropout, around convolutions; channels-last for some."""

    def __init__(self, *, channels_last: bool = False, evaluation: bool = False) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.batch, self.frozen = nn.BatchNorm2d(8), nn.BatchNorm2d(8)
        self.group, self.layer, self.instance = nn.GroupNorm(2, 8), nn.LayerNorm(6), nn.InstanceNorm2d(8, affine=True)
        self.frozen.train(not evaluation)
        self.memory_format = torch.channels_last if channels_last else torch.contiguous_format

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = _f.leaky_relu(self.batch(self.first(x.contiguous(memory_format=self.memory_format))), 0.1)
        # Input gradients of channels-last convolutions have tests of their own.
        inner = x if self.memory_format is torch.channels_last else self.second(x)
        x = _f.hardsigmoid(self.frozen(inner)) + _f.relu6(x)
        x = _f.dropout(self.group(x.contiguous()), 0.2, training=self.training)
        return torch.tanh(_f.elu(self.layer(self.instance(x))))


class Autocast(nn.Module):
    """Convolutions in bfloat16, parameters and buffers in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Norms()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out: torch.Tensor = self.inner(x)
        return out.float()


CASES: dict[str, tuple[Callable[[], nn.Module], torch.dtype]] = {
    "bfloat16": (Norms, torch.bfloat16),
    "channels_last": (lambda: Norms(channels_last=True), torch.bfloat16),
    "evaluation": (lambda: Norms(evaluation=True), torch.bfloat16),
    "autocast": (Autocast, torch.float32),
}
Inputs = tuple[tuple[torch.Tensor, ...], dict[str, torch.Tensor]]


def _inputs(dtype: torch.dtype) -> Callable[[int], Inputs]:
    def make(seed: int) -> Inputs:
        # So many that they need more memory than a convolution asks for meanwhile: 0.1 MB with some instruction sets.
        return (torch.randn(64, 3, 6, 6, generator=torch.Generator().manual_seed(seed)).to(dtype),), {}

    return make


@pytest.mark.parametrize("case", CASES)
@pytest.mark.sampled(2)
def test_steps_of_least_memory_are_bitwise(case: str) -> None:
    make, dtype = CASES[case]
    torch.manual_seed(0)
    model = make().to(dtype)

    inputs = _inputs(dtype)
    prepared = prepare(model, *inputs(0), offering=Offering(exact=True))
    plan = plan_smallest(prepared, solving=Solving(time_limit_s=5)).plan
    assert plan.peak_bytes < prepared.eager.peak_bytes
    assert is_exact(compare_steps(model, plan, inputs))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_steps_from_bits_are_bitwise(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every gradient that can be made from bits is, in memory of its own and in place; eager's masks are theirs."""

    def slow_without(offers: Catalogue, **options: Any) -> Profile:
        measured = profile(offers, **options)
        times = dict(measured.measurements)
        for named in offers.backward.values():
            if any(name.startswith("from-bits") for name in named):
                others = [signature(i, offers.values) for n, i in named.items() if not n.startswith("from-bits")]
                times.update({key: replace(times[key], time_s=1.0) for key in others})
        return replace(measured, measurements=times)

    monkeypatch.setattr("monet.pipeline.preparation.profile", slow_without)
    torch.manual_seed(0)
    model, inputs = Norms().to(dtype), _inputs(dtype)
    plan = plan_prepared(
        prepare(model, *inputs(0), offering=Offering(exact=True)), "10GB", Solving(time_limit_s=5)
    ).plan
    used = [step for step in plan.steps if step.implementation.startswith("from-bits")]
    assert len(used) == 4  # leaky_relu, hardsigmoid, relu6, dropout
    assert is_exact(compare_steps(model, plan, inputs))

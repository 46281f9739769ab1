"""Models that decide by values: planned along the path that is expected, and never along another one."""

from __future__ import annotations

import copy
import logging
from typing import Any

import pytest
import torch
from eager_reference import assert_same_gradients, compare_steps
from peak_meter import measured_peak_bytes
from torch import nn

import monet
from monet.errors import CaptureError, ExecutionError, PlanMismatch

pytestmark = pytest.mark.usefixtures("hasty_orders")


class Clamps(nn.Module):
    """As DETR does it: where something is not finite, all of it is clamped."""

    def __init__(self, normed: bool = False) -> None:
        super().__init__()
        self.first, self.drop, self.head = nn.Linear(8, 16), nn.Dropout(0.3), nn.Linear(16, 4)
        self.norm = nn.BatchNorm1d(16) if normed else nn.Identity()

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        hidden = self.drop(self.norm(self.first(x)))
        if not torch.isfinite(hidden).all():
            hidden = hidden.nan_to_num(0.0).clamp(-1, 1)
        if mask.any().item():
            hidden = hidden.masked_fill(mask, 0.0)
        out: torch.Tensor = self.head(hidden)
        return out


def inputs(seed: int = 0) -> tuple[tuple[torch.Tensor, ...], dict[str, torch.Tensor]]:
    x = torch.randn(5, 8, generator=torch.Generator().manual_seed(seed))
    return (x, torch.zeros(5, 1, dtype=torch.bool)), {}


def masked() -> tuple[torch.Tensor, torch.Tensor]:
    (x, mask), _ = inputs(9)
    mask[2] = True
    return x, mask


def test_the_expected_path_is_planned_and_equals_eager() -> None:
    model = Clamps()
    compare_steps(model, monet.plan(model, inputs()[0], budget="100%", exact=True), inputs)


def test_another_path_is_refused_and_leaves_no_trace() -> None:
    model = Clamps()
    eager = copy.deepcopy(model)
    planned = monet.MonetModule(model, monet.plan(model, inputs()[0], budget="100%", exact=True))
    torch.manual_seed(3)
    for infinite in (True, False):
        x, mask = masked()
        given = (x * float("inf"), torch.zeros_like(mask)) if infinite else (x, mask)
        line = r"isfinite\(hidden\)\.all\(\)" if infinite else r"mask\.any\(\)\.item\(\)"
        with pytest.raises(PlanMismatch, match=f"another path.*test_value_conditions.py:.*{line}"):
            planned(*given)
    x, mask = inputs(4)[0]
    found = planned(x, mask)
    torch.manual_seed(3)
    expected = eager(x, mask)
    assert torch.equal(found, expected)  # the calls that were refused drew nothing
    found.sum().backward()
    expected.sum().backward()
    assert_same_gradients(model, eager)


@pytest.mark.parametrize("rule", ["eager", "replan"])
def test_apply_runs_another_path_without_the_plan(rule: Any, caplog: pytest.LogCaptureFixture) -> None:
    model = Clamps()
    eager = copy.deepcopy(model)
    monet.apply(model, budget="1MB", exact=True, on_mismatch=rule, progress=False)
    with caplog.at_level(logging.WARNING):
        for given in (inputs(1)[0], masked(), inputs(2)[0]):
            results = []
            for one in (model, eager):
                torch.manual_seed(5)
                one.zero_grad()
                one(*given).square().sum().backward()
                results.append([parameter.grad for parameter in one.parameters()])
            assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
    applied = monet.applied(model)
    assert (applied.planned_calls, applied.eager_calls, len(applied.plans)) == (2, 1, 1)
    assert "takes another path than the one that was planned" in caplog.text


def test_where_buffers_have_changed_the_call_fails() -> None:
    model = Clamps(normed=True)
    monet.apply(model, budget="1MB", progress=False)
    model(*inputs()[0]).sum().backward()
    with pytest.raises(ExecutionError, match="has been changed, so that it cannot be called again"):
        model(*masked())


def test_other_conditions_and_whole_steps_are_refused() -> None:
    class ByValue(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out = super().forward(x)
            return out * 2 if out.sum() > 0 else out

    with pytest.raises(CaptureError, match="depends on the values of tensors"):
        monet.plan(ByValue(8, 8), inputs()[0][:1], budget="1MB")
    model = Clamps()
    with pytest.raises(CaptureError, match="decides by values, and a step that updates the weights"):
        monet.optimize(
            model, inputs()[0], loss_fn=lambda out, target: (out - target).square().sum(),
            sample_targets=torch.zeros(5, 4), optimizer=torch.optim.SGD(model.parameters(), 0.1), budget="1MB",
        )  # fmt: skip


def test_what_is_asserted_of_a_number_is_compared() -> None:
    class Asserts(nn.Linear):
        def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            assert lengths.max().item() <= x.shape[1]
            assert lengths[0].item() == 1 and lengths[1].item() != 7
            assert lengths.sum().item(), "nothing is there"
            return super().forward(x) * (lengths > 2).float()[:, None]

    model = Asserts(8, 4)
    (x, _), lengths = inputs()[0], torch.tensor([1, 2, 3, 8, 8])
    planned = monet.MonetModule(model, monet.plan(model, (x, lengths), budget="100%", exact=True))
    assert torch.equal(planned(x, lengths), copy.deepcopy(model)(x, lengths))
    with pytest.raises(PlanMismatch, match=r"another path.*assert lengths\.max\(\)\.item\(\)"):
        planned(x, lengths + 1)
    with pytest.raises(PlanMismatch, match=r"another path.*assert lengths\[0\]\.item\(\) == 1"):
        planned(x, lengths - 1)


def test_parameters_of_a_distribution_are_compared() -> None:
    class Encodes(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            mean, scale = super().forward(x).chunk(2, dim=1)
            # Dynamo turns these checks off for the process, once it has compiled anything.
            return torch.distributions.Normal(mean, scale.exp() + 1e-3, validate_args=True).rsample()

    model = Encodes(8, 8)
    x, _ = inputs()[0]
    planned = monet.MonetModule(model, monet.plan(model, (x,), budget="100%", exact=True))
    eager = copy.deepcopy(model)
    results = []
    for one in (planned, eager):
        torch.manual_seed(0)
        results.append(one(x))
    assert torch.equal(*results)
    with pytest.raises(PlanMismatch, match="another path"):
        planned(x * float("nan"))


def test_the_peak_with_conditions_is_the_promise_to_the_byte() -> None:
    model = Clamps()
    plan = monet.plan(model, inputs()[0], budget="1MB", exact=True)
    assert measured_peak_bytes(model, plan, inputs) == plan.peak_bytes

"""Gradients that add up over several batches: ``accumulate=True``."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from usage_cases import USAGES

import monet
from monet.errors import ExecutionError
from monet.pipeline.preparation import Preparing, prepare


def _net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 3))


def _rows() -> torch.Tensor:
    return torch.randn(5, 6, generator=torch.Generator().manual_seed(1))


def _planned(model: nn.Module, **options: Any) -> monet.MonetModule:
    return monet.MonetModule(model, monet.plan(model, (_rows(),), budget="1GB", exact=True, **options))


def _micro_batches(net: nn.Module, optimizer: torch.optim.Optimizer, *, steps: int = 2, batches: int = 3) -> None:
    for step in range(steps):
        optimizer.zero_grad()
        for batch in range(batches):
            torch.manual_seed(10 * step + batch)
            (net(torch.randn(5, 6)).square().mean() / batches).backward()
        optimizer.step()


@pytest.mark.parametrize("accumulate", [True, False])
def test_gradients_add_up_over_micro_batches(accumulate: bool, caplog: pytest.LogCaptureFixture) -> None:
    model = _net()
    planned, eager = _planned(model, accumulate=accumulate), copy.deepcopy(model)
    for net in (planned, eager):
        _micro_batches(net, torch.optim.AdamW(net.parameters(), 1e-2))
    for p, q in zip(planned.parameters(), eager.parameters(), strict=True):
        assert p.grad is not None and q.grad is not None and torch.equal(p.grad, q.grad) and torch.equal(p, q)
        assert p.grad.stride() == q.grad.stride()
    assert ("accumulate=True" in caplog.text) != accumulate  # the plan counts one set of gradients, and two are there


def test_accumulation_needs_no_second_set_of_gradients() -> None:
    """Gradients are in the arena until they are added, where others come after them."""
    model = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(64, 64), nn.ReLU())))
    x = torch.randn(2, 64)
    once = monet.plan(model, (x,), budget="1GB", gradients="kept")
    more = monet.plan(model, (x,), budget="1GB", accumulate=True)
    assert more.fixed == once.fixed
    largest = 64 * 64 * 4
    assert once.peak_bytes < more.peak_bytes < once.peak_bytes + 2 * largest < once.peak_bytes + once.fixed["gradients"]


def test_eagers_peak_has_the_sums_of_the_batches_before() -> None:
    """So that a share of it saved is not told too high."""
    wide = nn.Linear(256, 256, bias=False)
    once, more = (
        prepare(wide, (torch.randn(2, 256),), {}, preparing=Preparing(accumulate=accumulate))
        for accumulate in (False, True)
    )
    weight = 256 * 256 * 4
    assert 2 * weight <= once.eager_peak_bytes < 2.1 * weight  # the weight and its gradient
    assert 3 * weight <= more.eager_peak_bytes < 3.1 * weight


def test_accumulating_steps_leave_alone_what_the_loss_does_not_reach() -> None:
    usage = USAGES["several outputs"]
    args, kwargs = usage.inputs(0)
    model, eager = usage.model(), usage.model()
    planned = monet.MonetModule(model, monet.plan(model, args, kwargs, budget="1GB", exact=True, accumulate=True))
    for seed, batch in enumerate(("used", "both", "used")):
        for net in (planned, eager):
            args, kwargs = usage.inputs(seed)
            out = net(*args, **kwargs)
            loss = usage.loss(out) + (out["heads"][1][0].sum() if batch == "both" else 0.0)
            loss.backward()
            inputs = [value.grad for value in kwargs.values() if isinstance(value, torch.Tensor)]
            assert all(gradient is not None for gradient in inputs)
        for (name, p), q in zip(model.named_parameters(), eager.parameters(), strict=True):
            assert (p.grad is None) == (q.grad is None), (name, batch)
            assert p.grad is None or torch.equal(p.grad, q.grad), (name, batch)  # type: ignore[arg-type]


def test_accumulating_steps_refuse_gradient_hooks() -> None:
    model = _net()
    planned = _planned(model, accumulate=True)
    handle = model.get_parameter("0.weight").register_hook(lambda gradient: gradient)
    with pytest.raises(ExecutionError, match=r"0\.weight has gradient hooks"):
        planned(_rows())
    handle.remove()
    planned(_rows()).sum().backward()
    twin = copy.deepcopy(planned)  # captures anew, as planned
    twin.zero_grad()
    twin(_rows()).sum().backward()
    assert all(torch.equal(p.grad, q.grad) for p, q in zip(twin.parameters(), planned.parameters(), strict=True))  # type: ignore[arg-type]


class TwoTasks(nn.Module):
    """Two outputs of which a loss uses one or both."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.ones(4)), nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.tanh(x * self.a), torch.sqrt(x * self.b)


def test_a_task_that_the_loss_leaves_out_adds_nothing() -> None:
    """Its gradient would be that of zeros: here 0 / 0."""
    model = TwoTasks()
    planned = monet.MonetModule(model, monet.plan(model, (torch.rand(3, 4),), budget="1MB", accumulate=True))
    eager = copy.deepcopy(model)
    x = torch.rand(3, 4) + 0.5
    for module in (planned, eager):
        sum(out.sum() for out in module(x)).backward()
        module(torch.zeros(3, 4))[0].sum().backward()
    for name, parameter in eager.named_parameters():
        assert torch.equal(parameter.grad, planned.get_parameter(name).grad), name  # type: ignore[arg-type]

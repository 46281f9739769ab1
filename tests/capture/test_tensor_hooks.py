"""Hooks on tensors, kept gradients and inputs that are to require one: no planned backward pass would heed them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from loop_cases import HASTE
from torch import Tensor, nn

import monet
from monet.errors import CaptureError


class Asks(nn.Module):
    def __init__(self, ask: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.layer, self.ask = nn.Linear(8, 8), ask

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x)
        self.ask(y)
        return y.tanh()


def _halves(y: Tensor) -> None:
    y.register_hook(lambda gradient: gradient * 0.5)


@pytest.mark.parametrize(
    ("ask", "said"), [(_halves, "registers a hook"), (lambda y: y.retain_grad(), "gradient of a tensor retained")]
)
def test_what_is_asked_of_autograd_is_refused(ask: Callable[[Tensor], Any], said: str) -> None:
    model, x = Asks(ask), torch.ones(4, 8)
    with pytest.raises(CaptureError, match=rf"{said}.*test_tensor_hooks\.py:\d+"):
        monet.plan(model, x, budget="100%", **HASTE)


def test_an_input_that_is_to_require_a_gradient_is_refused() -> None:
    class Saliency(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.requires_grad_())

    with pytest.raises(CaptureError, match="has an input require a gradient"):
        monet.plan(Saliency(8, 8), torch.ones(4, 8), budget="100%", **HASTE)
    monet.plan(Saliency(8, 8), torch.ones(4, 8, requires_grad=True), budget="100%", **HASTE)  # it does


def test_a_part_with_a_hook_runs_as_it_is() -> None:
    torch.manual_seed(0)
    eager = nn.Sequential(nn.Linear(8, 8), Asks(_halves), nn.Linear(8, 8))
    planned = copy.deepcopy(eager)
    monet.apply(planned, budget="100%", exact=True, **HASTE)
    for model in (eager, planned):
        model(torch.ones(4, 8)).square().sum().backward()
    for p, q in zip(eager.parameters(), planned.parameters(), strict=True):
        assert p.grad is not None and q.grad is not None and torch.equal(p.grad, q.grad)

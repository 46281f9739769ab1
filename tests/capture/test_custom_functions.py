"""A backward of the user's own is never replaced in silence by another one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from eager_reference import compare_steps
from smallest_budget import at_smallest_budget
from torch import nn
from torch.utils.checkpoint import checkpoint

import monet
from monet.errors import CaptureError


class Reversed(torch.autograd.Function):
    """Gradient reversal, as domain-adversarial training has it."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return -gradients[0]


class Adversarial(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.second(Reversed.apply(self.first(x)))  # type: ignore[no-untyped-call]
        return out


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.body, self.head, self.reentrant = nn.Sequential(nn.Linear(8, 16), nn.Tanh()), nn.Linear(16, 4), reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(checkpoint(self.body, x, use_reentrant=self.reentrant))
        return out


def _inputs(seed: int) -> tuple[tuple[torch.Tensor, ...], dict[str, torch.Tensor]]:
    return (torch.randn(4, 8, generator=torch.Generator().manual_seed(seed)),), {}


def test_a_function_with_a_backward_of_its_own_is_refused() -> None:
    real = torch.autograd.Function.apply
    with pytest.raises(CaptureError, match=r"Reversed, a torch\.autograd\.Function.*custom_op"):
        monet.plan(Adversarial(), _inputs(0)[0][0], budget="1MB")  # one tensor need not be in a tuple
    assert torch.autograd.Function.apply == real


@torch.library.custom_op("monet_tests::tripled", mutates_args=())
def tripled(x: torch.Tensor) -> torch.Tensor:
    return x * 3


@tripled.register_fake
def _tripled_shape(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def _saves_its_input(ctx: Any, inputs: tuple[torch.Tensor], output: torch.Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _another_derivative(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
    x: torch.Tensor = ctx.saved_tensors[0]
    return gradient * 5 * x


tripled.register_autograd(_another_derivative, setup_context=_saves_its_input)


class Registered(nn.Sequential):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self[1](tripled(self[0](x)))
        return out


def test_a_registered_operator_keeps_its_own_derivative() -> None:
    model = Registered(nn.Linear(8, 8), nn.Linear(8, 4))

    def plan(budget: str | int) -> monet.Plan:
        return monet.plan(model, _inputs(0)[0], budget=budget, exact=True)

    for made in (plan("100%"), at_smallest_budget(plan)):
        compare_steps(model, made, _inputs)


def test_reentrant_checkpoints_are_refused_and_others_are_planned() -> None:
    with pytest.raises(CaptureError, match="use_reentrant=False"):
        monet.plan(Checkpointed(True), _inputs(0)[0], budget="1MB")
    model = Checkpointed(False)
    compare_steps(model, monet.plan(model, _inputs(0)[0], budget="1MB", exact=True), _inputs)

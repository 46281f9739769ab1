"""A backward of the user's own is never replaced in silence by another one."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from eager_reference import assert_same_gradients, compare_steps
from smallest_budget import at_smallest_budget
from torch import nn
from torch.utils.checkpoint import checkpoint

import monet
from monet.errors import CaptureError, PlanMismatch


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


class StraightThrough(torch.autograd.Function):
    """Rounds; its derivative is 1 within a range, and it has an argument that is no tensor."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, steps: float) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.steps = steps
        return torch.round(x * steps) / steps

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        (x,) = ctx.saved_tensors
        return gradients[0] * (x.abs() <= 1) * ctx.steps, None


class InPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(x)
        return x.mul_(3)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0] * 7


class TwoResults(torch.autograd.Function):
    """One of which has no derivative; its context is set up apart."""

    @staticmethod
    def forward(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x + y, (x * y).detach()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[torch.Tensor, ...], output: tuple[torch.Tensor, ...]) -> None:
        ctx.save_for_backward(*inputs)
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = ctx.saved_tensors
        return gradients[0] * y, gradients[0] * x * 5


class Decides(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0] if bool((gradients[0] > 0).all()) else -gradients[0]


def _two(x: torch.Tensor) -> torch.Tensor:
    both, product = TwoResults.apply(x, x * 2)  # type: ignore[no-untyped-call]
    result: torch.Tensor = both + product
    return result


class Applies(nn.Sequential):
    def __init__(self, function: Callable[[torch.Tensor], Any]) -> None:
        super().__init__(nn.Linear(8, 8), nn.Linear(8, 4))
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self[1](self.function(self[0](x)))
        return out


FUNCTIONS: dict[str, Callable[[torch.Tensor], Any]] = {
    "reversal": Reversed.apply,
    "straight through": lambda x: StraightThrough.apply(x, 8.0),  # type: ignore[no-untyped-call]
    "in place": lambda x: InPlace.apply(x * 1.0),  # type: ignore[no-untyped-call]
    "two results": _two,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_keeps_its_own_backward(name: str) -> None:
    torch.manual_seed(0)
    model, real = Applies(FUNCTIONS[name]), torch.autograd.Function.apply

    def plan(budget: str | int) -> monet.Plan:
        return monet.plan(model, _inputs(0)[0][0], budget=budget, exact=True)  # one tensor need not be in a tuple

    for made in (plan("100%"), at_smallest_budget(plan)):
        compare_steps(model, made, _inputs)
    assert torch.autograd.Function.apply == real


def test_a_function_keeps_its_own_backward_under_autocast() -> None:
    model = Adversarial()
    eager, (x,) = copy.deepcopy(model), _inputs(0)[0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        planned = monet.MonetModule(model, monet.plan(model, (x,), budget="100%", exact=True))
        outputs = planned(x), eager(x)
    for output in outputs:
        output.float().square().sum().backward()
    assert torch.equal(*outputs)
    assert_same_gradients(model, eager)


def test_another_backward_is_another_model(monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = Adversarial(), _inputs(0)[0]
    planned = monet.MonetModule(model, monet.plan(model, inputs, budget="100%", exact=True))
    planned(*inputs)
    monkeypatch.setattr(Reversed, "backward", staticmethod(lambda ctx, gradient: gradient * 3))
    with pytest.raises(PlanMismatch, match=r"Reversed\.backward was replaced after planning"):
        planned(*inputs)
    compare_steps(model, monet.plan(model, inputs, budget="100%", exact=True), _inputs)


def test_what_cannot_be_traced_with_its_backward_is_refused() -> None:
    with pytest.raises(CaptureError, match=r"Decides, a torch\.autograd\.Function.*custom_op"):
        monet.plan(Applies(Decides.apply), _inputs(0)[0], budget="1MB")
    # What was kept of it before is found in the results alone: by no part of the model.
    beside = nn.Sequential(Applies(FUNCTIONS["reversal"]), nn.GRU(4, 4))
    with pytest.raises(CaptureError, match=r"Reversed, a torch\.autograd\.Function.*custom_op"):
        monet.plan(beside, _inputs(0)[0], budget="1MB")


@pytest.mark.slow
def test_in_a_part_of_a_model_it_runs_as_it_is() -> None:
    beside = nn.Sequential(Adversarial(), nn.GRU(4, 4))
    plan = monet.plan(beside, _inputs(0)[0], budget="1MB", exact=True)
    assert plan.fixed["islands"] > 0
    compare_steps(beside, plan, _inputs)


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


@pytest.mark.slow
def test_reentrant_checkpoints_are_refused_and_others_are_planned() -> None:
    with pytest.raises(CaptureError, match="use_reentrant=False"):
        monet.plan(Checkpointed(True), _inputs(0)[0], budget="1MB")
    model = Checkpointed(False)
    compare_steps(model, monet.plan(model, _inputs(0)[0], budget="1MB", exact=True), _inputs)

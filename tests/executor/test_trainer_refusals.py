"""What a trainer refuses, and that it changes nothing."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from trainer_cases import (
    OPTIMIZERS,
    EagerStep,
    assert_same,
    both_step,
    case_loss,
    case_model,
    images,
    optimize_case,
)

import monet
from monet.errors import CaptureError, ConfigError, ExecutionError, InfeasibleBudget, PlanMismatch

pytestmark = pytest.mark.usefixtures("hasty_orders")


# What is refused before planning.
def _refused(match: str, error: type[Exception] = ConfigError, **change: Any) -> None:
    model = case_model("residual")
    arguments: dict[str, Any] = {
        "loss_fn": case_loss,
        "optimizer": torch.optim.SGD(model.parameters(), 0.1),
        "budget": "90%",
    }
    arguments.update({name: made(model) if name == "optimizer" else made for name, made in change.items()})
    inputs, targets = images(0)
    with pytest.raises(error, match=match):
        monet.optimize(model, inputs, targets, **arguments)


def test_optimisers_that_cannot_be_planned_are_named() -> None:
    class Own(torch.optim.SGD):
        pass

    _refused("RMSprop", optimizer=lambda m: torch.optim.RMSprop(m.parameters()))
    _refused("Own", optimizer=lambda m: Own(m.parameters(), 0.1))
    _refused("differentiable", optimizer=lambda m: torch.optim.SGD(m.parameters(), 0.1, differentiable=True))
    _refused("a float", optimizer=lambda m: torch.optim.Adam(m.parameters(), torch.tensor(0.1)))
    _refused(
        r"model\.head\.weight", optimizer=lambda m: torch.optim.SGD([*m.stem.parameters(), *m.body.parameters()], 0.1)
    )
    _refused("another copy", optimizer=lambda m: torch.optim.SGD(copy.deepcopy(m).parameters(), 0.1))


def test_losses_that_are_no_scalar_are_refused() -> None:
    _refused(r"shape \(6, 5\)", loss_fn=lambda o, t: o * 2)
    _refused("does not depend", loss_fn=lambda o, t: (o.detach() * 2).sum())
    _refused("returned an object of type float", loss_fn=lambda o, t: 2.0, error=CaptureError)


def test_budgets_and_bounds_are_checked() -> None:
    _refused("clip_grad_norm", clip_grad_norm=0.0)
    _refused("exactly one", budget=None, error=TypeError)
    _refused("No plan", budget="1KB", error=InfeasibleBudget)


# What is refused at a call: nothing has changed then.
def test_misuse_is_refused_and_changes_nothing() -> None:
    model, make = case_model("residual"), OPTIMIZERS["sgd, momentum, decay"]
    eager = EagerStep(model, make)
    trainer = optimize_case("residual", model, make)
    inputs, targets = images(0)
    before = copy.deepcopy(model.state_dict())

    def refuse(match: str, error: type[Exception], inputs: Any = inputs, targets: Any = targets) -> None:
        with pytest.raises(error, match=match):
            trainer(inputs, targets)
        assert_same(model.state_dict(), before, match)

    refuse("shape", PlanMismatch, inputs[:5], targets[:5])
    refuse("planned for inputs", PlanMismatch, {"x": inputs})
    next(model.parameters()).grad = torch.zeros_like(next(model.parameters()))
    refuse("accumulate", ExecutionError)
    trainer.optimizer.zero_grad()
    handle = next(model.parameters()).register_hook(lambda gradient: gradient)
    refuse("gradient hooks", ExecutionError)
    handle.remove()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        refuse("autocast is on", PlanMismatch)
    handle = trainer.optimizer.register_step_post_hook(lambda *_: None)
    refuse("hooks", ExecutionError)
    handle.remove()
    group = trainer.optimizer.param_groups[0]
    group["momentum"] = 0.0
    refuse("momentum False instead of True", PlanMismatch)
    group["momentum"] = 0.9
    group["params"].append(nn.Parameter(torch.zeros(1)))
    refuse("have changed", PlanMismatch)
    group["params"].pop()
    head = model.get_submodule("head")
    kept, head.bias = head.bias, nn.Parameter(torch.zeros(5))
    with pytest.raises(PlanMismatch, match="replaced"):
        trainer(inputs, targets)
    head.bias = kept
    # Momentum begins with the first step that is made, with a buffer that a refused one may have made.
    for seed in range(2):
        both_step(trainer, eager, images(seed), seed)
    assert_same(model.state_dict(), eager.model.state_dict(), "model")


def test_parameters_of_one_memory_are_refused() -> None:
    """Parts of a flat tensor, as some optimisers lay them out."""
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    flat, begin = torch.cat([p.detach().flatten() for p in model.parameters()]), 0
    for p in model.parameters():
        p.data, begin = flat[begin : begin + p.numel()].view_as(p), begin + p.numel()
    x = torch.ones(4, 8)
    with pytest.raises(ConfigError, match=r"parameters model\.0\.weight and model\.0\.bias are in one memory"):
        monet.optimize(
            model, x, x, loss_fn=nn.functional.mse_loss, optimizer=torch.optim.SGD(model.parameters(), 0.1),
            budget="1MB",
        )  # fmt: skip

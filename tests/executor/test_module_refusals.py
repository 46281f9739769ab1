"""What a planned module refuses, and what it says."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from loop_cases import HASTE
from module_cases import case_model, costs_by_bytes, residual_images
from small_models import Residual
from torch import nn

import monet
from monet.errors import CaptureError, ConfigError, ExecutionError, PlanMismatch
from monet.pipeline.planning import PlanResult

pytestmark = pytest.mark.usefixtures("hasty_orders")


def test_second_forward_before_backward(planned: monet.MonetModule) -> None:
    first = planned(residual_images(0))
    second = planned(residual_images(1))
    with pytest.raises(ExecutionError, match="one step at a time"):
        first.backward(torch.ones_like(first))
    assert all(p.grad is None for p in planned.parameters())
    second.backward(torch.ones_like(second))


@pytest.mark.parametrize("entry", ["plan", "plan_many", "optimize", "apply", "fit", "MonetModule"])
def test_a_planned_module_is_not_planned_again(entry: str, planned: monet.MonetModule) -> None:
    x, loss = residual_images(), nn.CrossEntropyLoss()
    asked: dict[str, Callable[[], object]] = {
        "plan": lambda: monet.plan(planned, x, budget="10MB"),
        "plan_many": lambda: monet.plan_many(planned, [x], "10MB"),
        "optimize": lambda: monet.optimize(
            planned, x, loss_fn=loss, optimizer=torch.optim.SGD(planned.parameters(), 0.1), budget="10MB"
        ),
        "apply": lambda: monet.apply(planned, budget="10MB"),
        "fit": lambda: monet.fit(planned, x, memory="10MB"),
        "MonetModule": lambda: monet.MonetModule(planned, planned.plan),
    }
    with pytest.raises(ConfigError, match=r"this is a MonetModule, .*; pass the model that it was made of"):
        asked[entry]()


def test_backward_twice(planned: monet.MonetModule) -> None:
    out = planned(residual_images())
    out.backward(torch.ones_like(out), retain_graph=True)
    with pytest.raises((ExecutionError, RuntimeError)):
        out.backward(torch.ones_like(out))


def test_second_derivative_is_refused(planned: monet.MonetModule) -> None:
    """Also where no gradient of an output requires one: the penalty would be left out of a larger loss."""
    x = residual_images()
    with pytest.raises(ExecutionError, match="create_graph=True"):
        torch.autograd.grad(planned(x).sum(), x, create_graph=True)
    (gradient,) = torch.autograd.grad(planned._model(x).sum(), x, create_graph=True)  # as the message says
    gradient.square().sum().backward()


def test_a_gradient_penalty_of_an_applied_model() -> None:
    model = case_model("residual")
    monet.apply(model, budget="100%", cores=1, time_limit_s=5)
    x = residual_images()
    with pytest.raises(ExecutionError, match="create_graph=True"):
        torch.autograd.grad(model(x).sum(), x, create_graph=True)
    (gradient,) = torch.autograd.grad(model.forward(x).sum(), x, create_graph=True)
    gradient.square().sum().backward()
    model(x).sum().backward()


def test_parameter_changed_before_backward(planned: monet.MonetModule) -> None:
    out = planned(residual_images())
    with torch.no_grad():
        next(planned.parameters()).add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda x: x[:4], "shape"),
        (lambda x: x.double(), "float64"),
        (lambda x: x.detach(), None),
    ],
)
def test_inputs_unlike_the_plan(
    planned: monet.MonetModule, change: Callable[[torch.Tensor], torch.Tensor], said: str | None
) -> None:
    if said is None:
        planned(change(residual_images())).sum().backward()  # needs less than planned
        return
    with pytest.raises(PlanMismatch, match=said):
        planned(change(residual_images()))


def test_wrong_structure(planned: monet.MonetModule) -> None:
    with pytest.raises(PlanMismatch):
        planned(residual_images(), residual_images())


def test_replaced_submodule(planned: monet.MonetModule) -> None:
    planned._model.head = nn.Linear(16, 5)
    with pytest.raises(PlanMismatch, match="head"):
        planned(residual_images())


def test_plan_of_another_model(residual: PlanResult) -> None:
    with pytest.raises(PlanMismatch, match="another model"):
        monet.MonetModule(Residual(8), residual.plan)
    with pytest.raises(PlanMismatch, match="another model"):
        monet.MonetModule(nn.Sequential(nn.Conv2d(3, 4, 3)), residual.plan)


class Clocked(nn.Module):
    """Another model each time; what it holds cannot be looked into, so that it is traced each time."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.lock = nn.Linear(8, 8), threading.Lock()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.layer(x)
        return result * time.perf_counter()


EACH_TIME = r"computes something else each time it is traced.*\n.*test_module_refusals.py.*in forward"


@pytest.mark.parametrize("accumulate", [False, True])
def test_plan_of_a_model_that_is_another_one_each_time(accumulate: bool) -> None:
    model, x = Clocked(), torch.ones(4, 8)
    plan = monet.plan(model, (x,), budget="100%", accumulate=accumulate, **HASTE)
    with pytest.raises(PlanMismatch, match=EACH_TIME):
        monet.MonetModule(model, plan)


def test_plan_of_a_whole_step_that_is_another_one_each_time() -> None:
    model, x = Clocked(), torch.ones(4, 8)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    step: dict[str, Any] = {"loss_fn": nn.functional.mse_loss, "optimizer": optimizer}
    plan = monet.optimize(model, x, x, budget="100%", **step, **HASTE).plan
    with pytest.raises(PlanMismatch, match=EACH_TIME):
        monet.optimize(model, x, x, plan=plan, **step)


def test_plan_for_other_threads(residual: PlanResult) -> None:
    planned = monet.MonetModule(case_model("residual"), residual.plan)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(before + 1)
        with pytest.raises(PlanMismatch, match="threads"):
            planned(residual_images())
        with pytest.raises(PlanMismatch, match="threads"):
            monet.MonetModule(case_model("residual"), residual.plan)
    finally:
        torch.set_num_threads(before)


def test_frozen_batch_norm_is_another_plan(planned: monet.MonetModule) -> None:
    planned.stem[1].eval()
    with pytest.raises(PlanMismatch, match=r"stem\.1"):
        planned(residual_images())


def test_nothing_to_train() -> None:
    model = nn.Linear(3, 3).requires_grad_(False)
    with pytest.raises(CaptureError, match="nothing to train"):
        monet.plan(model, (torch.randn(2, 3),), budget="1GB")


def test_untraceable_model_names_the_line() -> None:
    class Branch(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.linear(x)
            return y if y.sum() > 0 else -y

    with pytest.raises(CaptureError, match=r"test_module_refusals\.py"):
        monet.plan(Branch(), (torch.randn(2, 3),), budget="1GB")


@pytest.mark.slow
def test_scale_too_small_for_the_plan_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan that takes a gradient from an output divides by the scale; a zero scale must not pass silently."""
    monkeypatch.setattr("monet.pipeline.preparation.profile", costs_by_bytes)
    layers = [m for _ in range(5) for m in (nn.Conv2d(8, 8, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU())]
    model = nn.Sequential(*layers)
    x = torch.randn(4, 8, 16, 16)
    full = monet.plan(model, (x,), {}, budget="10GB")
    for share in range(90, 40, -10):
        budget = full.fixed_bytes + full.arena_bytes * share // 100
        plan = monet.plan(model, (x,), {}, budget=budget, gap=0.0, time_limit_s=10)
        if any(step.implementation == "from-output" for step in plan.steps):
            break
    else:
        pytest.fail("no budget made the planner take a batch norm's gradient from its output")
    planned = monet.MonetModule(model, plan)
    planned(x).sum().backward()
    for m in layers:
        if isinstance(m, nn.BatchNorm2d):
            m.weight.data[0] = 0.0
    with pytest.raises(PlanMismatch, match="exact"):
        planned(x)
    exact = monet.MonetModule(model, monet.plan(model, (x,), {}, budget="10GB", exact=True))
    exact(x).sum().backward()


def test_what_takes_a_gradient_is_part_of_the_plan() -> None:
    """A parameter that is frozen after planning, an input whose gradient was not planned."""
    model, x = nn.Linear(3, 3), torch.randn(2, 3)
    planned = monet.MonetModule(model, monet.plan(model, x, budget="1MB"))
    with pytest.raises(PlanMismatch, match="input 0 has requires_grad=True, and the plan was made for False"):
        planned(x.clone().requires_grad_())
    model.bias.requires_grad_(False)
    with pytest.raises(PlanMismatch, match="bias has requires_grad=False, and the plan was made for True"):
        planned(x)


def test_an_input_of_other_strides_that_is_changed_in_place_is_not_as_planned() -> None:
    class Doubles(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x.mul_(2))

    model = Doubles(8, 8)
    planned = monet.MonetModule(model, monet.plan(model, torch.ones(4, 8), budget="100%", time_limit_s=2, cores=1))
    x = torch.ones(4, 8)
    planned(x)
    assert bool((x == 2).all())
    with pytest.raises(PlanMismatch, match="changes it in place"):
        planned(torch.ones(8, 4).t())

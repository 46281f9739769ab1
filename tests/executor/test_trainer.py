"""The whole step against eager: weights, state, loss and peak; what a trainer refuses, and that it changes nothing."""

from __future__ import annotations

import copy
import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from slow_cases import slow_but
from torch import nn
from trainer_cases import (
    MODELS,
    OPTIMIZERS,
    EagerStep,
    _maps,
    _tokens,
    assert_same,
    both_step,
    case_loss,
    case_model,
    images,
    optimize_case,
)

import monet
from monet.capture import capture
from monet.errors import MonetError, PlanMismatch
from monet.step.training_step.updates import parameter_slots, with_unit_tangent
from monet.step.training_step.whole_step import LossModule

pytestmark = pytest.mark.usefixtures("hasty_orders")


@pytest.mark.parametrize(
    ("name", "optimizer"),
    slow_but(
        [("residual", "sgd, momentum, decay"), ("residual", "adam, amsgrad"), ("residual", "adamw, fused")],
        [("residual", optimizer) for optimizer in OPTIMIZERS]
        + [("inverted", "sgd, momentum, decay"), ("transformer", "adamw")],
    ),
)
@pytest.mark.sampled(2)
def test_twenty_steps_equal_eager_bit_by_bit(name: str, optimizer: str) -> None:
    """Learning rates change on the way; loss, outputs, weights, buffers and the optimiser's state stay eager's."""
    model, make = case_model(name), OPTIMIZERS[optimizer]
    eager = EagerStep(model, make)
    recomputes = optimizer in ("sgd, momentum, decay", "adamw")  # with one implementation an operator, it must
    trainer = optimize_case(name, model, make, variant="none" if recomputes else "monet")
    schedulers = [torch.optim.lr_scheduler.CosineAnnealingLR(o, 15) for o in (trainer.optimizer, eager.optimizer)]
    for seed in range(20):
        both_step(trainer, eager, MODELS[name][1](seed), seed)
        for scheduler in schedulers:
            scheduler.step()
    assert_same(model.state_dict(), eager.model.state_dict(), "model")
    assert_same(trainer.optimizer.state_dict(), eager.optimizer.state_dict(), "optimizer")
    assert all(p.grad is None for p in model.parameters())
    assert not recomputes or any(step.kind == "recompute" for step in trainer.plan.steps)
    assert sum(step.kind == "update" for step in trainer.plan.steps) == len(list(model.parameters()))
    arena = trainer._step.runner.arena
    assert arena is not None and arena.statistics().misses == 0, arena and arena.statistics()


def test_state_dicts_work_before_between_and_after_steps() -> None:
    model, make = case_model("residual"), OPTIMIZERS["sgd, momentum, decay"]
    eager = EagerStep(model, make)
    trainer = optimize_case("residual", model, make)
    assert trainer.optimizer.state_dict()["state"] == {}
    for seed in range(2):
        both_step(trainer, eager, images(seed), seed)
    saved = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": trainer.optimizer.state_dict()}, saved)
    both_step(trainer, eager, images(2), 2)
    after = copy.deepcopy(model.state_dict())
    loaded = torch.load(io.BytesIO(saved.getvalue()))
    model.load_state_dict(loaded["model"])
    trainer.optimizer.load_state_dict(loaded["optimizer"])
    torch.manual_seed(2)
    trainer(*images(2))
    assert_same(model.state_dict(), after, "the step after loading")

    # A new process: another model object, its optimiser's state loaded before the first step.
    loaded = torch.load(io.BytesIO(saved.getvalue()))  # an optimiser goes on with the very tensors it loads
    other = case_model("residual")
    fresh = optimize_case("residual", other, make)
    other.load_state_dict(loaded["model"])
    fresh.optimizer.load_state_dict(loaded["optimizer"])
    torch.manual_seed(2)
    fresh(*images(2))
    assert_same(other.state_dict(), after, "the step of another trainer")


@pytest.mark.slow
def test_eager_and_planned_steps_mix() -> None:
    """Evaluation and eager steps between planned ones see and change the same model and optimiser."""
    model, make = case_model("inverted"), OPTIMIZERS["adam"]
    eager = EagerStep(model, make)
    trainer = optimize_case("inverted", model, make)
    both_step(trainer, eager, _maps(0), 0)
    model.eval()
    eager.model.eval()
    with torch.no_grad():
        assert torch.equal(model(*_maps(1)[0]), eager.model(*_maps(1)[0]))
    with pytest.raises(PlanMismatch, match="evaluation mode"):
        trainer(*_maps(1))
    model.train()
    eager.model.train()
    torch.manual_seed(1)
    inputs, targets = _maps(1)
    case_loss(model(*inputs), targets).backward()
    trainer.optimizer.step()
    trainer.optimizer.zero_grad()
    torch.manual_seed(1)
    eager.step(inputs, targets)
    both_step(trainer, eager, _maps(2), 2)
    assert_same(model.state_dict(), eager.model.state_dict(), "model")


@pytest.mark.parametrize(
    ("name", "most"),
    [("residual", 0.05), ("residual", 1e6), pytest.param("transformer", 0.05, marks=pytest.mark.slow)],
)
def test_gradients_are_clipped_as_by_clip_grad_norm(name: str, most: float) -> None:
    model, make = case_model(name), OPTIMIZERS["adamw"]
    eager = EagerStep(model, make)
    trainer = optimize_case(name, model, make, clip_grad_norm=most)
    for seed in range(5):
        both_step(trainer, eager, MODELS[name][1](seed), seed, clip=most)
    assert_same(model.state_dict(), eager.model.state_dict(), "model")


def test_norms_are_summed_up_in_the_order_of_the_parameters() -> None:
    """As ``clip_grad_norm_`` does; a graph may have its sources in another order."""
    model = case_model("transformer")
    inputs, targets = _tokens(0)
    captured = with_unit_tangent(capture(LossModule(model, case_loss, return_outputs=True), (inputs, targets)))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    backwards = replace(captured, graph=replace(captured.graph, sources=captured.graph.sources[::-1]))
    for step in (captured, backwards):
        slots = parameter_slots(step, LossModule(model, case_loss, return_outputs=True), optimizer)
        assert [slot.live.parameter for slot in slots] == list(model.parameters())


class _Scaled(nn.Module):
    """A loss with a parameter and a buffer of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor(1.5))
        self.register_buffer("weight", torch.linspace(0.5, 1.5, 5))
        self.weight: torch.Tensor

    def forward(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(outputs / self.temperature, targets, self.weight)


def test_a_loss_may_be_a_module_with_parameters() -> None:
    model, loss = case_model("residual"), _Scaled()
    twin, twin_loss = copy.deepcopy(model), copy.deepcopy(loss)
    optimizer = torch.optim.Adam([*model.parameters(), *loss.parameters()], 1e-2)
    twin_optimizer = torch.optim.Adam([*twin.parameters(), *twin_loss.parameters()], 1e-2)
    trainer = monet.optimize(
        model, *images(0), loss_fn=loss, optimizer=optimizer, budget="95%", exact=True, return_outputs=False
    )
    for seed in range(3):
        inputs, targets = images(seed)
        value, outputs = trainer(inputs, targets)
        assert outputs is None
        twin_optimizer.zero_grad()
        expected = twin_loss(twin(inputs), targets)
        expected.backward()
        twin_optimizer.step()
        assert torch.equal(value, expected)
    assert torch.equal(loss.temperature, twin_loss.temperature) and loss.temperature.item() != 1.5
    assert_same(model.state_dict(), twin.state_dict(), "model")


def test_parameters_without_a_gradient_stay() -> None:
    """Frozen ones, and those that the loss does not reach, are not updated, not even by weight decay."""

    class Partly(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused, self.frozen = nn.Linear(4, 5), nn.Linear(4, 5), nn.Linear(4, 4)
            self.frozen.requires_grad_(False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.used(self.frozen(x))
            return out

    torch.manual_seed(0)
    model = Partly()
    before = copy.deepcopy(model.state_dict())
    x, y = torch.randn(8, 4), torch.randint(0, 5, (8,))
    optimizer = torch.optim.AdamW(model.parameters(), 0.1, weight_decay=0.5)
    trainer = monet.optimize(model, x, y, loss_fn=case_loss, optimizer=optimizer, budget="200%")
    trainer(x, y)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]) == (not name.startswith("used")), name


def test_inputs_and_targets_may_hold_what_is_no_tensor() -> None:
    """Such values are part of the plan; targets may be left out where the loss needs none."""

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 5)

        def forward(self, x: torch.Tensor, mask: torch.Tensor | None, scale: float) -> dict[str, Any]:
            out = self.layer(x) * scale
            return {"loss": out.square().mean(), "logits": out if mask is None else out * mask}

    torch.manual_seed(0)
    model = Masked()
    twin = copy.deepcopy(model)
    optimizer, other = (torch.optim.SGD(m.parameters(), 0.1) for m in (model, twin))
    inputs = {"x": torch.randn(3, 4), "mask": None, "scale": 2.5}
    trainer = monet.optimize(
        model, inputs, loss_fn=lambda outputs, _: outputs["loss"], optimizer=optimizer, budget="200%", exact=True
    )
    loss, outputs = trainer(inputs)
    expected = twin(**inputs)
    expected["loss"].backward()
    other.step()
    assert torch.equal(loss, expected["loss"]) and torch.equal(outputs["logits"], expected["logits"])
    assert_same(model.state_dict(), twin.state_dict(), "model")
    with pytest.raises(PlanMismatch, match=r"2\.5"):
        trainer({**inputs, "scale": 2.0})
    with pytest.raises(PlanMismatch, match="input 0 is None"):
        trainer({**inputs, "x": None})


def test_batch_norm_may_be_frozen() -> None:
    """In evaluation mode it saves statistics without elements; its weights are trained all the same."""
    model, make = case_model("residual"), OPTIMIZERS["sgd, momentum, decay"]
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
    eager = EagerStep(model, make)
    trainer = optimize_case("residual", model, make, variant="none")
    for seed in range(3):
        both_step(trainer, eager, images(seed), seed)
    assert_same(model.state_dict(), eager.model.state_dict(), "model")


@pytest.mark.slow
def test_a_plan_can_be_kept(tmp_path: Path) -> None:
    model, make = case_model("residual"), OPTIMIZERS["adam"]
    eager = EagerStep(model, make)
    optimize_case("residual", case_model("residual"), make).plan.save(tmp_path / "step.plan.json")
    trainer = optimize_case("residual", model, make, budget=None, plan=monet.Plan.load(tmp_path / "step.plan.json"))
    both_step(trainer, eager, images(4), 4)
    assert_same(model.state_dict(), eager.model.state_dict(), "model")
    with pytest.raises(PlanMismatch, match="another model"):
        optimize_case("residual", case_model("residual"), OPTIMIZERS["sgd"], budget=None, plan=trainer.plan)
    with pytest.raises(MonetError):
        monet.MonetModule(case_model("residual"), trainer.plan)

"""The whole step against eager: weights, state, loss and peak; what a trainer refuses, and that it changes nothing."""

from __future__ import annotations

import copy
import io
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from repository import ROOT
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
from monet.errors import CaptureError, ConfigError, ExecutionError, InfeasibleBudget, MonetError, PlanMismatch
from monet.ops.catalogue import catalogue
from monet.training_step.updates import UPDATE, parameter_slots, with_unit_tangent
from monet.training_step.whole_step import LossModule, capture_whole_step

pytestmark = pytest.mark.usefixtures("hasty_orders")


@pytest.mark.parametrize(
    ("name", "optimizer"),
    [("residual", optimizer) for optimizer in OPTIMIZERS]
    + [("inverted", "sgd, momentum, decay"), ("transformer", "adamw")],
)
def test_twenty_steps_equal_eager_bit_by_bit(name: str, optimizer: str) -> None:
    """Learning rates change on the way; loss, outputs, weights, buffers and the optimiser's state stay eager's."""
    model, make = case_model(name), OPTIMIZERS[optimizer]
    eager = EagerStep(model, make)
    recomputes = optimizer in ("sgd, momentum, decay", "adamw")  # with one implementation an operator, it must
    trainer = optimize_case(name, model, make, variant="none" if recomputes else "all")
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


def test_gradients_die_as_soon_as_they_are_used() -> None:
    """Fewer bytes than the same step with all updates at the end, as eager has it, before anything is recomputed."""
    trainer = optimize_case("residual", case_model("residual"), OPTIMIZERS["sgd"], budget="100%")
    plan = trainer.plan
    assert plan.peak_bytes < plan.solver["baseline_peak_bytes"]
    first = next(i for i, step in enumerate(plan.steps) if step.kind == "update")
    assert any(step.kind == "backward" for step in plan.steps[first:])
    assert plan.fixed["gradients"] == 0


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


def test_the_peak_is_the_promise_to_the_byte() -> None:
    """In a process of its own, since the meter counts all of torch's memory; the first step makes the state."""
    script = ROOT / "tests" / "support" / "peak_of_whole_step.py"
    for optimizer, loss in (("sgd, momentum, decay", "cross entropy"), ("adamw", "mean squared error")):
        done = subprocess.run(
            [sys.executable, str(script), optimizer, loss], capture_output=True, text=True, check=False, timeout=600
        )
        assert done.returncode == 0, done.stderr
        measured, promised = map(int, done.stdout.split())
        assert measured == promised, optimizer


def test_no_update_comes_before_a_reader_of_its_parameter() -> None:
    """Nor before what could be made again from it: recomputation with new weights would be another step."""
    model = case_model("transformer")
    inputs, targets = _tokens(0)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    step = capture_whole_step(model, inputs, targets, loss_fn=case_loss, optimizer=optimizer)
    graph = step.captured.graph
    updated: dict[str, int] = {}
    for position, op in enumerate(graph.backward):
        if op.name.startswith(UPDATE):
            updated[graph.storage(op.args[1].name)] = position
    assert len(updated) == len(list(model.parameters()))
    stale = dict(updated)  # storage → the first position at which it cannot be made again as it was
    for op in graph.forward:
        from_inputs = [stale[graph.storage(n)] for n in _inputs(op) if graph.storage(n) in stale]
        for name in op.outputs:
            if name is not None and from_inputs:
                stale[graph.storage(name)] = min([*from_inputs, stale.get(graph.storage(name), len(graph.backward))])
    offers = catalogue(graph)
    for position, op in enumerate(graph.backward):
        for implementation in offers.backward.get(op.name, {}).values():
            for name in implementation.inputs():
                storage = offers.storage(name)
                if storage in stale and not op.name.startswith(UPDATE):
                    assert position < stale[storage], (op.name, name)


def _inputs(op: Any) -> tuple[str, ...]:
    from monet.graph import operator_inputs

    return operator_inputs(op)


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

"""Parameters in a file between steps, with less memory than model and state take: bitwise eager's."""

from __future__ import annotations

import copy
import io
from functools import cache
from pathlib import Path

import pytest
import torch
from module_cases import costs_by_bytes
from moved_steps import RATES, copies_of
from poisoned_copies import poisoned
from torch import nn
from trainer_cases import Batch, EagerStep, assert_same, assert_same_training, both_step, case_loss

import monet
from monet.capture.guards.model_guard import ModelGuard
from monet.errors import ConfigError, ExecutionError, PlanMismatch
from monet.executor.planned_step import PlannedStep
from monet.native.channel import Channel
from monet.plans.format import READ, WRITE
from monet.plans.plan import Plan

WIDTH, WORDS = 528, 600
LARGE = WIDTH * WIDTH * 4


class Tied(nn.Module):
    """An embedding that is the head, too, layers that are trained, and a frozen one."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(5))
        self.layers[2].requires_grad_(False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x: torch.Tensor = self.words(ids)
        for layer in self.layers:
            x = torch.tanh(layer(x)) + x
        return x @ self.words.weight.T


def make_model() -> Tied:
    torch.manual_seed(3)
    return Tied()


def make_optimizer(parameters: list[torch.Tensor]) -> torch.optim.Optimizer:
    return torch.optim.AdamW([p for p in parameters if p.requires_grad], 1e-3)


def batch(seed: int) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(WORDS, (200,), generator=generator)
    return ids, torch.randint(WORDS, (200,), generator=generator)


BUDGET = 9_500_000
"""Parameters, gradients and state take 24 MB."""


@cache
def plan_in(folder: Path) -> Plan:
    model = make_model()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("monet.pipeline.preparation.profile", costs_by_bytes)
        return monet.optimize(
            model, *batch(0), loss_fn=case_loss, optimizer=make_optimizer(list(model.parameters())), budget=BUDGET,
            offload=f"disk:{folder},{RATES}", exact=True, time_limit_s=8,
        ).plan  # fmt: skip


def trainer_of(folder: Path, model: nn.Module) -> monet.Trainer:
    optimizer = make_optimizer(list(model.parameters()))
    return monet.optimize(model, *batch(0), loss_fn=case_loss, optimizer=optimizer, plan=plan_in(folder))


def eager_of(model: nn.Module) -> EagerStep:
    return EagerStep(model, make_optimizer)


def assert_right(trainer: monet.Trainer, eager: EagerStep, seeds: range) -> None:
    for seed in seeds:
        both_step(trainer, eager, batch(seed), seed)
    assert_same_training(trainer, eager)
    arena = trainer._step.runner.arena
    assert arena is not None and arena.statistics().misses == 0


def test_steps_equal_eager_bit_by_bit(disk: Path) -> None:
    model = make_model()
    trainer, eager = trainer_of(disk, model), eager_of(model)
    plan = trainer.plan
    held = sum(p.numel() * 4 * (4 if p.requires_grad else 1) for p in model.parameters())
    assert plan.peak_bytes <= BUDGET < held / 2.5
    assert plan.fixed["parameters"] < LARGE and plan.fixed["optimizer_state"] < LARGE
    assert_right(trainer, eager, range(4))
    reads = [step.node for step in plan.steps if step.kind == READ]
    written = {step.node.removesuffix("+1") for step in plan.steps if step.kind == WRITE}
    parameters = {s.value for s in trainer._step.graph.sources if s.kind == "parameter"} & set(reads)
    assert len(parameters) == 6 and any(reads.count(name) > 1 for name in parameters)
    (frozen,) = parameters - written
    assert reads.count(frozen) >= 1
    assert str(plan.solver["bound_scope"]).endswith("plan that moves this state")
    # All of it is read at least once, and all but the frozen layer written, by one channel.
    copied = sum(step.request_bytes[0] for step in plan.steps if step.kind == READ and step.node not in parameters)
    assert plan.solver["bound_s"] > copied / 1e9
    assert plan.solver["status"] != "time_limit" or plan.solver["gap"] > 0.01


def test_a_slow_disk_and_poison_change_nothing(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    poisoned(monkeypatch)
    model = make_model()
    trainer, eager = trainer_of(disk, model), eager_of(model)
    copies_of(trainer).channel.disturb(delay_s=0.005)
    assert_right(trainer, eager, range(3))


@pytest.mark.slow
def test_the_poison_would_be_seen(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    poisoned(monkeypatch)
    trainer = trainer_of(disk, make_model())
    trainer(*batch(0))
    monkeypatch.setattr(Channel, "wait", lambda self, ticket: None)
    copies_of(trainer).channel.disturb(delay_s=0.2)
    loss_of_poison, _ = trainer(*batch(1))
    copies_of(trainer).channel.drain()
    assert loss_of_poison.isnan() or any(p.isnan().any() for p in trainer._step.model.parameters())


def test_parameters_are_the_users(disk: Path) -> None:
    """Looked at, changed in place, loaded, and trained by eager steps between planned ones."""
    model = make_model()
    trainer, eager = trainer_of(disk, model), eager_of(model)
    assert_right(trainer, eager, range(2))
    before = {name: id(p) for name, p in model.named_parameters()}
    for each in (model, eager.model):
        with torch.no_grad():
            each.get_parameter("layers.1.weight").mul_(0.5)
    assert_right(trainer, eager, range(2, 4))
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    kept = copy.deepcopy(eager.model.state_dict())
    assert_right(trainer, eager, range(4, 5))
    file.seek(0)
    model.load_state_dict(torch.load(file))
    eager.model.load_state_dict(kept)
    assert_right(trainer, eager, range(5, 7))
    beside = EagerStep.__new__(EagerStep)
    beside.model, beside.optimizer = model, trainer.optimizer
    assert_same(beside.step(*batch(7)), eager.step(*batch(7)), "an eager step")
    model.zero_grad()
    assert_right(trainer, eager, range(8, 9))
    assert {name: id(p) for name, p in model.named_parameters()} == before


def test_memory_that_was_put_elsewhere_is_found(disk: Path) -> None:
    """Two parameters in each other's places, one that other processes share, state in another's place."""
    model = make_model()
    trainer, eager = trainer_of(disk, model), eager_of(model)
    assert_right(trainer, eager, range(2))
    for each in (model, eager.model):
        a, b = each.get_parameter("layers.0.weight"), each.get_parameter("layers.1.weight")
        a.data, b.data = b.data, a.data
    assert_right(trainer, eager, range(2, 4))
    model.share_memory()
    assert_right(trainer, eager, range(4, 6))
    for optimizer in (trainer.optimizer, eager.optimizer):
        x, y = (optimizer.state[optimizer.param_groups[0]["params"][k]] for k in (1, 3))
        x["exp_avg"], y["exp_avg"] = y["exp_avg"], x["exp_avg"]
    assert_right(trainer, eager, range(6, 8))


class TwoNames(nn.Module):
    """An embedding and a head that are one parameter, each in a module of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.head.weight = self.words.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x: torch.Tensor = self.words(ids)
        for layer in self.layers:
            x = torch.tanh(layer(x)) + x
        out: torch.Tensor = self.head(x)
        return out


def test_a_parameter_with_two_names(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("monet.pipeline.preparation.profile", costs_by_bytes)
    torch.manual_seed(3)
    model = TwoNames()
    trainer = monet.optimize(
        model, *batch(0), loss_fn=case_loss, optimizer=make_optimizer(list(model.parameters())), budget=9_500_000,
        offload=f"disk:{disk},{RATES}", exact=True, time_limit_s=6,
    )  # fmt: skip
    assert trainer.plan.fixed["parameters"] < LARGE
    assert_right(trainer, eager_of(model), range(3))
    assert model.head.weight is model.words.weight


def test_what_a_cut_step_has_lost_is_told_until_it_is_written_anew(disk: Path) -> None:
    model = make_model()
    trainer, eager = trainer_of(disk, model), eager_of(model)
    assert_right(trainer, eager, range(1))
    kept = copy.deepcopy([model.state_dict(), trainer.optimizer.state_dict()])
    copies = copies_of(trainer)
    (storage, name) = next(
        (s.value, s.target) for s in trainer._step.graph.sources if s.target.endswith("layers.1.weight")
    )
    copies.lost.add(storage)
    assert trainer._held._carried is not None
    trainer._held._carried.empty_lost()
    with pytest.raises(ExecutionError, match=f"had changed {storage} .* it is lost"):
        trainer(*batch(1))
    assert name.endswith("layers.1.weight")
    with torch.no_grad():  # which does not bring it back
        model.get_parameter("layers.1.weight").clamp_(-1, 1)
    with pytest.raises(ExecutionError, match="it is lost"):
        trainer(*batch(1))
    model.load_state_dict(kept[0])
    trainer.optimizer.load_state_dict(kept[1])
    assert_right(trainer, eager, range(1, 3))
    assert not copies.lost


class Empty:
    """Values of a model by name, and which were asked for."""

    def __init__(self, model: nn.Module) -> None:
        self.values: dict[str, torch.Tensor] = {k: v.clone() for k, v in model.state_dict().items()}
        self.asked: list[str] = []

    def __call__(self, name: str) -> torch.Tensor:
        self.asked.append(name)
        return self.values[name]


def test_an_empty_model_gets_its_values_one_by_one(disk: Path) -> None:
    full = make_model()
    weights = Empty(full)
    with torch.device("meta"):
        model = make_model()
    with pytest.raises(ConfigError, match=r"words.weight is on the meta device, without values: .*to_empty"):
        trainer_of(disk, model)
    model.to_empty(device="cpu")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(float("nan"))
    model.layers[2].requires_grad_(False)
    optimizer = make_optimizer(list(model.parameters()))
    trainer = monet.optimize(
        model, *batch(0), loss_fn=case_loss, optimizer=optimizer, plan=plan_in(disk), weights=weights
    )
    assert sorted(weights.asked) == sorted(name for name, _ in full.named_parameters())
    assert_same(model.state_dict(), full.state_dict(), "model")
    assert_right(trainer, eager_of(full), range(2))


def test_values_of_another_shape_are_refused(disk: Path) -> None:
    model = make_model()
    with pytest.raises(ConfigError, match=r"weights\('words.weight'\) is \(2, 3\); the model's tensor is \(600, 528\)"):
        monet.optimize(
            model, *batch(0), loss_fn=case_loss, optimizer=make_optimizer(list(model.parameters())),
            plan=plan_in(disk), weights=lambda name: torch.zeros(2, 3),
        )  # fmt: skip


def test_the_plan_is_no_modules(disk: Path) -> None:
    step = trainer_of(disk, make_model())._step
    with pytest.raises(PlanMismatch, match=r"keeps parameters in a second memory .* use it with monet\.optimize"):
        PlannedStep(step.model, step.plan, step.captured, ModelGuard(step.model))

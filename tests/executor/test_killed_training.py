"""Training that goes on after its process was killed, or a step failed: bitwise as if nothing had happened."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import signal
import subprocess
import sys
import time
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from forked import waiting_child
from module_cases import costs_by_bytes
from moved_steps import RATES, copies_of
from repository import ROOT
from slow_cases import slow_but
from torch import nn
from trainer_cases import Batch, assert_same, case_loss

import monet
from monet.base.files.lock import FileLock
from monet.errors import ConfigError, ExecutionError
from monet.executor.copying.carried_state import CarriedState
from monet.native.channel import Channel
from monet.plans.format import READ, WRITE
from monet.plans.plan import Plan

WIDTH = 528


def make_model() -> nn.Module:
    """With dropout, batch statistics, and small parameters: what is moved, and what is not."""
    torch.manual_seed(4)
    layers = [layer for _ in range(4) for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Dropout(0.2))]
    return nn.Sequential(*layers, nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, 10))


def make_optimizer(model: nn.Module, name: str = "adam") -> torch.optim.Optimizer:
    if name == "sgd":
        return torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, dampening=0.3)
    return torch.optim.AdamW(model.parameters(), 1e-2)


def batch(step: int) -> Batch:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(60, WIDTH, generator=generator), torch.arange(60) % 10


@cache
def plan_in(folder: Path | None, name: str = "adam") -> Plan:
    model = make_model()
    where = {} if folder is None else {"offload": f"disk:{folder},{RATES}"}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("monet.pipeline.preparation.profile", costs_by_bytes)
        return monet.optimize(
            model, *batch(0), loss_fn=case_loss, optimizer=make_optimizer(model, name), exact=True, time_limit_s=5,
            budget=10**9 if folder is None else 9_000_000, **where,  # type: ignore[arg-type]
        ).plan  # fmt: skip


def trainer_at(path: Path | None, plan: Plan, name: str = "adam", **options: Any) -> monet.Trainer:
    model = make_model()
    optimizer = make_optimizer(model, name)
    return monet.optimize(
        model, *batch(0), loss_fn=case_loss, optimizer=optimizer, plan=plan, checkpoint=path, **options
    )


def contents(trainer: monet.Trainer) -> list[Any]:
    model = trainer._step.model.model
    assert isinstance(model, nn.Module)
    return [
        {name: tensor.clone() for name, tensor in model.state_dict().items()},
        {n: {k: v.clone() for k, v in s.items()} for n, s in trainer.optimizer.state_dict()["state"].items()},
        torch.get_rng_state(),
    ]


def steps_on(trainer: monet.Trainer, count: int) -> list[Any]:
    """Up to this step, as a loop would."""
    if trainer.steps == 0:
        torch.manual_seed(11)
    while trainer.steps < count:
        trainer(*batch(trainer.steps))
    return contents(trainer)


@cache
def expected(folder: Path | None, name: str, count: int) -> list[Any]:
    """Without a checkpoint, in one go."""
    return steps_on(trainer_at(None, plan_in(folder, name), name), count)


@pytest.mark.parametrize("name", slow_but(["adam"], ["adam", "sgd"]))
@pytest.mark.parametrize("moved", [True, False])
def test_training_goes_on(disk: Path, tmp_path: Path, name: str, moved: bool) -> None:
    """In another trainer, again and again, from the first moment on."""
    where = disk if moved else None
    path, plan = (disk if moved else tmp_path) / f"run-{name}", plan_in(where, name)
    assert (plan.second_bytes > 0) == moved
    for count in (1, 1, 2, 4):
        trainer = trainer_at(path, plan, name)
        found = steps_on(trainer, count)
        assert trainer.steps == count
        assert_same(found, expected(where, name, count), f"step {count}")
        del trainer
        gc.collect()
    again = trainer_at(path, plan, name)
    assert again.steps == 4
    assert_same(contents(again), expected(where, name, 4), "what was found")


def test_what_is_frozen_has_one_place_in_the_file(disk: Path) -> None:
    """It is read in every step and never written: from the same half, whichever is good."""

    def trainer(path: Path | None, plan: Plan | None) -> monet.Trainer:
        model = make_model()
        for parameter in model[:6].parameters():  # type: ignore[index]
            parameter.requires_grad_(False)
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.05)
        how = {"offload": f"disk:{disk},{RATES}", "budget": 5_000_000} if plan is None else {"plan": plan}
        return monet.optimize(
            model, *batch(0), loss_fn=case_loss, optimizer=optimizer, exact=True, time_limit_s=5, checkpoint=path, **how
        )

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("monet.pipeline.preparation.profile", costs_by_bytes)
        without = trainer(None, None)
    read, written = ({s.place for s in without.plan.steps if s.kind == kind} for kind in (READ, WRITE))
    assert read - written and read & written
    contents_after = [steps_on(without, count) for count in (1, 2, 3)]
    found = trainer(disk / "run-frozen", without.plan)
    for count, each in enumerate(contents_after, 1):
        assert_same(steps_on(found, count), each, f"step {count}")


def test_a_learning_rate_and_the_plan_are_found_again(disk: Path) -> None:
    path = disk / "run-plan"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("monet.pipeline.preparation.profile", costs_by_bytes)

        def trainer() -> monet.Trainer:
            model = make_model()
            return monet.optimize(
                model, *batch(0), loss_fn=case_loss, optimizer=make_optimizer(model), exact=True, time_limit_s=5,
                budget=9_000_000, offload=f"disk:{disk},{RATES}", checkpoint=path,
            )  # fmt: skip

        first = trainer()
        for group in first.optimizer.param_groups:
            group["lr"] = 0.003
        steps_on(first, 2)
        plan = first.plan
        del first, group  # what it has of the model is the file, too
        gc.collect()
        patched.setattr("monet.api.how.How.plan", None)  # nothing is planned
        second = trainer()
    assert second.plan == plan and second.steps == 2
    assert [group["lr"] for group in second.optimizer.param_groups] == [0.003]


def test_a_step_that_fails_has_changed_nothing(disk: Path) -> None:
    trainer = trainer_at(disk / "run-fails", plan_in(disk))
    before = steps_on(trainer, 2)
    copies = copies_of(trainer)
    for chunk in (0, 5, 11, 20):
        copies.channel.disturb(failing_chunk=chunk, error=5)
        with pytest.raises(ExecutionError, match="Input/output error"):
            trainer(*batch(2))
        copies.channel.disturb()
        assert trainer.steps == 2 and not copies.lost
        assert_same(contents(trainer), before, "after a step that failed")
    assert_same(steps_on(trainer, 4), expected(disk, "adam", 4), "step 4")


def test_a_disk_that_does_not_take_the_end_of_a_step(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = trainer_at(disk / "run-full", plan_in(disk))
    before = steps_on(trainer, 1)

    def full(source: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", full)
        with pytest.raises(ExecutionError, match=r"run-full cannot be written: .*No space left"):
            trainer(*batch(1))
    assert_same(contents(trainer), before, "after a step that could not be finished")
    assert_same(steps_on(trainer, 2), expected(disk, "adam", 2), "step 2")


def test_what_was_done_between_steps_is_there_after_a_step_that_fails(disk: Path) -> None:
    """Weights that were loaded, a schedule's learning rate (numpy's number), random numbers."""
    trainer = trainer_at(disk / "run-between", plan_in(disk))
    first = steps_on(trainer, 1)
    steps_on(trainer, 2)
    model = trainer._step.model.model
    assert isinstance(model, nn.Module)
    model.load_state_dict(first[0])
    for group in trainer.optimizer.param_groups:
        group["lr"] = np.float64(0.002)
    torch.manual_seed(5)
    before = contents(trainer)
    copies = copies_of(trainer)
    copies.channel.disturb(failing_chunk=11, error=5)
    with pytest.raises(ExecutionError):
        trainer(*batch(2))
    copies.channel.disturb()
    assert_same(contents(trainer), before, "after a step that failed")
    assert [group["lr"] for group in trainer.optimizer.param_groups] == [0.002]
    trainer(*batch(2))
    del trainer, model, copies, group
    gc.collect()
    assert trainer_at(disk / "run-between", plan_in(disk)).steps == 3


def test_a_first_step_that_cannot_be_finished_is_still_the_first(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Momentum has no past then, and dampening does not apply."""
    trainer = trainer_at(disk / "run-first", plan_in(disk, "sgd"), "sgd")
    torch.manual_seed(11)
    real, calls = os.replace, []

    def second_fails(source: Path, target: Path) -> None:
        calls.append(target)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")
        real(source, target)

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", second_fails)
        with pytest.raises(ExecutionError, match=r"cannot be written: .*No space left"):
            trainer(*batch(0))
    while trainer.steps < 2:
        trainer(*batch(trainer.steps))
    assert_same(contents(trainer), expected(disk, "sgd", 2), "step 2")


@pytest.mark.parametrize("number", [0, 3, 5])
def test_an_interrupt_after_a_step_was_made_leaves_it_made(
    disk: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """While parameters become what the other half has; then a second one, while that is mended."""
    right = expected(disk, "adam", 3)  # of a trainer of its own, which adopts parameters as well
    trainer = trainer_at(disk / f"run-late-{number}", plan_in(disk))
    steps_on(trainer, 1)
    real, calls = CarriedState.adopt, []

    def late(self: CarriedState, storage: str, parameter: torch.Tensor) -> None:
        calls.append(storage)
        if len(calls) in (number + 1, number + 4):
            raise KeyboardInterrupt
        real(self, storage, parameter)

    monkeypatch.setattr(CarriedState, "adopt", late)
    for _ in range(9):
        if trainer.steps >= 3:
            break
        with contextlib.suppress(KeyboardInterrupt):
            trainer(*batch(trainer.steps))
            continue
        with contextlib.suppress(KeyboardInterrupt):
            trainer._held.recover()
        with contextlib.suppress(KeyboardInterrupt):
            trainer._held.recover()
    assert trainer.steps == 3 and len(calls) > number
    assert_same(contents(trainer), right, "step 3")


def test_files_that_are_gone(disk: Path) -> None:
    """And are another training's by now: neither has anything of the other."""
    path, plan = disk / "run-gone", plan_in(disk)
    old = trainer_at(path, plan)
    steps_on(old, 1)
    for found in disk.glob("run-gone*"):
        found.unlink()
    left = steps_on(trainer_at(path, plan), 2)
    gc.collect()
    for _ in range(2):
        with pytest.raises(ExecutionError, match="the checkpoint of this training is gone"):
            old(*batch(1))
    assert old.steps == 1
    again = trainer_at(path, plan)
    assert again.steps == 2
    assert_same(contents(again), left, "step 2")


def test_a_forked_child_keeps_nobody_from_the_file(disk: Path) -> None:
    """Though it has model and optimiser, which lie there."""
    path, plan = disk / "run-forked", plan_in(disk)
    trainer = trainer_at(path, plan)
    steps_on(trainer, 1)
    with waiting_child():
        with pytest.raises(ExecutionError, match="a trainer, or a model that it trained, has this file"):
            trainer_at(path, plan)
        del trainer
        gc.collect()
        assert trainer_at(path, plan).steps == 1


def test_a_model_keeps_the_file(disk: Path) -> None:
    path, plan = disk / "run-model", plan_in(disk)
    trainer = trainer_at(path, plan)
    steps_on(trainer, 1)
    model = trainer._step.model.model
    del trainer
    gc.collect()
    with pytest.raises(ExecutionError, match="a trainer, or a model that it trained, has this file"):
        trainer_at(path, plan)
    del model
    gc.collect()
    assert trainer_at(path, plan).steps == 1


def test_moves_of_activations_alone(disk: Path) -> None:
    """Nothing of them is needed after a step: the file stays empty."""

    def trainer(path: Path | None, plan: Plan | None) -> monet.Trainer:
        torch.manual_seed(2)
        model = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(64, 64), nn.Tanh())))
        x = torch.randn(8192, 64)
        how = {"offload": f"disk:{disk},{RATES}", "budget": "65%"} if plan is None else {"plan": plan}
        return monet.optimize(
            model, x, x, loss_fn=nn.functional.mse_loss, optimizer=torch.optim.SGD(model.parameters(), 0.1),
            exact=True, time_limit_s=5, checkpoint=path, **how,
        )  # fmt: skip

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("monet.pipeline.preparation.profile", costs_by_bytes)
        plan = trainer(None, None).plan
    assert plan.second_bytes > 0
    path, x = disk / "run-activations", torch.ones(8192, 64)
    for count in (1, 2):
        found = trainer(path, plan)
        assert found.steps == count - 1
        found(x, x)
        del found
        gc.collect()
    assert path.stat().st_size == 0


def step_alone(path: Path, plan: Plan) -> None:
    """A trainer's first step; no other one may have its checkpoint until it is gone."""
    trainer = trainer_at(path, plan)
    steps_on(trainer, 1)
    with pytest.raises(ExecutionError, match="a trainer, or a model that it trained, has this file"):
        trainer_at(path, plan)
    del trainer
    gc.collect()


def test_what_is_refused(disk: Path, tmp_path: Path) -> None:
    path, plan = disk / "run-refused", plan_in(disk)
    step_alone(path, plan)
    with pytest.raises(ConfigError, match=r"run-refused has not the [\d,]+ bytes of this plan"):
        trainer_at(path, plan_in(disk, "sgd"), "sgd")
    with pytest.raises(ConfigError, match="a file in a folder that is there is needed"):
        trainer_at(tmp_path / "no" / "run", plan)
    (tmp_path / "notes.txt").write_text("not a checkpoint")
    with pytest.raises(ConfigError, match="there is a file that is no checkpoint"):
        trainer_at(tmp_path / "notes.txt", plan)
    head = disk / "run-refused.step"
    head.write_bytes(head.read_bytes()[:100])
    with pytest.raises(ConfigError, match=r"run-refused.step cannot be read .*Begin a new one under another name"):
        trainer_at(path, plan)


@pytest.mark.slow
def test_one_trainer_has_a_checkpoint_without_moves(tmp_path: Path) -> None:
    path, plan = tmp_path / "run", plan_in(None)
    step_alone(path, plan)
    assert trainer_at(path, plan).steps == 1


def test_a_checkpoint_by_another_name(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "disk" / "run")
    for steps in (1, 2):
        trainer = optimized(link)
        assert trainer.steps == steps - 1
        steps_on(trainer, steps)
        del trainer
        gc.collect()


def optimized(path: Path, width: int = 4) -> monet.Trainer:
    torch.manual_seed(1)
    model = (
        nn.Linear(WIDTH, 10) if width == 4 else nn.Sequential(nn.Linear(WIDTH, width), nn.Tanh(), nn.Linear(width, 10))
    )
    return monet.optimize(
        model, *batch(0), loss_fn=case_loss, optimizer=torch.optim.SGD(model.parameters(), 0.1), budget="100MB",
        time_limit_s=2, checkpoint=path,
    )  # fmt: skip


def test_a_plan_of_which_no_step_was_made_gives_way(tmp_path: Path) -> None:
    """The process ended before the first step, and the model became another one."""
    optimized(tmp_path / "run")
    gc.collect()
    trainer = optimized(tmp_path / "run", 8)
    steps_on(trainer, 1)
    del trainer
    gc.collect()
    assert optimized(tmp_path / "run", 8).steps == 1


def test_what_is_refused_before_anything_is_planned(
    disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("monet.api.functions.capture_whole_step", lambda *_, **__: pytest.fail("captured"))
    monkeypatch.setattr("monet.api.functions.reason_against", lambda folder: "it lies in main memory (tmpfs)")
    model = make_model()

    def optimize(path: Path, **options: Any) -> None:
        monet.optimize(
            model,
            *batch(0),
            loss_fn=case_loss,
            optimizer=make_optimizer(model),
            budget="1GB",
            checkpoint=path,
            **options,
        )

    with pytest.raises(ConfigError, match=r"checkpoint .*run: it lies in main memory \(tmpfs\)"):
        optimize(tmp_path / "run", offload=f"disk:{disk},{RATES}")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(ConfigError, match="it, or its folder, cannot be written to"):
        optimize(tmp_path / "run")


@pytest.mark.parametrize(
    "made", [lambda shape: torch.empty(shape, device="meta"), lambda shape: torch.ones(shape).to_sparse()]
)
def test_weights_without_values_are_refused(disk: Path, made: Any) -> None:
    model = make_model()
    shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
    with pytest.raises(ConfigError, match="has no values of a plain tensor"):
        trainer_at(None, plan_in(disk), weights=lambda name: made(shapes[name]))


KILLED = """
import sys
import torch
from pathlib import Path
from test_killed_training import steps_on, trainer_at
from monet.plans.plan import Plan
plan = Plan.load(sys.argv[2])
torch.set_num_threads(plan.environment["threads"])
trainer = trainer_at(Path(sys.argv[1]), plan)
print(trainer.steps, flush=True)
copies = trainer._step.runner.copies
copies.channel.disturb(delay_s=0.002)
torch.save(steps_on(trainer, int(sys.argv[3])), sys.argv[4])
"""


def killed_until(disk: Path, name: str, kills: int, count: int) -> tuple[list[int], Any]:
    """How many steps were made when each process began, and what the last one left."""
    plan_in(disk).save(disk / f"{name}.plan")
    paths = os.pathsep.join(str(ROOT / "tests" / folder) for folder in ("support", "executor"))
    command = [
        sys.executable,
        "-c",
        KILLED,
        str(disk / name),
        str(disk / f"{name}.plan"),
        str(count),
        str(disk / name) + ".pt",
    ]
    rng, begun = random.Random(3), []
    for number in range(kills + 1):
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": paths}
        )  # fmt: skip
        assert process.stdout is not None
        begun.append(int(process.stdout.readline()))
        if number < kills:
            time.sleep(rng.uniform(0.0, 0.5))
            process.send_signal(signal.SIGKILL)
        code = process.wait()
        if code == 0:
            break
        assert code == -signal.SIGKILL
    return begun, torch.load(f"{disk / name}.pt")


@pytest.mark.slow
def test_processes_that_are_killed(disk: Path) -> None:
    begun, left = killed_until(disk, "run-killed", 2, 6)
    assert begun == sorted(begun)
    assert_same(left, expected(disk, "adam", 6), "step 6")


@pytest.mark.slow
def test_twenty_kills(disk: Path) -> None:
    begun, left = killed_until(disk, "run-twenty", 20, 40)
    assert begun == sorted(begun) and begun[-1] > 3
    assert_same(left, expected(disk, "adam", 40), "step 40")


def test_buffered_files(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Channel.__init__

    def buffered(self: Channel, folder: Path, size: int, *, lock: FileLock | None = None) -> None:
        real(self, folder, size, lock=lock, buffered=True)

    monkeypatch.setattr(Channel, "__init__", buffered)
    path, plan = disk / "run-buffered", plan_in(disk)
    steps_on(trainer_at(path, plan), 2)
    gc.collect()
    assert_same(steps_on(trainer_at(path, plan), 3), expected(disk, "adam", 3), "step 3")

"""An optimiser's state in a file between steps: bitwise eager's, seen by whoever looks, and never silently lost."""

from __future__ import annotations

import copy
import errno
import gc
import io
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from module_cases import costs_by_bytes
from moved_steps import RATES, copies_of
from poisoned_copies import poisoned
from repository import ROOT
from torch import nn
from trainer_cases import Batch, EagerStep, Optimizer, assert_same, assert_same_training, both_step, case_loss

import monet
from monet.base.files.lock import FileLock
from monet.errors import ExecutionError, InvalidPlan, PlanMismatch
from monet.native.channel import Channel
from monet.ops.weight_update import LiveUpdate
from monet.plans.format import READ, WAIT, WRITE
from monet.plans.plan import Plan

WIDTH = 520
OPTIMIZERS: dict[str, Optimizer] = {
    "adam": lambda p: torch.optim.Adam(p, 1e-2, weight_decay=1e-3),
    "amsgrad": lambda p: torch.optim.AdamW(p, 1e-2, amsgrad=True),
    "fused": lambda p: torch.optim.AdamW(p, 1e-2, fused=True),
    "momentum": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, dampening=0.1),
    "nesterov": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, nesterov=True, foreach=True),
}
STATES = {"adam": 2, "amsgrad": 3, "fused": 2, "momentum": 1, "nesterov": 1}


def make_model() -> nn.Module:
    torch.manual_seed(2)
    layers = [layer for _ in range(4) for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]
    return nn.Sequential(*layers, nn.Linear(WIDTH, 10))


def batch(seed: int) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(300, WIDTH, generator=generator), torch.arange(300) % 10


@cache
def plan_for(optimizer: str, folder: Path | None, mode: str = "asynchronous", clip: float | None = None) -> Plan:
    """With all of the large state in the folder; None: with everything in memory."""
    model = make_model()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("monet.pipeline.preparation.profile", costs_by_bytes)
        patched.setattr("monet.pipeline.placement.ORDER_S", 1.0)
        options: dict[str, Any] = {"loss_fn": case_loss, "exact": True, "time_limit_s": 8, "clip_grad_norm": clip}
        if folder is None:
            budget = 1_000_000_000
        else:
            full = plan_for(optimizer, None, clip=clip)
            budget = full.peak_bytes - STATES[optimizer] * 5 * WIDTH * WIDTH * 4 // 2
            options["offload"] = f"disk:{folder},{RATES},mode={mode}"
        made = OPTIMIZERS[optimizer](list(model.parameters()))
        return monet.optimize(model, *batch(0), optimizer=made, budget=budget, **options).plan


def trainer_for(optimizer: str, folder: Path, model: nn.Module, **options: Any) -> monet.Trainer:
    made = OPTIMIZERS[optimizer](list(model.parameters()))
    return trained_by(plan_for(optimizer, folder, **options), model, made, clip=options.get("clip"))


def trained_by(
    plan: Plan, model: nn.Module, optimizer: torch.optim.Optimizer, clip: float | None = None
) -> monet.Trainer:
    return monet.optimize(model, *batch(0), loss_fn=case_loss, optimizer=optimizer, plan=plan, clip_grad_norm=clip)


def count(plan: Plan, kind: str) -> int:
    return sum(step.kind == kind for step in plan.steps)


def assert_right(trainer: monet.Trainer, eager: EagerStep, seeds: range, clip: float | None = None) -> None:
    for seed in seeds:
        both_step(trainer, eager, batch(seed), seed, clip=clip)
    assert_same_training(trainer, eager)
    arena = trainer._step.runner.arena
    assert arena is not None and arena.statistics().misses == 0


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.sampled(2)
def test_five_steps_equal_eager_bit_by_bit(optimizer: str, disk: Path) -> None:
    model = make_model()
    trainer, eager = trainer_for(optimizer, disk, model), EagerStep(model, OPTIMIZERS[optimizer])
    full, plan = plan_for(optimizer, None), trainer.plan
    state = STATES[optimizer] * 4 * WIDTH * WIDTH * 4  # what has 1 MiB
    assert plan.fixed["optimizer_state"] == full.fixed["optimizer_state"] - state
    assert plan.peak_bytes < full.peak_bytes - state // 2
    assert_right(trainer, eager, range(5))
    copied = copies_of(trainer).channel.copied()
    assert count(plan, READ) >= 4 * STATES[optimizer]
    assert copied.read_bytes >= 5 * state and copied.written_bytes >= 5 * state
    assert not list(disk.iterdir())


def test_copies_that_the_step_waits_for(disk: Path) -> None:
    model = make_model()
    trainer, eager = trainer_for("adam", disk, model, mode="synchronous"), EagerStep(model, OPTIMIZERS["adam"])
    assert_right(trainer, eager, range(2))


@pytest.mark.slow
def test_gradients_that_are_clipped(disk: Path) -> None:
    """All updates come at the step's end."""
    model = make_model()
    trainer, eager = trainer_for("adam", disk, model, clip=0.1), EagerStep(model, OPTIMIZERS["adam"])
    assert trainer.plan.fixed["optimizer_state"] < 1 << 20
    assert_right(trainer, eager, range(3), clip=0.1)


def test_a_slow_disk_and_poison_change_nothing(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = poisoned(monkeypatch)
    model = make_model()
    trainer, eager = trainer_for("adam", disk, model), EagerStep(model, OPTIMIZERS["adam"])
    copies_of(trainer).channel.disturb(delay_s=0.01)
    assert_right(trainer, eager, range(5))
    assert counts == [5 * count(trainer.plan, WRITE), 5 * count(trainer.plan, READ)]


@pytest.mark.slow
def test_the_poison_would_be_seen(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits that do not wait."""
    poisoned(monkeypatch)
    trainer = trainer_for("adam", disk, make_model())
    trainer(*batch(0))
    monkeypatch.setattr(Channel, "wait", lambda self, ticket: None)
    copies_of(trainer).channel.disturb(delay_s=0.2)
    trainer(*batch(1))
    copies_of(trainer).channel.drain()
    assert any(p.isnan().any() for p in trainer._step.model.parameters())


def test_without_an_arena(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("monet.native.allocator.library", lambda: None)
    model = make_model()
    trainer, eager = trainer_for("adam", disk, model), EagerStep(model, OPTIMIZERS["adam"])
    assert trainer._step.runner.arena is None
    copies_of(trainer).channel.disturb(delay_s=0.002)
    for seed in range(2):
        both_step(trainer, eager, batch(seed), seed)
    assert_same_training(trainer, eager)


def test_through_the_page_cache(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the file system has no direct access."""
    real = Channel.__init__

    def buffered(self: Channel, folder: Path, size: int, *, lock: FileLock | None = None) -> None:
        real(self, folder, size, lock=lock, buffered=True)

    monkeypatch.setattr(Channel, "__init__", buffered)
    model = make_model()
    trainer, eager = trainer_for("adam", disk, model), EagerStep(model, OPTIMIZERS["adam"])
    assert not copies_of(trainer).channel.direct
    assert_right(trainer, eager, range(3))


# Who looks at it, and who changes it


@pytest.mark.slow
def test_checkpoints_go_both_ways(disk: Path) -> None:
    model = make_model()
    trainer, eager = trainer_for("adam", disk, model), EagerStep(model, OPTIMIZERS["adam"])
    assert_right(trainer, eager, range(2))
    file = io.BytesIO()
    torch.save([model.state_dict(), trainer.optimizer.state_dict()], file)
    assert file.tell() < 3 * sum(p.numel() for p in model.parameters()) * 4 * 1.1  # each tensor by itself
    assert_right(trainer, eager, range(2, 4))
    file.seek(0)
    weights, state = torch.load(file)
    twin = make_model()
    twin.load_state_dict(weights)
    other = trainer_for("adam", disk, twin)
    other.optimizer.load_state_dict(state)
    for seed in range(2, 4):
        other(*batch(seed))
    assert_same_training(other, eager)  # the same as without the way through the file
    file.seek(0)
    weights, state = torch.load(file)
    model.load_state_dict(weights)
    trainer.optimizer.load_state_dict(state)
    for seed in range(2, 4):
        trainer(*batch(seed))
    assert_same_training(trainer, eager)


def test_changes_of_the_state_between_steps_count(disk: Path) -> None:
    model = make_model()
    trainer, eager = trainer_for("momentum", disk, model), EagerStep(model, OPTIMIZERS["momentum"])
    assert_right(trainer, eager, range(2))
    for optimizer in (trainer.optimizer, eager.optimizer):
        for state in optimizer.state.values():
            state["momentum_buffer"].mul_(0.5)
    assert_right(trainer, eager, range(2, 4))
    for optimizer in (trainer.optimizer, eager.optimizer):
        for state in optimizer.state.values():
            state["momentum_buffer"] = torch.ones_like(state["momentum_buffer"])
    assert_right(trainer, eager, range(4, 6))


KINDS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], str]] = {
    "of another type": (torch.Tensor.double, r"momentum_buffer is torch.float64 .* made for torch.float32"),
    "of another shape": (lambda t: t[1:].clone(), r"momentum_buffer has shape \(519, 520\), .* made for \(520, 520\)"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_state_of_another_kind_is_refused_and_left_alone(kind: str, disk: Path) -> None:
    model = make_model()
    trainer, eager = trainer_for("momentum", disk, model), EagerStep(model, OPTIMIZERS["momentum"])
    assert_right(trainer, eager, range(1))
    state = trainer.optimizer.state[next(model.parameters())]
    own, (change, message) = state["momentum_buffer"], KINDS[kind]
    state["momentum_buffer"] = strange = change(own)
    with pytest.raises(PlanMismatch, match=message):
        trainer(*batch(1))
    assert state["momentum_buffer"] is strange
    state["momentum_buffer"] = own
    assert_right(trainer, eager, range(1, 3))


def test_eager_steps_between(disk: Path) -> None:
    model = make_model()
    trainer, eager = trainer_for("adam", disk, model), EagerStep(model, OPTIMIZERS["adam"])
    assert_right(trainer, eager, range(1))
    beside = EagerStep.__new__(EagerStep)
    beside.model, beside.optimizer = model, trainer.optimizer
    assert_same(beside.step(*batch(1)), eager.step(*batch(1)), "an eager step")
    model.zero_grad()
    assert_right(trainer, eager, range(2, 4))


def test_state_that_was_there_before(disk: Path) -> None:
    """Made by eager steps in memory, and by another trainer in its file, which may be gone."""
    model = make_model()
    eager = EagerStep(model, OPTIMIZERS["adam"])
    optimizer = OPTIMIZERS["adam"](list(model.parameters()))
    beside = EagerStep.__new__(EagerStep)
    beside.model, beside.optimizer = model, optimizer
    assert_same(beside.step(*batch(0)), eager.step(*batch(0)), "an eager step")
    model.zero_grad()
    first = trained_by(plan_for("adam", disk), model, optimizer)
    assert_right(first, eager, range(1, 3))
    del first
    gc.collect()
    assert_right(trained_by(plan_for("adam", disk), model, optimizer), eager, range(3, 5))


def test_copies_of_the_optimizer_are_in_memory(disk: Path) -> None:
    model = make_model()
    trainer, eager = trainer_for("adam", disk, model), EagerStep(model, OPTIMIZERS["adam"])
    assert_right(trainer, eager, range(1))
    kept = copy.deepcopy(trainer.optimizer.state_dict())
    before = copy.deepcopy(eager.optimizer.state_dict())
    assert_right(trainer, eager, range(1, 3))
    assert_same(kept, before, "a copy")


def test_a_plan_from_its_file(disk: Path, tmp_path: Path) -> None:
    plan = plan_for("adam", disk)
    plan.save(tmp_path / "plan.json")
    model = make_model()
    optimizer = OPTIMIZERS["adam"](list(model.parameters()))
    trainer = trained_by(Plan.load(tmp_path / "plan.json"), model, optimizer)
    assert_right(trainer, EagerStep(model, OPTIMIZERS["adam"]), range(2))


def test_a_forked_process_reads_the_state_and_steps_no_further(disk: Path) -> None:
    trainer = trainer_for("adam", disk, make_model())
    trainer(*batch(0))
    moved = trainer.optimizer.state_dict()["state"][0]["exp_avg"].numpy()
    expected = moved.tobytes()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            assert moved.tobytes() == expected  # no operator of torch: its threads are not forked along
            trainer._step.runner._check_process()
        except ExecutionError:
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    trainer(*batch(1))


def test_it_takes_no_memory_of_the_process_between_and_in_steps(disk: Path) -> None:
    """But while somebody looks at it."""
    trainer = trainer_for("adam", disk, make_model())
    for seed in range(2):
        trainer(*batch(seed))

    tensors = [tensor for state in trainer.optimizer.state.values() for tensor in state.values()]
    address = next(tensor.data_ptr() for tensor in tensors if tensor.numel() == WIDTH * WIDTH)

    def resident() -> int:
        """Of the mapping in which the state lies."""
        inside = False
        for line in Path("/proc/self/smaps").read_text().splitlines():
            if (found := re.match(r"^([0-9a-f]+)-([0-9a-f]+) ", line)) is not None:
                inside = int(found[1], 16) <= address < int(found[2], 16)
            elif inside and line.startswith("Rss:"):
                return int(line.split()[1]) * 1024
        raise AssertionError("the state is in no mapping")

    assert resident() == 0
    total = sum(v.double().sum().item() for s in trainer.optimizer.state.values() for v in s.values())
    assert total == total and resident() >= 8 * WIDTH * WIDTH * 4
    trainer(*batch(2))
    assert resident() == 0


def test_the_state_is_made_for_one_parameter_at_a_time(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it together may be more than the memory."""
    trainer = trainer_for("adam", disk, make_model())
    carried = trainer._held._carried
    assert carried is not None
    elsewhere: list[int] = []
    prepare = LiveUpdate.prepare

    def noted(live: LiveUpdate) -> None:
        tensors = [t for state in trainer.optimizer.state.values() for t in state.values() if t.numel() > WIDTH]
        elsewhere.append(sum(not carried.is_inside(t) for t in tensors if t.shape == (WIDTH, WIDTH)))
        prepare(live)

    monkeypatch.setattr(LiveUpdate, "prepare", noted)
    trainer(*batch(0))
    assert len(elsewhere) == len(list(trainer._updates)) and not any(elsewhere)


PEAK = """
import gc, sys
import torch
from test_carried_state import OPTIMIZERS, batch, make_model, trained_by
from peak_meter import held_bytes
from monet.native import allocator
from monet.plans.plan import Plan
allocator.live_bytes()  # from here on it knows what is freed, too
plan, model = Plan.load(sys.argv[1]), make_model()
torch.set_num_threads(plan.environment["threads"])
optimizer = OPTIMIZERS["adam"](list(model.parameters()))
trainer = trained_by(plan, model, optimizer)
batches = [batch(0), batch(1)]
gc.collect()
other = allocator.live_bytes() - held_bytes(model, trainer._step.captured.constants.values())
other -= sum(tensor.nbytes for tensor in batches[1])
trainer(*batches[0])
gc.collect()
allocator.reset_peak()
kept = trainer(*batches[1])
print(allocator.peak_bytes() - other, plan.peak_bytes)
"""


def test_the_peak_is_the_promise_to_the_byte(disk: Path, tmp_path: Path) -> None:
    """In a process of its own, since the meter counts all of torch's memory."""
    plan_for("adam", disk).save(tmp_path / "plan.json")
    paths = os.pathsep.join(str(ROOT / "tests" / folder) for folder in ("support", "executor"))
    done = subprocess.run(
        [sys.executable, "-c", PEAK, str(tmp_path / "plan.json")], capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": paths}, cwd=ROOT, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    measured, promised = map(int, done.stdout.split())
    assert measured == promised < plan_for("adam", None).peak_bytes


# Failures


def _renamed(plan: Plan, old: str, new: str) -> Plan:
    """With another name of the step for what is copied under ``old``, wherever it stands."""

    def with_name(ids: Mapping[str, int]) -> dict[str, int]:
        return {new if name == old else name: id for name, id in ids.items()}

    steps = tuple(
        replace(s, node=new if s.node == old else s.node, reads=with_name(s.reads), writes=with_name(s.writes))
        for s in plan.steps
    )
    buffers = tuple(replace(b, value=new if b.value == old else b.value) for b in plan.buffers)
    return replace(plan, steps=steps, buffers=buffers)


@pytest.mark.slow
def test_a_plan_that_copies_something_else_is_refused(disk: Path) -> None:
    """Each name of what is written back and read in, with a name of the step, or one that it does not have."""
    plan = plan_for("adam", disk)
    copied = sorted({step.node for step in plan.steps if step.kind in (WRITE, READ)})
    made = sorted({step.node for step in plan.steps if step.kind in ("forward", "backward")})
    for old in copied[:4]:
        for new in (*made[:3], *made[-3:], *copied[-2:], "nowhere"):
            with pytest.raises((InvalidPlan, PlanMismatch)):
                model = make_model()
                optimizer = OPTIMIZERS["adam"](list(model.parameters()))
                trained_by(_renamed(plan, old, new), model, optimizer)(*batch(0))


def _first(plan: Plan, kind: str) -> int:
    """Of the copies of the step, which one is the first of a kind."""
    return [step.kind for step in plan.steps if step.kind in (READ, WRITE)].index(kind)


def test_a_read_that_fails_loses_nothing(disk: Path) -> None:
    model = make_model()
    trainer, eager = trainer_for("adam", disk, model), EagerStep(model, OPTIMIZERS["adam"])
    assert_right(trainer, eager, range(2))
    copies_of(trainer).channel.disturb(failing_chunk=_first(trainer.plan, READ), error=errno.EIO)
    kept = copy.deepcopy([model.state_dict(), trainer.optimizer.state_dict()])
    with pytest.raises(ExecutionError, match=r"step \d+ \((read|wait|write) .*Input/output error"):
        trainer(*batch(2))
    assert not copies_of(trainer).lost
    model.load_state_dict(kept[0])
    trainer.optimizer.load_state_dict(kept[1])
    assert_right(trainer, eager, range(2, 4))


def test_a_write_that_fails_is_told_until_a_checkpoint_is_loaded(disk: Path) -> None:
    model = make_model()
    trainer, eager = trainer_for("adam", disk, model), EagerStep(model, OPTIMIZERS["adam"])
    assert_right(trainer, eager, range(2))
    kept = copy.deepcopy([model.state_dict(), trainer.optimizer.state_dict()])
    copies_of(trainer).channel.disturb(failing_chunk=_first(trainer.plan, WRITE), error=errno.ENOSPC)
    with pytest.raises(ExecutionError, match=r"step \d+ \(.*failed: No space left"):
        trainer(*batch(2))
    assert copies_of(trainer).lost
    for _ in range(2):
        with pytest.raises(ExecutionError, match=r"was cut short after it had changed state .*load_state_dict"):
            trainer(*batch(3))
    model.load_state_dict(kept[0])
    trainer.optimizer.load_state_dict(kept[1])
    assert_right(trainer, eager, range(2, 4))
    assert not copies_of(trainer).lost


def interrupted_at(stop: int, trainer: monet.Trainer) -> None:
    """A step of training that Ctrl-C ends as soon as a step of the plan is entered."""
    runner = trainer._step.runner
    real = runner._enter

    def entering(handle: int, step: int) -> None:
        real(handle, step)
        if step == stop:
            raise KeyboardInterrupt

    runner._enter = entering
    with pytest.raises(KeyboardInterrupt):
        trainer(*batch(1))
    runner._enter = real


def test_all_that_an_update_changed_and_nobody_wrote_is_told(disk: Path) -> None:
    """Ctrl-C at the copy of the first of two tensors: no copy of the second was issued."""
    trainer = trainer_for("adam", disk, make_model())
    trainer(*batch(0))
    plan = trainer.plan
    stop = next(k for k, step in enumerate(plan.steps) if step.place is not None
                and step.kind == WRITE and step.node.startswith("state"))  # fmt: skip
    assert plan.steps[stop + 1].kind == WRITE
    interrupted_at(stop, trainer)
    assert copies_of(trainer).lost == {plan.steps[k].node.removesuffix("+1") for k in (stop, stop + 1)}
    with pytest.raises(ExecutionError, match="it is lost"):
        trainer(*batch(1))


def test_interrupt_at_any_step(disk: Path) -> None:
    """What was written by then is in the file; what an update was about to change, or a copy to hold, is told."""
    model = make_model()
    trainer = trainer_for("momentum", disk, model)
    trainer(*batch(0))
    kept = copy.deepcopy([model.state_dict(), trainer.optimizer.state_dict()])
    eager = EagerStep(model, OPTIMIZERS["momentum"])
    eager.optimizer.load_state_dict(copy.deepcopy(kept[1]))
    copies_of(trainer).channel.disturb(delay_s=0.002)
    told = 0
    for stop in range(0, len(trainer.plan.steps), 3):
        interrupted_at(stop, trainer)
        step = trainer.plan.steps[stop]
        cut = step.kind == WRITE or (step.kind == "update" and any(v.startswith("state") for v in step.reads))
        assert bool(copies_of(trainer).lost) == cut
        assert not copies_of(trainer)._under_way
        model.load_state_dict(kept[0])
        trainer.optimizer.load_state_dict(copy.deepcopy(kept[1]))
        told += cut
    assert told >= 2 and count(trainer.plan, WAIT) > 2
    assert_right(trainer, eager, range(1, 3))

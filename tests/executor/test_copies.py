"""Steps that move tensors to a disk: bitwise eager's, however slow the disk is, and right again after it failed."""

from __future__ import annotations

import copy
import errno
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from module_cases import costs_by_bytes
from moved_steps import (
    CASES,
    RATES,
    assert_equal,
    case_inputs,
    case_model,
    copies_of,
    moved_plan,
    step_of,
    unmoved_plan,
)
from poisoned_copies import poisoned
from repository import ROOT
from slow_cases import slow_but
from trainer_cases import EagerStep, assert_same, both_step, case_loss

import monet
from monet.errors import ConfigError, ExecutionError, PlanMismatch
from monet.executor import parallel
from monet.executor.copying.disk_copies import DiskCopies
from monet.native.channel import Channel
from monet.ops.offers.offering import Offering
from monet.pipeline.offloading import offloaded
from monet.pipeline.planning import plan_smallest
from monet.pipeline.preparation import prepare
from monet.planner.schedules import MOVE
from monet.planner.search import Solving
from monet.plans.format import READ, WRITE
from monet.plans.plan import Plan
from monet.step.second_memory.offload import parse_offload

SHORT = -1002


@pytest.fixture
def moved(disk: Path) -> monet.MonetModule:
    return monet.MonetModule(case_model("layers"), moved_plan("layers", disk))


def assert_no_misses(module: monet.MonetModule) -> None:
    arena = module._step.runner.arena
    assert arena is not None and arena.statistics().misses == 0, arena and arena.statistics()


def count(plan: Plan, kind: str) -> int:
    return sum(step.kind == kind for step in plan.steps)


def assert_right(module: monet.MonetModule, seeds: range = range(2), case: str = "layers") -> None:
    eager = copy.deepcopy(module._model)
    for seed in seeds:
        assert_equal(step_of(module, case, seed), step_of(eager, case, seed))
    assert_no_misses(module)


# Results


@pytest.mark.slow
def test_the_smallest_plan_moves_and_equals_eager(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("monet.pipeline.preparation.profile", costs_by_bytes)
    model = case_model("layers")
    prepared = prepare(model, (case_inputs("layers", 0),), {}, offering=Offering(exact=True))
    whole = offloaded(prepared, parse_offload(f"disk:{disk},{RATES}"))
    solving = Solving(time_limit_s=5)
    fast = plan_smallest(prepared, 0.0, solving)
    both = plan_smallest(whole, 0.0, solving, variant=MOVE)
    assert both.plan.peak_bytes < fast.plan.peak_bytes
    assert both.summary.overhead <= 0
    assert both.summary.bound_bytes is not None and both.summary.bound_bytes <= both.plan.peak_bytes
    assert count(both.plan, READ) > 1
    assert_right(monet.MonetModule(model, both.plan))


def test_a_backward_pass_in_parts_equals_eager(
    disk: Path, moved: monet.MonetModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As inside of DistributedDataParallel: copies go on between the parts, also where the pass is then given up."""
    monkeypatch.setattr(parallel, "part_bytes", lambda: (1,))
    assert_right(moved)
    parameters = list(moved.parameters())
    assert len(moved._step.runner.code_in_parts((1,)).parts) > 2
    for _ in range(2):
        torch.autograd.grad(moved(case_inputs("layers", 0)).sum(), parameters[-1])
        assert not copies_of(moved)._under_way
    assert_right(moved)


@pytest.mark.parametrize("mode", ["asynchronous", "synchronous"])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.sampled(3)
def test_five_steps_equal_eager_bit_by_bit(case: str, mode: str, disk: Path) -> None:
    plan = moved_plan(case, disk, mode)
    module = monet.MonetModule(case_model(case), plan)
    assert_right(module, range(5), case)
    copies = copies_of(module)
    sizes = {buffer.id: buffer.bytes for buffer in plan.buffers}
    written = sum(sizes[id] for step in plan.steps if step.kind == WRITE for id in step.reads.values())
    read = sum(sum(step.request_bytes) for step in plan.steps if step.kind == READ)
    assert written >= 1 << 21 and read >= written
    assert copies.channel.copied().written_bytes == 5 * written
    assert copies.channel.copied().read_bytes == 5 * read
    assert copies.waits.count == 5 * (count(plan, WRITE) + count(plan, READ)) and copies.waits.seconds > 0
    assert not list(disk.iterdir())


@pytest.mark.parametrize("case", CASES)
def test_a_slow_disk_changes_nothing(case: str, disk: Path) -> None:
    module = monet.MonetModule(case_model(case), moved_plan(case, disk))
    copies_of(module).channel.disturb(delay_s=0.01)
    assert_right(module, range(2), case)


@pytest.mark.parametrize("mode", ["asynchronous", "synchronous"])
@pytest.mark.parametrize("case", CASES)
def test_nothing_reads_what_is_away(case: str, mode: str, disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = poisoned(monkeypatch)
    plan = moved_plan(case, disk, mode)
    module = monet.MonetModule(case_model(case), plan)
    copies_of(module).channel.disturb(delay_s=0.005)
    assert_right(module, range(2), case)
    assert counts == [2 * count(plan, WRITE), 2 * count(plan, READ)]


@pytest.mark.slow
def test_the_poison_would_be_seen(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits for what is read back that do not wait: results differ."""
    poisoned(monkeypatch)
    module = monet.MonetModule(case_model("layers"), moved_plan("layers", disk))
    copies, real = copies_of(module), Channel.wait
    reading: set[int] = set()
    read = Channel.read

    def noted(self: Channel, pointer: int, place: int, size: int) -> int:
        ticket = read(self, pointer, place, size)
        reading.add(ticket)
        return ticket

    monkeypatch.setattr(Channel, "read", noted)
    monkeypatch.setattr(Channel, "wait", lambda self, ticket: None if ticket in reading else real(self, ticket))
    copies.channel.disturb(delay_s=0.3)
    found = step_of(module, "layers", 0)
    assert any(tensor.isnan().any() for tensor in found)
    copies.channel.drain()


def test_without_an_arena_copies_go_through_memory_of_their_own(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where PyTorch's allocator serves a step, memory is neither aligned nor are whole blocks of it free."""
    monkeypatch.setattr("monet.native.allocator.library", lambda: None)
    poisoned(monkeypatch)
    module = monet.MonetModule(case_model("layers"), moved_plan("layers", disk))
    assert module._step.runner.arena is None
    copies_of(module).channel.disturb(delay_s=0.002)
    eager = case_model("layers")
    for seed in range(2):
        assert_equal(step_of(module, "layers", seed), step_of(eager, "layers", seed))


@pytest.mark.parametrize("case", slow_but(["convolutions"], ["layers", "convolutions"]))
def test_the_peak_is_the_promise_to_the_byte(case: str, disk: Path) -> None:
    """In a process of its own, since the meter counts all of torch's memory."""
    script = ROOT / "tests" / "support" / "peak_of_moved_step.py"
    done = subprocess.run(
        [sys.executable, str(script), case, str(disk)], capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stderr
    measured, promised = map(int, done.stdout.split())
    assert measured == promised
    assert promised < unmoved_plan(case).peak_bytes


def test_a_forked_process_is_told(moved: monet.MonetModule) -> None:
    """Before an operator that would wait there for threads that were not forked along."""
    out = moved(case_inputs("layers", 0))
    child = os.fork()
    if child == 0:
        said = []
        for forward in (True, False):
            try:
                moved(case_inputs("layers", 1)) if forward else out.sum().backward()
            except (ExecutionError, RuntimeError) as error:  # torch itself refuses a backward pass, as 2.15 does
                said.append(("forked" if forward else "fork") in str(error))
        os._exit(0 if said == [True, True] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    out.sum().backward()


def test_a_module_takes_the_file_of_a_plan(disk: Path, tmp_path: Path) -> None:
    moved_plan("layers", disk).save(tmp_path / "plan.json")
    for path in (tmp_path / "plan.json", str(tmp_path / "plan.json")):
        assert monet.MonetModule(case_model("layers"), path).plan == moved_plan("layers", disk)


def test_worker_processes_of_a_data_loader(moved: monet.MonetModule) -> None:
    """They are forked in every epoch, by default with what is open here."""

    class Rows(torch.utils.data.Dataset[torch.Tensor]):
        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> torch.Tensor:
            return case_inputs("layers", index)

    eager = copy.deepcopy(moved._model)
    for _ in range(2):
        for batch in torch.utils.data.DataLoader(
            Rows(), batch_size=None, num_workers=2, multiprocessing_context="fork"
        ):
            moved(batch).sum().backward()
            eager(batch).sum().backward()
    for p, q in zip(moved.parameters(), eager.parameters(), strict=True):
        assert p.grad is not None and q.grad is not None and torch.equal(p.grad, q.grad)


# Failures


FAILURES = [(0, errno.EIO), (1, errno.ENOSPC), (-1, SHORT)]


@pytest.mark.parametrize(("which", "error"), FAILURES)
def test_a_write_that_fails(moved: monet.MonetModule, which: int, error: int) -> None:
    assert_right(moved, range(1))
    copies_of(moved).channel.disturb(failing_chunk=which % count(moved.plan, WRITE), error=error)
    with pytest.raises(ExecutionError, match=r"step (\d+) \((write|wait) \w+\): .*failed: ") as raised:
        moved(case_inputs("layers", 1))
    _assert_names_its_step(moved.plan, str(raised.value))
    assert_right(moved, range(2, 4))


@pytest.mark.parametrize(("which", "error"), FAILURES)
def test_a_read_that_fails(moved: monet.MonetModule, which: int, error: int) -> None:
    assert_right(moved, range(1))
    out = moved(case_inputs("layers", 1))
    moved.zero_grad(set_to_none=True)
    copies_of(moved).channel.disturb(failing_chunk=which % count(moved.plan, READ), error=error)
    with pytest.raises(ExecutionError, match=r"step (\d+) \((read|wait) \w+\): .*failed: ") as raised:
        out.backward(torch.ones_like(out))
    _assert_names_its_step(moved.plan, str(raised.value))
    assert all(p.grad is None for p in moved.parameters())
    assert_right(moved, range(2, 4))


def _assert_names_its_step(plan: Plan, message: str) -> None:
    found = re.match(r"step (\d+) \((\w+) (\w+)\)", message)
    assert found is not None
    step = plan.steps[int(found[1])]
    assert (step.kind, step.node) == (found[2], found[3])


def test_every_step_may_fail_in_turn(moved: monet.MonetModule) -> None:
    """Of every copy of a step once, and no step in between."""
    copies = count(moved.plan, WRITE) + count(moved.plan, READ)
    for which in range(copies):
        copies_of(moved).channel.disturb(delay_s=0.001, failing_chunk=which, error=errno.EIO)
        with pytest.raises(ExecutionError, match="Input/output error"):
            step_of(moved, "layers", which)
    copies_of(moved).channel.disturb()
    assert_right(moved)


def test_exception_in_the_loss(moved: monet.MonetModule) -> None:
    copies_of(moved).channel.disturb(delay_s=0.002)
    try:
        out = moved(case_inputs("layers", 0))
        raise ValueError("in the user's loss")
    except ValueError:
        pass
    assert_right(moved)
    del out


def test_exception_in_a_hook(moved: monet.MonetModule) -> None:
    def refuse(*_: Any) -> None:
        raise ValueError("in the user's hook")

    out = moved(case_inputs("layers", 0))
    hook = out.register_hook(refuse)
    with pytest.raises(ValueError, match="in the user's hook"):
        out.sum().backward()
    hook.remove()
    assert_right(moved)


def test_forward_without_backward_and_a_second_forward(moved: monet.MonetModule) -> None:
    copies_of(moved).channel.disturb(delay_s=0.002)
    first = moved(case_inputs("layers", 0))
    moved(case_inputs("layers", 1))
    with pytest.raises(ExecutionError, match="one step at a time"):
        first.backward(torch.ones_like(first))
    assert_right(moved)
    with torch.no_grad():
        assert torch.equal(moved(case_inputs("layers", 3)), moved._model(case_inputs("layers", 3)))
    assert_right(moved)


def broken(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_interrupt_at_any_operator_while_copies_are_under_way(phase: str, moved: monet.MonetModule) -> None:
    """The next step is right, though memory that was read into is used again at once."""
    runner = moved._step.runner
    copies_of(moved).channel.disturb(delay_s=0.005)
    space = getattr(runner.code, phase).__globals__
    names = [n for n, f in space.items() if n.startswith("f_") and getattr(f, "__self__", None) is not runner.copies]
    interrupted = 0
    for name in names:
        out = moved(case_inputs("layers", 0)) if phase == "backward" else None
        real, space[name] = space[name], broken
        try:
            moved(case_inputs("layers", 0)) if out is None else out.sum().backward()
        except KeyboardInterrupt:
            interrupted += 1
            assert not copies_of(moved)._under_way
        finally:
            space[name] = real
        assert_right(moved, range(1))
    assert interrupted >= 3


@pytest.mark.parametrize("kind", ["write", "read"])
def test_interrupt_right_after_an_issue(kind: str, moved: monet.MonetModule, monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy is under way and nobody has its ticket: the step still does not end before it is over."""
    channel = copies_of(moved).channel
    assert_right(moved, range(1))
    before = channel.copied()
    real: Callable[..., int] = getattr(Channel, kind)
    sizes: list[int] = []

    def interrupted(self: Channel, pointer: int, place: int, size: int) -> int:
        real(self, pointer, place, size)
        sizes.append(size)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Channel, kind, interrupted)
        out = moved(case_inputs("layers", 1)) if kind == "read" else None
        channel.disturb(delay_s=0.3)
        with pytest.raises(KeyboardInterrupt):
            moved(case_inputs("layers", 1)) if out is None else out.sum().backward()
        after = channel.copied()
    done = after.read_bytes - before.read_bytes if kind == "read" else after.written_bytes - before.written_bytes
    assert done == sum(sizes) > 0
    channel.disturb()
    assert_right(moved)


# Copies of modules, files of plans


def test_copies_and_pickles_have_their_own_channel(moved: monet.MonetModule) -> None:
    twins = [copy.deepcopy(moved), pickle.loads(pickle.dumps(moved))]
    assert len({id(copies_of(m).channel) for m in (moved, *twins)}) == 3
    for module in (*twins, moved):
        assert_right(module)
    outputs = [module(case_inputs("layers", 5)) for module in (moved, *twins)]
    for out in reversed(outputs):
        out.backward(torch.ones_like(out))
    gradients = [[p.grad for p in module.parameters()] for module in (moved, *twins)]
    for others in gradients[1:]:
        for one, other in zip(gradients[0], others, strict=True):
            assert one is not None and other is not None and torch.equal(one, other)


def test_a_plan_from_its_file(disk: Path, tmp_path: Path) -> None:
    plan = moved_plan("dropout", disk)
    plan.save(tmp_path / "plan.json")
    loaded = Plan.load(tmp_path / "plan.json")
    assert loaded == plan
    assert_right(monet.MonetModule(case_model("dropout"), loaded), range(2), "dropout")


def test_whole_steps_equal_eager(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("monet.pipeline.preparation.profile", costs_by_bytes)

    def batch(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        return case_inputs("layers", seed), torch.arange(len(case_inputs("layers", seed))) % 10

    def make(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, 0.05, momentum=0.9)

    def trainer(model: torch.nn.Module, budget: int | str, offload: str | None) -> monet.Trainer:
        options: dict[str, Any] = {"loss_fn": case_loss, "exact": True, "time_limit_s": 5, "offload": offload}
        return monet.optimize(model, *batch(0), optimizer=make(list(model.parameters())), budget=budget, **options)

    full = trainer(case_model("layers"), "10GB", None).plan
    model = case_model("layers")
    eager = EagerStep(model, make)
    budget = full.fixed_bytes + 7 * full.arena_bytes // 10
    planned = trainer(model, budget, f"disk:{disk},{RATES}")
    assert count(planned.plan, WRITE) >= 1 and planned.plan.peak_bytes <= budget < full.peak_bytes
    copies = planned._step.runner.copies
    assert isinstance(copies, DiskCopies)
    copies.channel.disturb(delay_s=0.002)
    for seed in range(3):
        both_step(planned, eager, batch(seed), seed)
    assert_same(model.state_dict(), eager.model.state_dict(), "model")
    copies.channel.disturb(failing_chunk=0, error=errno.EIO)
    with pytest.raises(ExecutionError, match="Input/output error"):
        planned(*batch(3))


# Plans for another place


def second_memory(plan: Plan, **changes: Any) -> Plan:
    described = {**plan.environment["second_memory"], **changes}
    return replace(plan, environment={**plan.environment, "second_memory": described})


def test_a_plan_for_rates_alone_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("monet.pipeline.preparation.profile", costs_by_bytes)
    full = unmoved_plan("layers")
    budget = full.fixed_bytes + 6 * full.arena_bytes // 10
    plan = monet.plan(
        case_model("layers"), case_inputs("layers", 0), budget=budget, exact=True, offload="bandwidth=8GB/s",
        time_limit_s=5,
    )  # fmt: skip
    assert plan.second_bytes > 0
    with pytest.raises(PlanMismatch, match="of which only the rates are known"):
        monet.MonetModule(case_model("layers"), plan)


def test_a_plan_that_moves_nothing_needs_no_disk(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("monet.pipeline.preparation.profile", costs_by_bytes)
    model, x = case_model("layers"), case_inputs("layers", 0)
    plan = monet.plan(model, x, budget="10GB", exact=True, offload=f"disk:{disk},{RATES}")
    assert plan.second_bytes == 0
    module = monet.MonetModule(model, second_memory(plan, folder=str(disk / "nowhere")))
    assert module._step.runner.copies is None
    assert_right(module)


def test_a_plan_for_another_disk(disk: Path) -> None:
    plan = second_memory(moved_plan("layers", disk), device="259:99 ext4 /dev/nvme9n1")
    with pytest.raises(PlanMismatch, match=r"timed for the disk \[259:99 ext4 /dev/nvme9n1\], and .* plan again"):
        monet.MonetModule(case_model("layers"), plan)


def test_a_folder_that_is_gone(disk: Path) -> None:
    plan = second_memory(moved_plan("layers", disk), folder=str(disk / "gone"))
    with pytest.raises(ConfigError, match="gone is not a folder"):
        monet.MonetModule(case_model("layers"), plan)


def test_a_disk_that_has_become_full(disk: Path) -> None:
    plan = replace(moved_plan("layers", disk), second_bytes=1 << 60)
    with pytest.raises(ConfigError, match="more than its disk has left"):
        monet.MonetModule(case_model("layers"), plan)


def test_given_rates_are_not_measured(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(*_: Any, **__: Any) -> None:
        raise AssertionError("the disk was measured")

    monkeypatch.setattr("monet.step.second_memory.bandwidth.measure", measured)
    moved_plan.cache_clear()
    described = moved_plan("layers", disk).environment["second_memory"]
    assert described["write_rate"] == described["read_rate"] == 8e9
    assert described["slowdown_s"] == 0 and "measured" not in described

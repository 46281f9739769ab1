"""Steps that move tensors from a GPU to main memory: bitwise eager's, whenever the copies are made.

On the CPU by ``simulated_cuda``, and on a GPU where there is one.
"""

from __future__ import annotations

import copy
import gc
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from module_cases import costs_by_bytes
from moved_steps import CASES, assert_equal, case_inputs, case_model, step_of, unmoved_plan
from simulated_cuda import simulated_cuda

import monet
from monet.errors import ConfigError, ExecutionError, PlanMismatch
from monet.executor.copying.host_copies import HostCopies
from monet.plans.format import READ, WRITE
from monet.plans.plan import Plan
from monet.step.second_memory import bandwidth as rates
from monet.step.second_memory import streams, trials
from monet.step.second_memory.bandwidth import host_bandwidth

DEVICE = torch.device("cuda")
HOST = {"disk": False, "host": True, "device": "cuda simulated"}


def _late() -> Callable[[], int]:
    return lambda: 0


def _early() -> Callable[[], int]:
    return lambda: 1 << 30


def _anyhow() -> Callable[[], int]:
    generator = random.Random(7)
    return lambda: generator.randrange(4)


WHEN = {"late": _late, "early": _early, "anyhow": _anyhow}


@pytest.fixture(params=sorted(WHEN))
def cuda(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    yield simulated_cuda(monkeypatch, WHEN[request.param]())
    gc.collect()  # modules whose memory is unpinned by the simulation


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    yield simulated_cuda(monkeypatch, _late())
    gc.collect()


def planned(case: str, monkeypatch: pytest.MonkeyPatch) -> Plan:
    """For the CPU, with the second memory of a GPU."""
    monkeypatch.setattr("monet.pipeline.preparation.profile", costs_by_bytes)
    full = unmoved_plan(case)
    budget = full.fixed_bytes + int(CASES[case][2] * full.arena_bytes)
    plan = monet.plan(
        case_model(case), case_inputs(case, 0), budget=budget, exact=True, offload="bandwidth=8GB/s", time_limit_s=10
    )
    described = {**plan.environment["second_memory"], **HOST}
    return replace(plan, environment={**plan.environment, "second_memory": described})


def count(plan: Plan, kind: str) -> int:
    return sum(step.kind == kind for step in plan.steps)


def copies_of(module: monet.MonetModule) -> HostCopies:
    copies = module._step.runner.copies
    assert isinstance(copies, HostCopies)
    return copies


@pytest.mark.parametrize("case", sorted(CASES))
@pytest.mark.sampled(2)
def test_five_steps_equal_eager_bit_by_bit(case: str, cuda: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned(case, monkeypatch)
    assert count(plan, READ) > 1
    module = monet.MonetModule(case_model(case), plan)
    eager = copy.deepcopy(module._model)
    for seed in range(5):
        assert_equal(step_of(module, case, seed), step_of(eager, case, seed))
    arena = module._step.runner.arena
    assert arena is not None and arena.statistics().misses == 0
    waited = count(plan, WRITE) + count(plan, READ)
    copies = copies_of(module)
    assert cuda.copies == 5 * waited == copies.waits.count
    assert copies.waits.seconds == pytest.approx(5 * waited * 2e-3)


def test_what_is_not_waited_for_is_noticed(late: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """That the simulation would show a copy that comes too late."""
    module = monet.MonetModule(case_model("layers"), planned("layers", monkeypatch))
    eager = copy.deepcopy(module._model)
    monkeypatch.setattr(streams.CopyStreams, "wait", lambda self, fence: None)
    with pytest.raises(AssertionError, match=r"tensor \d+"):
        assert_equal(step_of(module, "layers", 0), step_of(eager, "layers", 0))


def test_a_read_follows_the_write_of_its_place(late: SimpleNamespace) -> None:
    """Whatever the plan: the two are on different streams."""
    copies = HostCopies(streams.CopyStreams(DEVICE), streams.pinned(8192))
    one = torch.arange(1024.0)
    value: Any = SimpleNamespace(dtype=one.dtype, device=one.device, offset=0, shape=(1024,), stride=(1,))
    copies.write(one, 4096, 4096)
    back = copies.read(value, 4096, 4096)
    copies.wait(4096)
    assert torch.equal(back, one)
    assert not copies.memory[:4096].view(torch.float32).equal(one)


def test_a_write_follows_the_read_of_its_place(late: SimpleNamespace) -> None:
    """Of the step before, which may have been another stream's."""
    copies = HostCopies(streams.CopyStreams(DEVICE), streams.pinned(4096))
    one, two = torch.arange(1024.0), torch.zeros(1024)
    value: Any = SimpleNamespace(dtype=one.dtype, device=one.device, offset=0, shape=(1024,), stride=(1,))
    copies.write(one, 0, 4096)
    back = copies.read(value, 0, 4096)
    copies.write(two, 0, 4096)
    copies.wait(0)
    assert torch.equal(back, one)


def test_a_graph_is_not_captured(late: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    module = monet.MonetModule(case_model("layers"), planned("layers", monkeypatch))
    eager = copy.deepcopy(module._model)
    late.capturing = True
    with pytest.raises(ExecutionError, match=r"cannot be captured .* without --offload"):
        module(case_inputs("layers", 0))
    late.capturing = False
    assert_equal(step_of(module, "layers", 0), step_of(eager, "layers", 0))


def test_a_step_that_is_cut_short_leaves_nothing(late: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    module = monet.MonetModule(case_model("layers"), planned("layers", monkeypatch))
    eager, write, written = copy.deepcopy(module._model), HostCopies.write, []

    def failing(self: HostCopies, tensor: torch.Tensor, place: int, size: int) -> None:
        write(self, tensor, place, size)
        written.append(place)
        if len(written) == 2:
            raise ExecutionError("in the second")

    with monkeypatch.context() as patched:
        patched.setattr(HostCopies, "write", failing)
        again = monet.MonetModule(module._model, module.plan)
        with pytest.raises(ExecutionError, match="in the second"):
            again(case_inputs("layers", 0))
        assert not copies_of(again)._under_way
    for seed in range(2):
        assert_equal(step_of(again, "layers", seed), step_of(eager, "layers", seed))


def test_memory_is_given_back(late: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    module = monet.MonetModule(case_model("layers"), planned("layers", monkeypatch))
    assert late.pinned == 1
    del module
    gc.collect()
    assert late.pinned == 0


def test_refusals(late: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, model = planned("layers", monkeypatch), case_model("layers")
    described = {**plan.environment["second_memory"], "device": "cuda other"}
    other = replace(plan, environment={**plan.environment, "second_memory": described})
    with pytest.raises(PlanMismatch, match=re.escape("timed for [cuda other], and this is [cuda simulated]")):
        monet.MonetModule(model, other)
    with monkeypatch.context() as patched:
        patched.setattr(streams, "available_bytes", lambda: plan.second_bytes - 1)
        with pytest.raises(ConfigError, match="1 more than is left"):
            monet.MonetModule(model, plan)
    runtime = SimpleNamespace(cudaHostRegister=lambda *_: 2)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    with pytest.raises(ExecutionError, match=r"cannot be pinned \(CUDA error 2\)"):
        monet.MonetModule(model, plan)


@pytest.mark.parametrize(
    ("offload", "why"), [("host", "is in main memory already"), ("host,mode=static", "main memory is not for")]
)
def test_a_model_on_the_cpu_has_no_use_for_it(offload: str, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And is told so before anything is measured."""
    monkeypatch.setattr("monet.api.how.prepare", lambda *_, **__: pytest.fail("prepared"))
    with pytest.raises(ConfigError, match=why):
        monet.plan(case_model("layers"), case_inputs("layers", 0), budget="10GB", offload=offload)


def test_rates_are_measured_and_kept(late: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the simulation: that it ends, counts what was copied, and gives back what it pinned."""
    monkeypatch.setattr(rates, "SECONDS", 0.01)
    monkeypatch.setattr(trials, "HOST_BESIDE", 8)
    monkeypatch.setattr(trials, "PIECE", 1 << 16)
    cpu: Any = torch.device("cpu")
    found = host_bandwidth(cpu)
    assert found.write_rate > 0 and found.read_rate > 0 and found.slowdown_s >= 0
    assert late.pinned == 0
    known: int = late.copies
    assert host_bandwidth(cpu) == found and late.copies == known


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("case", sorted(CASES))
def test_on_a_gpu(case: str) -> None:
    model, x = case_model(case).cuda(), case_inputs(case, 0).cuda()
    full = monet.plan(model, x, budget="10GB", exact=True)
    budget = full.fixed_bytes + int(CASES[case][2] * full.arena_bytes)
    plan = monet.plan(model, x, budget=budget, exact=True, offload="host,write=400GB/s,read=400GB/s", time_limit_s=20)
    assert count(plan, READ) > 0
    module, eager = monet.MonetModule(model, plan), copy.deepcopy(model)
    for seed in range(5):
        inputs = case_inputs(case, seed).cuda()
        results = []
        for one in (module, eager):
            torch.manual_seed(seed)
            one.zero_grad(set_to_none=True)
            out = one(inputs)
            out.square().sum().backward()
            results.append([out.detach(), *(p.grad.clone() for p in one.parameters() if p.grad is not None)])
        assert_equal(*results)

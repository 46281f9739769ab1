"""The same steps on a CUDA device: results equal eager's, from an arena, at the peak that the plan promises."""

from __future__ import annotations

import copy
import gc
from collections.abc import Iterator

import pytest
import torch
from small_models import Residual, Transformer

import monet
from monet.native import devices

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
BUDGETS = ("10GB", "90%")


@pytest.fixture(autouse=True)
def deterministic() -> Iterator[None]:
    before = torch.backends.cudnn.deterministic
    torch.backends.cudnn.deterministic = True
    torch.manual_seed(0)
    yield
    torch.backends.cudnn.deterministic = before


def residual() -> tuple[torch.nn.Module, torch.Tensor]:
    return Residual(16).cuda(), torch.randn(8, 3, 32, 32, device="cuda")


def transformer() -> tuple[torch.nn.Module, torch.Tensor]:
    """With dropout."""
    return Transformer().cuda(), torch.randint(0, 50, (3, 9), device="cuda")


MODELS = {"residual": residual, "transformer": transformer}
EACH_PLAN = pytest.mark.parametrize(("name", "budget"), [(name, budget) for name in MODELS for budget in BUDGETS])


def planned_module(model: torch.nn.Module, x: torch.Tensor, budget: str, exact: bool = False) -> monet.MonetModule:
    plan = monet.plan(model, (x,), {}, budget=budget, time_limit_s=20, exact=exact)
    return monet.MonetModule(copy.deepcopy(model), plan)


def planned_case(
    name: str, budget: str, exact: bool = False
) -> tuple[torch.nn.Module, torch.Tensor, monet.MonetModule]:
    model, x = MODELS[name]()
    return model, x, planned_module(model, x, budget, exact)


def step(module: torch.nn.Module, x: torch.Tensor, seed: int) -> torch.Tensor:
    module.zero_grad(set_to_none=True)
    torch.manual_seed(seed)
    out: torch.Tensor = module(x)
    out.float().square().sum().backward()
    return out.detach()


@EACH_PLAN
def test_results_equal_eagers(name: str, budget: str) -> None:
    model, x, planned = planned_case(name, budget)
    for number in range(3):
        torch.testing.assert_close(step(planned, x, number), step(model, x, number), rtol=1e-4, atol=1e-5)
        for p, q in zip(model.parameters(), planned.parameters(), strict=True):
            torch.testing.assert_close(q.grad, p.grad, rtol=1e-3, atol=1e-4)


@EACH_PLAN
def test_exact_plans_equal_eager_bit_by_bit(name: str, budget: str) -> None:
    model, x, planned = planned_case(name, budget, exact=True)
    for number in range(2):
        assert torch.equal(step(planned, x, number), step(model, x, number))
        for p, q in zip(model.parameters(), planned.parameters(), strict=True):
            assert p.grad is not None and q.grad is not None and torch.equal(q.grad, p.grad)


@EACH_PLAN
def test_every_request_is_as_planned(name: str, budget: str) -> None:
    _, x, planned = planned_case(name, budget)
    for number in range(2):
        step(planned, x, number)
    arena = planned._step.runner.arena
    assert arena is not None
    statistics = arena.statistics()
    assert statistics.misses == 0, statistics
    assert statistics.served > 0


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("name", MODELS)
def test_promise_is_the_allocators_peak(name: str, budget: str) -> None:
    model, x = MODELS[name]()
    planned = planned_module(model, x, budget)
    del model
    out = planned(x)
    tangent = torch.ones_like(out)
    out.backward(tangent)  # libraries have their workspaces from here on
    del out
    planned.zero_grad(set_to_none=True)
    arena = planned._step.runner.arena
    assert arena is not None
    arena.unmap()
    gc.collect()
    device = torch.device("cuda")
    inside = [*planned.parameters(), *planned.buffers(), x]
    beside = torch.cuda.memory_stats()["requested_bytes.all.current"] - sum(
        t.untyped_storage().nbytes() for t in inside
    )
    devices.reset_peak(device)
    planned(x).backward(tangent)
    peak = devices.peak_bytes(device)
    assert peak is not None and peak - beside == planned.plan.peak_bytes


def test_measured_step_of_the_command() -> None:
    from click.testing import CliRunner

    from monet.cli.main import program

    result = CliRunner().invoke(program, ["plan", "tiny.yaml", "--device", "cuda", "--budget", "90%", "--measure"])
    assert result.exit_code == 0, result.output
    assert "measured" in result.output


def test_steps_on_changing_streams() -> None:
    model, x = residual()
    planned = planned_module(model, x, "90%")
    step(model, x, 0)
    streams = [torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
    for stream in (*streams, *streams):
        stream.wait_stream(torch.cuda.default_stream())
        with torch.cuda.stream(stream):
            step(planned, x, 0)
        torch.cuda.default_stream().wait_stream(stream)
        for p, q in zip(model.parameters(), planned.parameters(), strict=True):
            torch.testing.assert_close(q.grad, p.grad, rtol=1e-3, atol=1e-4)


def test_gradients_used_on_another_stream() -> None:
    """``record_stream`` on memory of the arena: the next step waits."""
    model, x = residual()
    planned = planned_module(model, x, "90%")
    step(model, x, 0)
    step(planned, x, 0)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    sums = []
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)
        for p in planned.parameters():
            assert p.grad is not None
            sums.append(p.grad.double().sum())
            p.grad.record_stream(side)
    step(planned, x, 1)
    torch.cuda.synchronize()
    for p, found in zip(model.parameters(), sums, strict=True):
        assert p.grad is not None
        torch.testing.assert_close(found, p.grad.double().sum(), rtol=1e-3, atol=1e-3)


def test_a_captured_step_replays() -> None:
    """In a graph that the user captures; the arena stays as long as the graph."""
    model, x = residual()
    planned = planned_module(model, x, "90%")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for number in range(3):
            step(planned, x, number)
    torch.cuda.current_stream().wait_stream(side)
    planned.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        planned(x).float().square().sum().backward()
    for seed in range(2):
        x.copy_(torch.randn(x.shape, generator=torch.Generator().manual_seed(seed)))
        graph.replay()
        step(model, x, 0)
        for p, q in zip(model.parameters(), planned.parameters(), strict=True):
            torch.testing.assert_close(q.grad, p.grad, rtol=1e-3, atol=1e-4)
    planned.zero_grad(set_to_none=True)


def test_memory_is_given_back() -> None:
    model, x = residual()
    gc.collect()
    step(model, x, 0)
    model.zero_grad(set_to_none=True)
    before = torch.cuda.memory_allocated()
    planned = planned_module(model, x, "90%")
    step(planned, x, 0)
    del planned
    gc.collect()
    assert torch.cuda.memory_allocated() == before

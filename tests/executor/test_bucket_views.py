"""A planned module inside ``DistributedDataParallel``: gradients that are moved into buckets are eager's.

One process: what is tested is where gradients lie, not that processes agree.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import monet
from monet.executor.held_gradients import HeldGradients
from monet.native import allocator

pytestmark = pytest.mark.skipif(
    not allocator.available() or not dist.is_available() or not dist.is_gloo_available(), reason="no compiler or gloo"
)


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'meeting'}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def _model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 10))


@pytest.mark.parametrize("views", [False, True])
@pytest.mark.parametrize("to_none", [False, True])
@pytest.mark.parametrize("gradients", ["freed", "kept"])
def test_gradients_in_buckets_are_eagers(
    group: None, views: bool, to_none: bool, gradients: Literal["freed", "kept"]
) -> None:
    models = [_model(), _model()]
    plan = monet.plan(models[0], torch.ones(64, 96), budget="100%", time_limit_s=2.0, gradients=gradients)
    planned = monet.MonetModule(models[0], plan)
    # Small buckets, so that there are several.
    wrapped = [
        DistributedDataParallel(m, gradient_as_bucket_view=views, bucket_cap_mb=0.03) for m in (planned, models[1])
    ]
    optimizers = [torch.optim.SGD(m.parameters(), 0.01, momentum=0.9) for m in models]
    generator = torch.Generator().manual_seed(1)
    for _ in range(5):
        x = torch.randn(64, 96, generator=generator)
        for module in wrapped:
            module(x).square().mean().backward()
        for p, q in zip(models[0].parameters(), models[1].parameters(), strict=True):
            assert p.grad is not None and q.grad is not None and torch.equal(p.grad, q.grad)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=to_none)
    assert all(torch.equal(p, q) for p, q in zip(models[0].parameters(), models[1].parameters(), strict=True))


@pytest.mark.parametrize("views", [False, True])
def test_the_promise_counts_the_buckets(group: None, views: bool) -> None:
    gc.collect()
    model = _model()
    monet.apply(model, budget="100%", time_limit_s=2.0, progress=False)
    before = allocator.live_bytes()  # with the parameters
    wrapped = DistributedDataParallel(model, gradient_as_bucket_view=views, bucket_cap_mb=0.03)
    peaks = []
    for seed in range(5):
        x = torch.randn(64, 96, generator=torch.Generator().manual_seed(seed))
        model.zero_grad()
        gc.collect()
        allocator.reset_peak()
        out = wrapped(x)
        out.backward(torch.ones_like(out))
        peaks.append(allocator.peak_bytes() - before + sum(p.nbytes for p in model.parameters()))
        del x, out
    (plan,) = monet.applied(model).plans
    assert plan.fixed["buckets"] == sum(p.nbytes for p in model.parameters())
    # Beside the plan are 12 bytes: the number that it divides by, in double precision and in the gradients'.
    assert plan.peak_bytes <= peaks[-1] == peaks[-2] <= plan.peak_bytes + 12


def test_buckets_that_the_plan_does_not_count_are_told(group: None, caplog: pytest.LogCaptureFixture) -> None:
    told = []
    for counted in (False, True):
        model = _model()
        buckets = sum(p.nbytes for p in model.parameters())
        plan = monet.plan(
            model, torch.ones(64, 96), budget="100%", time_limit_s=2.0, bucket_bytes=buckets if counted else 0
        )
        caplog.clear()
        wrapped = DistributedDataParallel(monet.MonetModule(model, plan))
        for _ in range(2):
            wrapped(torch.ones(64, 96)).sum().backward()
            model.zero_grad()
        told.append([record.getMessage() for record in caplog.records if "buckets" in record.getMessage()])
    (sentence,), nothing = told
    assert f"plan with bucket_bytes={buckets}" in sentence and nothing == []


@pytest.mark.parametrize("counted", [True, False])
def test_views_of_buckets_are_held_where_the_plan_does_not_count_these(counted: bool) -> None:
    first, second = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
    bucket = torch.zeros(40)
    first.weight.grad, second.weight.grad = bucket[:16].view(4, 4), torch.zeros(4, 4)
    plan = SimpleNamespace(model={}, fixed={"buckets": 160} if counted else {})
    runner: Any = SimpleNamespace(plan=plan, arena=None, held_bytes=0)
    held = HeldGradients(nn.Sequential(first, second), runner).beside_arena()
    assert held == 4 * 16 + (0 if counted else 4 * 40)

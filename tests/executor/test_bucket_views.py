"""A planned module inside ``DistributedDataParallel``: gradients that are moved into buckets are eager's.

One process: what is tested is where gradients lie, not that processes agree.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import monet
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

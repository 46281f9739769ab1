"""Results that lie elsewhere than the plan says, and the sizes of buckets around a step."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import monet
from monet.errors import ExecutionError
from monet.executor import parallel
from monet.executor.places import Places


def _arena(offset: int, *, contains: bool = True) -> Any:
    return SimpleNamespace(contains=lambda at: contains, offset=lambda at: offset)


def test_a_result_lies_in_its_place() -> None:
    result = torch.zeros(4)
    places = Places({3: {"y": 128}})
    places.look(3, "y", result)  # nothing serves it
    for arena in (_arena(128), _arena(64, contains=False)):
        places.arena = arena
        places.look(3, "y", result)
    for offset, said in ((192, "y lies 64 bytes above its place"), (64, "y lies 64 bytes below its place")):
        places.arena = _arena(offset)
        with pytest.raises(ExecutionError, match=said):
            places.look(3, "y", result)


def test_results_of_one_size_are_looked_at() -> None:
    """Mean and deviation of a batch: their requests differ in nothing but their number."""
    model = nn.Sequential(nn.BatchNorm1d(8), nn.Linear(8, 4))
    plan = monet.plan(model, torch.randn(6, 8), budget="1MB", exact=True)
    places = Places.of(plan)
    number = next(n for n, step in enumerate(plan.steps) if "batch_norm" in step.node)
    at = {buffer.id: buffer.offset for buffer in plan.buffers}
    writes, node = plan.steps[number].writes, places.offsets[number]
    assert len(node) == 2 and node == {name: at[writes[name]] for name in node}
    assert places.unseen
    places.seen()
    assert not places.unseen


@pytest.mark.skipif(not dist.is_available(), reason="no torch.distributed")
@pytest.mark.parametrize(
    ("around", "sizes"),
    [
        (None, None),
        (SimpleNamespace(bucket_bytes_cap_list=[10, 20], bucket_bytes_cap=99), (10, 20)),
        (SimpleNamespace(bucket_bytes_cap_list=[], bucket_bytes_cap=99), (99, 99)),
        (SimpleNamespace(bucket_bytes_cap=99, bucket_bytes_cap_default=True), (dist._DEFAULT_FIRST_BUCKET_BYTES, 99)),  # type: ignore[attr-defined]
    ],
)  # fmt: skip
def test_parts_are_as_large_as_buckets(around: Any, sizes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "active", lambda: around)
    assert parallel.part_bytes() == sizes

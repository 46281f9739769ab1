"""What a GPU takes for a call, by events of a GPU that is not there."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from monet.ops.measuring import timer

CUDA = torch.device("cuda", 0)


class Gpu:
    """``now_s``: what it has done by now. Each event takes two microseconds."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.products = 0

    def event(self, enable_timing: bool = False) -> Any:
        assert enable_timing
        gpu, of = self, SimpleNamespace(at_s=0.0)

        def record(stream: Any) -> None:
            gpu.now_s += 2e-6
            of.at_s = gpu.now_s

        of.record, of.synchronize = record, lambda: None
        of.elapsed_time = lambda later: (later.at_s - of.at_s) * 1e3
        return of

    def product(self, one: torch.Tensor, other: torch.Tensor) -> None:
        self.products += 1


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    made, ones = Gpu(), torch.ones
    monkeypatch.setattr(torch.cuda, "Event", made.event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch, "mm", made.product)
    monkeypatch.setattr(torch, "ones", lambda *size, device=None: ones(1))
    monkeypatch.setattr(timer, "WARM_UP_S", 0.01)
    return made


def test_a_gpus_own_time_without_the_events(gpu: Gpu) -> None:
    timed = timer.timer(CUDA)
    assert gpu.products > 0, "its clock is at its full rate before anything is timed"

    def call() -> str:
        gpu.now_s += 5e-6
        return "result"

    result, took_s = timed(call)
    assert result == "result" and took_s == pytest.approx(5e-6)
    assert timed(lambda: None)[1] == pytest.approx(0.0, abs=1e-12)


def test_the_cpus_own_clock() -> None:
    result, took_s = timer.timer(torch.device("cpu"))(lambda: sum(range(100_000)))
    assert result == sum(range(100_000)) and took_s > 0

"""Seconds of a plan's steps on a GPU, by events of a GPU that is not there."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from monet.executor.step_times import StepTimes


class _Event:
    """Of a GPU that has done nothing yet when the CPU records it: ``synchronize`` waits until it has."""

    recorded = 0

    def __init__(self, enable_timing: bool = False) -> None:
        assert enable_timing
        self.at_s: float | None = None

    def record(self, stream: object) -> None:
        self.number = _Event.recorded
        _Event.recorded += 1

    def synchronize(self) -> None:
        self.at_s = self.number**2 / 1e3

    def elapsed_time(self, later: _Event) -> float:
        assert later.at_s is not None, "it has not happened"
        return 1e3 * (later.at_s - self.number**2 / 1e3)


def test_a_gpus_steps_have_its_own_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Event", _Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    entered: list[int] = []
    runner: Any = SimpleNamespace(
        _device=torch.device("cuda", 0), _enter=lambda handle, step: entered.append(step), _leave=lambda: None
    )  # fmt: skip
    with StepTimes(runner) as times:
        for first in (0, 2):  # a forward and a backward pass of two steps
            runner._enter(0, first)
            runner._enter(0, first + 1)
            runner._leave()
    assert entered == [0, 1, 2, 3]
    # The n-th moment is at n² ms; three moments in each pass.
    assert [step for step, _ in times.steps()] == entered
    assert [1e3 * taken_s for _, taken_s in times.steps()] == pytest.approx([1, 3, 7, 9])

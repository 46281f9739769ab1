"""Seconds of every step of a plan, where it runs: in its arena, between its neighbours. On a GPU they are its own, by
events of its stream: the CPU gives it the next step before it has begun with this one."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from types import TracebackType
from typing import Any

import torch

from monet.executor.codegen import implementation_of
from monet.executor.planned_step import PlannedStep, planned_catalogue
from monet.executor.runner import Runner
from monet.ops.measuring.signature import signature


class StepTimes:
    """A context in which a runner's passes are timed. A step's seconds have the views that it reads and what is
    released after it."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._enter, self._leave = runner._enter, runner._leave
        self._began: list[tuple[int, Any]] = []
        self._timed: list[tuple[int, Any, Any]] = []  # step, begin, end

    def __enter__(self) -> StepTimes:
        self._runner._enter, self._runner._leave = self._timed_enter, self._timed_leave
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._runner._enter, self._runner._leave = self._enter, self._leave

    def steps(self) -> Iterator[tuple[int, float]]:
        """Of all passes, in order: a step of the plan, and what one run of it took."""
        for step, begin, end in self._timed:
            yield step, _seconds_between(begin, end)

    def _timed_enter(self, handle: int, step: int) -> None:
        self._began.append((step, self._now()))
        self._enter(handle, step)

    def _timed_leave(self) -> None:
        ended = self._now()
        self._leave()
        began, self._began = self._began, []
        if not began:  # a pass without steps, or one that failed before its first
            return
        ends = [*(at for _, at in began[1:]), ended]
        self._timed += [(step, at, end) for (step, at), end in zip(began, ends, strict=True)]

    def _now(self) -> Any:
        device = self._runner._device
        if device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(device))
        return event


def _seconds_between(begin: Any, end: Any) -> float:
    if isinstance(begin, float):
        return float(end - begin)
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3


def seconds_by_signature(step: PlannedStep, seconds: Mapping[int, Sequence[float]]) -> dict[str, list[float]]:
    """By signature, the median ``seconds`` of each step of the plan that runs it; copies are left out."""
    offers = planned_catalogue(step.graph, step.plan)
    found: dict[str, list[float]] = {}
    for number, planned in enumerate(step.plan.steps):
        if planned.place is None:
            key = signature(implementation_of(planned, offers), offers.values)
            found.setdefault(key, []).append(median(seconds[number]))
    return found

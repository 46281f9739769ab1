"""Seconds of every step of a plan, where it runs: in its arena, between its neighbours."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from types import TracebackType

from monet.executor.codegen import implementation_of
from monet.executor.planned_step import PlannedStep, planned_catalogue
from monet.executor.runner import Runner
from monet.ops.measuring.signature import signature


class StepTimes:
    """A context in which a runner's passes are timed. ``passes``: of each forward and each backward pass, (step,
    seconds) in order; a step's seconds have the views that it reads and what is released after it."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._enter, self._leave = runner._enter, runner._leave
        self._began: list[tuple[int, float]] = []
        self.passes: list[Sequence[tuple[int, float]]] = []

    def __enter__(self) -> StepTimes:
        self._runner._enter, self._runner._leave = self._timed_enter, self._timed_leave
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._runner._enter, self._runner._leave = self._enter, self._leave

    def steps(self) -> Iterator[tuple[int, float]]:
        """Of all passes: a step of the plan, and what one run of it took."""
        for timed in self.passes:
            yield from timed

    def _timed_enter(self, handle: int, step: int) -> None:
        self._began.append((step, time.perf_counter()))
        self._enter(handle, step)

    def _timed_leave(self) -> None:
        ended = time.perf_counter()
        self._leave()
        began, self._began = self._began, []
        if not began:  # a pass without steps, or one that failed before its first
            return
        ends = [*(at for _, at in began[1:]), ended]
        self.passes.append([(step, end - at) for (step, at), end in zip(began, ends, strict=True)])


def seconds_by_signature(step: PlannedStep, seconds: Mapping[int, Sequence[float]]) -> dict[str, list[float]]:
    """By signature, the median ``seconds`` of each step of the plan that runs it; copies are left out."""
    offers = planned_catalogue(step.graph, step.plan)
    found: dict[str, list[float]] = {}
    for number, planned in enumerate(step.plan.steps):
        if planned.place is None:
            key = signature(implementation_of(planned, offers), offers.values)
            found.setdefault(key, []).append(median(seconds[number]))
    return found

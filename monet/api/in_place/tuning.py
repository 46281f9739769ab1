"""Whether a plan that is made with the times of another one's steps is faster than that: the faster of the two stays.

Operators that are measured one by one leave out what they do to each other. So a plan's steps are timed, operator by
operator, where they run; another plan is made with these times (``monet.ops.measuring.in_place``), and timed in the
same way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from statistics import median
from typing import Literal

from monet.executor.module import MonetModule
from monet.executor.step_times import StepTimes, seconds_by_signature
from monet.plans.plan import Plan

TRIES = 4
"""So many times as many calls as steps are to be timed, at most: a call without a backward pass is no step."""
WORTH = 0.01
"""Of a step's seconds: what another plan must be faster by, as predicted, to be tried."""


class Tuning:
    """Of the calls of one geometry. ``over``: nothing more is timed. ``first``: the plan that steps were run by first,
    what it is kept on disk under, and its seconds, once another one is tried."""

    def __init__(self, steps: int) -> None:
        """``steps``: how many are timed of each plan, after one that is not: memory is touched in it."""
        self._count = steps
        self.over = False
        self.first: tuple[Plan, str, float] | None = None
        self._module: MonetModule | None = None
        self._times: StepTimes | None = None
        self._timing = ExitStack()
        self._steps: list[Sequence[tuple[int, float]]] = []
        self._calls = 0

    def before_call(self, module: MonetModule) -> Literal["timing", "timed", "given up"]:
        """Before a call of ``module``: whether its plan was timed often enough, or that will not be; else this call is
        timed."""
        taken = self._stop()
        if module is not self._module:
            self._module, self._steps, self._calls = module, [], 0
        elif len({number for number, _ in taken}) == len(module.plan.steps):  # forward and backward pass
            self._steps.append(taken)
        if len(self._steps) > self._count:
            return "timed"
        self._calls += 1
        if self._calls > TRIES * (self._count + 1):
            return "given up"
        self._times = self._timing.enter_context(StepTimes(module._step.runner))
        return "timing"

    def _stop(self) -> Sequence[tuple[int, float]]:
        self._timing.close()
        times, self._times = self._times, None
        return [] if times is None else list(times.steps())

    @property
    def seconds(self) -> Mapping[str, Sequence[float]]:
        """By signature, of the plan that is timed."""
        assert self._module is not None
        taken: dict[int, list[float]] = {}
        for step in self._steps[1:]:
            for number, each_s in step:
                taken.setdefault(number, []).append(each_s)
        return seconds_by_signature(self._module._step, taken)

    @property
    def step_s(self) -> float:
        """All operators of a step of the plan that is timed: the median of steps."""
        return median(sum(each_s for _, each_s in step) for step in self._steps[1:])

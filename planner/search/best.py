"""The best plan found so far, and the clock of a search."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from monet.planner.problem import Problem
from monet.planner.progress import Progress
from monet.planner.replay import Replay, replay
from monet.planner.solution import Runs

ROUNDING = 1e-9
"""Of a gap: a bound that a solver reports for a sum of seconds is a few bits off."""


@dataclass(slots=True)
class BestPlan:
    """The best replayed plan so far, offered to from any thread.

    ``measure``: what is minimised, seconds or bytes, of a replayed plan. ``fits``: whether one is within the limit.
    """

    problem: Problem
    measure: Callable[[Replay], float]
    fits: Callable[[Replay], bool]
    runs: Runs | None = None
    cost: Replay | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def offer(self, runs: Runs) -> bool:
        """Takes ``runs`` if they are valid, fit and are better; returns whether they are valid and fit."""
        cost = replay(self.problem, runs)
        if not self.fits(cost):
            return False
        with self._lock:
            if self.cost is None or self.measure(cost) < self.measure(self.cost):
                self.runs, self.cost = runs, cost
        return True

    @classmethod
    def fastest_within(cls, problem: Problem, budget_bytes: int) -> BestPlan:
        """No plan yet; seconds are minimised, and a plan fits if its peak is at most ``budget_bytes``."""
        return cls(problem, lambda cost: cost.objective_s, lambda cost: cost.peak_bytes <= budget_bytes)

    @property
    def value(self) -> float:
        """Of the best plan; infinity without one."""
        return float("inf") if self.cost is None else self.measure(self.cost)

    def is_within(self, gap: float, bound: float) -> bool:
        """Whether there is a plan, and within that gap (relative) of the bound."""
        return self.value < float("inf") and self.value - bound <= gap * self.value


@dataclass(slots=True)
class Clock:
    """The time that all phases share, and who wants to know how far they are."""

    time_limit_s: float
    progress: Progress | None = None
    begun: float = field(default_factory=time.monotonic)

    def tell(self, best: BestPlan, bound: float) -> None:
        """Reports the best plan and a bound, 0 while nothing is proven, to whoever wants to know."""
        if self.progress is not None:
            value = None if best.cost is None else best.value
            gap = max(0.0, (value - bound) / value) if value and bound > 0 else None
            self.progress(value, bound if bound > 0 else None, gap, self.elapsed_s())

    def left_s(self) -> float:
        return max(0.0, self.time_limit_s - self.elapsed_s())

    def elapsed_s(self) -> float:
        return time.monotonic() - self.begun


class CloseEnough(Exception):
    """The best plan is within the gap of a bound: ends a solve from its progress report."""


class Elsewhere(Exception):
    """The best plan is no point of the program any more: ends rounds, for a program that has it."""


class GiveWay(Exception):
    """What is left of the time is better spent on a proof: ends a solve from its progress report."""


class GoodEnough(Exception):
    """A plan as good as was asked for is in hand, or is proven not to exist."""

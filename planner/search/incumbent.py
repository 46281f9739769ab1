"""The best plan found so far, and the deadline of a search."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from monet.planner.problem import Problem
from monet.planner.progress import Progress
from monet.planner.replay import Replay, replay
from monet.planner.solution import Runs
from monet.planner.solvers.model import Answer, Limits, Model, Solve, Tick

ROUNDING = 1e-9
"""Of a gap: a bound that a solver reports for a sum of seconds is a few bits off."""


@dataclass(slots=True)
class Incumbent:
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

    def both(self) -> tuple[Runs, Replay] | None:
        """The plan and its cost, which belong together whatever another thread offers meanwhile; None without one."""
        with self._lock:
            return None if self.runs is None or self.cost is None else (self.runs, self.cost)

    @classmethod
    def fastest_within(cls, problem: Problem, budget_bytes: int) -> Incumbent:
        """No plan yet; seconds are minimised, and a plan fits if its peak is at most ``budget_bytes``."""
        return cls(problem, lambda cost: cost.objective_s, lambda cost: cost.peak_bytes <= budget_bytes)

    @property
    def value(self) -> float:
        """Of the best plan; infinity without one."""
        return float("inf") if self.cost is None else self.measure(self.cost)

    def reaches(self, enough: float) -> bool:
        """Whether there is a plan of this value or less."""
        return self.runs is not None and self.value <= enough

    def is_within(self, gap: float, bound: float) -> bool:
        """Whether there is a plan, and within that gap (relative) of the bound."""
        return self.value < float("inf") and self.value - bound <= gap * self.value


@dataclass(slots=True)
class Cancellation:
    """Set once Ctrl-C has ended a solve; shared by all clocks of a search."""

    asked: bool = False


@dataclass(slots=True)
class Deadline:
    """The time that all strategies share, in seconds since the search began, and who wants to know how far they are.
    No time is left once the search is cancelled."""

    time_limit_s: float
    progress: Progress | None = None
    begun: float = field(default_factory=time.monotonic)
    cancellation: Cancellation = field(default_factory=Cancellation)

    def tell(self, incumbent: Incumbent, bound: float) -> None:
        """Reports the best plan and a bound, 0 while nothing is proven, to whoever wants to know."""
        if self.progress is not None:
            value = None if incumbent.cost is None else incumbent.value
            gap = max(0.0, (value - bound) / value) if value and bound > 0 else None
            self.progress(value, bound if bound > 0 else None, gap, self.elapsed_s())

    @property
    def cancelled(self) -> bool:
        return self.cancellation.asked

    def left_s(self, until_s: float | None = None) -> float:
        """Until ``until_s`` (None: the time limit)."""
        ends_s = self.time_limit_s if until_s is None else until_s
        return 0.0 if self.cancelled else max(0.0, ends_s - self.elapsed_s())

    def elapsed_s(self) -> float:
        return time.monotonic() - self.begun

    def heeded(self, solve: Solve) -> Solve:
        """``solve``, which cancels the search where Ctrl-C ends it, and is not begun once it is cancelled."""

        def heeding(model: Model, limits: Limits, tick: Tick | None = None) -> Answer:
            if self.cancelled:
                return Answer("interrupted", None, float("inf"), float("-inf"))
            answer = solve(model, limits, tick)
            if answer.status == "interrupted":
                self.cancellation.asked = True
            return answer

        return heeding

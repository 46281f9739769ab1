"""One search of one program: improve stretches, then solve the whole, sharing time, best plan and bound.

What is looked for is a number of the replayed plan, its *value*: seconds under a limit of bytes, or bytes
under a limit of seconds. The program's objective is in the same unit.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

import numpy as np

from monet.errors import SolverError
from monet.planner.program.program import Program
from monet.planner.program.readback import read_point, write_point
from monet.planner.search.best import ROUNDING, Best, Clock, GoodEnough
from monet.planner.search.companion import Companion
from monet.planner.search.neighbourhoods import NODES, improve
from monet.planner.solvers.model import Answer, Limits, Model, Solve, Tick
from monet.planner.solvers.rows import Floats

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Search:
    """``bound``: no point of the program has a smaller value; 0 while nothing is proven. ``enough``: a plan of
    this value or less, or a proof that there is none, ends the search with ``GoodEnough``. ``companion``:
    improve stretches beside the solve of the whole, on a core of its own."""

    program: Program
    solve: Solve
    best: Best
    clock: Clock
    gap: float
    enough: float = float("-inf")
    bound: float = 0.0
    companion: bool = False
    _seen: Floats | None = None

    def improve(self, until_s: float) -> None:
        """Improves stretches of the best plan until that no longer helps, or the clock shows ``until_s``."""
        model = self.model()
        x = self.point(model)
        if x is not None:
            limits = Limits(max(0.0, until_s - self.clock.elapsed_s()), self.gap, NODES)
            improve(self.program, model, self.solve, x, limits, self._found, self._tick)

    def run(self) -> str:
        """Solves the whole program; returns ``optimal`` (within the gap), ``time_limit``, ``interrupted`` or
        ``infeasible``."""
        with Companion(self, self.companion):
            answer = self._solve(self._tick_beside if self.companion else self._tick_whole)
        if answer is None:
            return "optimal"
        self._found(answer.x)
        if answer.status == "infeasible" and self.best.runs is not None:
            # The window's over-estimates exclude even the plan in hand: nothing is proven about others.
            return "time_limit"
        if answer.x is not None and self.best.runs is None:
            raise SolverError("internal error: the solver's point breaks the limit when it is replayed")
        if answer.status == "time_limit" and self._is_close():
            return "optimal"
        return answer.status

    def bound_beside(self, planned: Search, *, relaxed: bool) -> str:
        """Solves a larger program for its bound, until that is within the gap of the best plan; returns ``optimal``,
        ``time_limit`` or ``interrupted``.

        ``planned``: the search of the program whose companion improves the best plan meanwhile. ``relaxed``: points
        of this program are no plans.
        """
        tick = self._tick_bound if relaxed else self._tick_beside
        with Companion(planned, planned.companion):
            answer = self._solve(tick)
        if answer is not None:
            if not relaxed:
                self._found(answer.x)
            if answer.status == "interrupted":
                return "interrupted"
        return "optimal" if self._is_close() else "time_limit"

    def model(self) -> Model:
        """The program with nothing fixed."""
        arrays = self.program.rows.arrays()
        return Model(arrays, np.zeros(len(arrays.cost)), np.ones(len(arrays.cost)))

    def point(self, model: Model) -> Floats | None:
        """The best plan as a point of the program, if it is one."""
        runs, cost = self.best.runs, self.best.cost
        if runs is None or cost is None:
            return None
        x = write_point(self.program, runs)
        if x is not None and self.program.peak is not None:
            x[self.program.peak] = min(1.0, cost.peak_bytes / self.program.budget_bytes)
        return x if x is not None and model.violation(x) <= 1e-6 else None

    def offer(self, x: Floats | None) -> None:
        """Replays a solver's point; a point over the limit by the solver's tolerance is dropped."""
        if x is not None and not self.best.offer(read_point(self.program, x)):
            log.warning("a point of the solver exceeds the limit when replayed and is dropped")

    def _solve(self, tick: Tick) -> Answer | None:
        """An answer for the whole program, its bound taken; None where ``tick`` found the best plan close enough."""
        model = self.model()
        start = replace(model, start=self.point(model))
        try:
            answer = self.solve(start, Limits(self.clock.left_s(), self.gap), tick)
        except _CloseEnough:
            return None
        if np.isfinite(answer.bound):
            self.bound = max(self.bound, answer.bound)
        return answer

    def _found(self, x: Floats | None) -> None:
        self.offer(x)
        self._stop_if_enough()

    def _stop_if_enough(self) -> None:
        if self.value() <= self.enough:
            raise GoodEnough

    def _tick(self, x: Floats | None, bound: float | None) -> None:
        """Progress during a round: its bound is not a bound on the whole."""
        self._report()

    def _tick_whole(self, x: Floats | None, bound: float | None) -> None:
        """Progress during the solve of the whole: every new point is a plan, and may be the companion's next start."""
        self.bound = max(self.bound, bound or 0.0)
        if self.bound > self.enough > 0:
            raise GoodEnough
        if x is not None and x is not self._seen:
            self._seen = x
            self.offer(x)
        self._stop_if_enough()
        self._report()

    def _tick_beside(self, x: Floats | None, bound: float | None) -> None:
        """As ``_tick_whole``, where better plans may come from elsewhere than the solve."""
        self._tick_whole(x, bound)
        if self.bound > 0 and self._is_close():
            raise _CloseEnough

    def _tick_bound(self, x: Floats | None, bound: float | None) -> None:
        """As ``_tick_beside`` for a relaxation."""
        self._tick_beside(None, bound)

    def value(self) -> float:
        """Of the best plan; infinity without one."""
        return float("inf") if self.best.cost is None else self.best.value(self.best.cost)

    def _is_close(self) -> bool:
        return self._gap_now() <= self.gap + ROUNDING

    def _gap_now(self) -> float:
        value = self.value()
        if value == float("inf"):
            return value
        return max(0.0, (value - self.bound) / value) if value > 0 else 0.0

    def _report(self) -> None:
        if self.clock.progress is None:
            return
        best = None if self.best.cost is None else self.value()
        bound = self.bound if self.bound > 0 else None
        gap = None if not best or bound is None else max(0.0, (best - bound) / best)
        self.clock.progress(best, bound, gap, self.clock.elapsed_s())


class _CloseEnough(Exception):
    """The bound is within the gap: ends a solve from its progress report."""

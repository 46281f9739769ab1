"""One search of one program: improve stretches, then solve the whole, sharing time, best plan and bound.

What is looked for is a number of the replayed plan, its *value*: seconds under a limit of bytes, or bytes
under a limit of seconds. The program's objective is in the same unit.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from monet.errors import SolverError
from monet.planner.search.best import ROUNDING, Clock
from monet.planner.search.companion import Companion
from monet.planner.search.ground import Ground
from monet.planner.search.neighbourhoods import NODES, improve
from monet.planner.solvers.model import Answer, Limits, Model, Tick
from monet.planner.solvers.rows import Floats

SAME = 1e-6
"""Relative: how far the value of a replayed plan is from the solver's objective by its tolerances."""
PROVEN_ENOUGH = 0.01
"""Within this gap of a bound on every plan a proof is good, and time goes to better plans."""


@dataclass(slots=True)
class Search:
    """``bound``: no point of the program has a smaller value; 0 while nothing is proven. ``known``: what is proven of
    every plan, whatever program it is a point of, and ``gap``: how near to that is near enough. ``enough``: a plan of
    this value or less, or a proof that the program has none, ends the search. ``companion``: improve stretches beside
    the solve of the whole, on a core of its own. ``turn_s``: when the clock shows this, the solve gives way to a proof,
    unless the best plan is near enough to what is known by then."""

    ground: Ground
    clock: Clock
    enough: float = float("-inf")
    bound: float = 0.0
    known: float = 0.0
    gap: float = 0.0
    companion: bool = False
    turn_s: float = float("inf")
    _better: bool = False
    _elsewhere: bool = False
    _seen: Floats | None = None

    def improve(self, until_s: float, seed: int = 0, nodes: int = NODES) -> None:
        """Improves stretches of the best plan until that no longer helps, the search is over, or the clock shows
        ``until_s``. ``seed``: another one improves other stretches. ``nodes``: of a round."""
        ground = self.ground
        model = ground.model()
        x = ground.point(model)
        if x is None or self.is_over():
            return
        self._elsewhere = False
        limits = Limits(self.clock.left_s(until_s), ground.gap, nodes)
        with self.beside():
            improve(
                ground.program, model, ground.solve, x, limits, self._found, self._tick, seed, self._cut, self._ends
            )

    def beside(self) -> Companion:
        """While entered, another core improves stretches of the best plan in this program, where that is wanted."""
        return Companion(self.ground, self.companion, self.clock.elapsed_s())

    def run(self) -> str:
        """Solves the whole program; returns ``optimal`` (within the gap), ``good_enough``, ``time_limit``, also where
        no point of the program is good enough, ``interrupted`` or ``infeasible``."""
        with self.beside():
            answer = self._solve(self._tick_beside if self.companion else self._tick_whole)
        self.ground.offer(answer.x)
        if answer.status == "infeasible" and self.ground.best.runs is not None:
            # The window's over-estimates exclude even the plan in hand: nothing is proven about others.
            return "time_limit"
        if answer.status == "optimal" and answer.x is not None and self.ground.best.runs is None:
            raise SolverError("internal error: the solver's point breaks the limit when it is replayed")
        if answer.status in ("interrupted", "infeasible"):
            return answer.status
        if self.ground.best.value <= self.enough:
            return "good_enough"
        # A point that breaks the limit when it is replayed is dropped: what is optimal then is no plan.
        solved = answer.status == "optimal" and self.ground.best.value <= answer.objective * (1 + SAME)
        return "optimal" if solved or self._is_close() else "time_limit"

    def bound_beside(self, planned: Search, *, relaxed: bool) -> str:
        """Solves a larger program for its bound, until that is within the gap of the best plan; returns ``optimal``,
        ``time_limit`` or ``interrupted``.

        ``planned``: the search of the program whose companion improves the best plan meanwhile. ``relaxed``: points
        of this program are no plans.
        """
        with planned.beside():
            answer = self._solve(self._tick_bound if relaxed else self._tick_beside)
        if not relaxed:
            self.ground.offer(answer.x)
        if answer.status == "interrupted":
            return "interrupted"
        return "optimal" if self._is_close() else "time_limit"

    def is_enough(self) -> bool:
        """Whether the best plan is as good as was asked for, or no point of the program is."""
        return self.ground.best.value <= self.enough or self.bound > self.enough > 0

    def is_over(self) -> bool:
        """Whether nothing better is wanted: good enough, near enough to what is proven, or cancelled."""
        return self.clock.cancelled or self.is_enough() or self._is_close()

    def _solve(self, tick: Tick) -> Answer:
        """An answer for the whole program, its bound taken."""
        model = self.ground.model()
        start = replace(model, start=self.ground.point(model))
        answer = self.ground.solve(start, Limits(self.clock.left_s(), self.ground.gap), tick)
        if np.isfinite(answer.bound):
            self.bound = max(self.bound, answer.bound)
        return answer

    def _found(self, x: Floats) -> None:
        known = self.ground.best.value
        self.ground.offer(x)
        self._better = self.ground.best.value < known

    def _cut(self, x: Floats) -> Model | None:
        """Of the point that was found last: as for ``Ground``. Where its plan, with its copies at other times, is the
        best one, and no point of the program, these rounds end."""
        model = self.ground.cut(x)
        self._elsewhere = model is not None and self._better and self.ground.point(model) is None
        return model

    def _ends(self) -> bool:
        return self._elsewhere or self.is_over()

    def _tick(self, x: Floats | None, bound: float | None) -> bool:
        """Progress during a round: its bound is not a bound on the whole."""
        self.clock.tell(self.ground.best, max(self.bound, self.known))
        return self.is_over()

    def _tick_whole(self, x: Floats | None, bound: float | None) -> bool:
        """Progress during the solve of the whole: every new point is a plan, and may be the companion's next start."""
        self.bound = max(self.bound, bound or 0.0)
        if x is not None and x is not self._seen:
            self._seen = x
            self.ground.offer(x)
        self.clock.tell(self.ground.best, max(self.bound, self.known))
        gives_way = self.clock.elapsed_s() >= self.turn_s and self._gap_to(self.known) > PROVEN_ENOUGH
        return gives_way or self.is_enough()

    def _tick_beside(self, x: Floats | None, bound: float | None) -> bool:
        """As ``_tick_whole``, where better plans or bounds may come from elsewhere than the solve."""
        return self._tick_whole(x, bound) or self._is_close()

    def _tick_bound(self, x: Floats | None, bound: float | None) -> bool:
        """As ``_tick_beside`` for a relaxation."""
        return self._tick_beside(None, bound)

    def _is_close(self) -> bool:
        return self._gap_to(self.bound) <= self.ground.gap + ROUNDING or self._gap_to(self.known) <= self.gap + ROUNDING

    def _gap_to(self, bound: float) -> float:
        """Of the best plan, relative; infinity without one or the other."""
        value = self.ground.best.value
        if value == float("inf") or bound <= 0:
            return float("inf") if value > 0 else 0.0
        return max(0.0, (value - bound) / value)

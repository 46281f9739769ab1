"""One search of one program: improve stretches, then solve the whole, sharing time, best plan and bound.

What is looked for is a number of the replayed plan, its *value*: seconds under a limit of bytes, or bytes
under a limit of seconds. The program's objective is in the same unit.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from monet.errors import SolverError
from monet.planner.search.best import ROUNDING, Clock, CloseEnough, Elsewhere, GiveWay, GoodEnough
from monet.planner.search.companion import Companion
from monet.planner.search.ground import Ground
from monet.planner.search.neighbourhoods import NODES, improve
from monet.planner.solvers.model import Answer, Limits, Model, Tick
from monet.planner.solvers.rows import Floats

PROVEN_ENOUGH = 0.01
"""Within this gap of a bound on every plan a proof is good, and time goes to better plans."""


@dataclass(slots=True)
class Search:
    """``bound``: no point of the program has a smaller value; 0 while nothing is proven. ``known``: what is proven of
    every plan, whatever program it is a point of, and ``gap``: how near to that is near enough. ``enough``: a plan of
    this value or less, or a proof that there is none, ends the search with ``GoodEnough``. ``companion``: improve
    stretches beside the solve of the whole, on a core of its own. ``turn_s``: when the clock shows this, the solve
    gives way to a proof, unless the best plan is near enough to what is known by then."""

    ground: Ground
    clock: Clock
    enough: float = float("-inf")
    bound: float = 0.0
    known: float = 0.0
    gap: float = 0.0
    companion: bool = False
    turn_s: float = float("inf")
    _gave_way: bool = False
    _better: bool = False
    _seen: Floats | None = None

    def improve(self, until_s: float, seed: int = 0, nodes: int = NODES) -> None:
        """Improves stretches of the best plan until that no longer helps, it is within the gap of a bound, or the clock
        shows ``until_s``. ``seed``: another one improves other stretches. ``nodes``: of a round."""
        ground = self.ground
        model = ground.model()
        x = ground.point(model)
        if x is None:
            return
        limits = Limits(max(0.0, until_s - self.clock.elapsed_s()), ground.gap, nodes)
        try:
            with self.beside():
                improve(ground.program, model, ground.solve, x, limits, self._found, self._tick, seed, self._cut)
        except (CloseEnough, Elsewhere):
            return

    def beside(self) -> Companion:
        """While entered, another core improves stretches of the best plan in this program, where that is wanted."""
        return Companion(self.ground, self.companion, self.clock.elapsed_s())

    def run(self) -> str:
        """Solves the whole program; returns ``optimal`` (within the gap), ``time_limit``, ``interrupted`` or
        ``infeasible``."""
        with self.beside():
            answer = self._solve(self._tick_beside if self.companion else self._tick_whole)
        if answer is None:
            return "time_limit" if self._gave_way else "optimal"
        self._offer(answer)
        if answer.status == "infeasible" and self.ground.best.runs is not None:
            # The window's over-estimates exclude even the plan in hand: nothing is proven about others.
            return "time_limit"
        if answer.x is not None and self.ground.best.runs is None:
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
        with planned.beside():
            answer = self._solve(tick)
        if answer is not None:
            if not relaxed:
                self._offer(answer)
            if answer.status == "interrupted":
                return "interrupted"
        return "optimal" if self._is_close() else "time_limit"

    def _solve(self, tick: Tick) -> Answer | None:
        """An answer for the whole program, its bound taken; None where ``tick`` found the best plan close enough."""
        model = self.ground.model()
        start = replace(model, start=self.ground.point(model))
        try:
            answer = self.ground.solve(start, Limits(self.clock.left_s(), self.ground.gap), tick)
        except CloseEnough:
            return None
        except GiveWay:
            self._gave_way = True
            return None
        if np.isfinite(answer.bound):
            self.bound = max(self.bound, answer.bound)
        return answer

    def _offer(self, answer: Answer) -> None:
        """As ``_found``; that Ctrl-C ended the solve counts more than that the plan is good enough."""
        try:
            self._found(answer.x)
        except GoodEnough:
            if answer.status != "interrupted":
                raise

    def _found(self, x: Floats | None) -> None:
        known = self.ground.best.value
        self.ground.offer(x)
        self._better = self.ground.best.value < known
        self._stop_if_enough()

    def _cut(self, x: Floats) -> Model | None:
        """Of the point that was found last: as for ``Ground``. Raises ``Elsewhere`` where its plan, with its copies at
        other times, is the best one, and no point of the program."""
        model = self.ground.cut(x)
        if model is not None and self._better and self.ground.point(model) is None:
            raise Elsewhere
        return model

    def _stop_if_enough(self) -> None:
        if self.ground.best.value <= self.enough:
            raise GoodEnough

    def _tick(self, x: Floats | None, bound: float | None) -> None:
        """Progress during a round: its bound is not a bound on the whole."""
        self._stop_if_close()
        self.clock.tell(self.ground.best, max(self.bound, self.known))

    def _stop_if_close(self) -> None:
        if self._is_close():
            raise CloseEnough

    def _tick_whole(self, x: Floats | None, bound: float | None) -> None:
        """Progress during the solve of the whole: every new point is a plan, and may be the companion's next start."""
        self.bound = max(self.bound, bound or 0.0)
        if self.bound > self.enough > 0:
            raise GoodEnough
        if x is not None and x is not self._seen:
            self._seen = x
            self.ground.offer(x)
        self._stop_if_enough()
        if self.clock.elapsed_s() >= self.turn_s and self._gap_to(self.known) > PROVEN_ENOUGH:
            raise GiveWay
        self.clock.tell(self.ground.best, max(self.bound, self.known))

    def _tick_beside(self, x: Floats | None, bound: float | None) -> None:
        """As ``_tick_whole``, where better plans or bounds may come from elsewhere than the solve."""
        self._tick_whole(x, bound)
        self._stop_if_close()

    def _tick_bound(self, x: Floats | None, bound: float | None) -> None:
        """As ``_tick_beside`` for a relaxation."""
        self._tick_beside(None, bound)

    def _is_close(self) -> bool:
        return self._gap_to(self.bound) <= self.ground.gap + ROUNDING or self._gap_to(self.known) <= self.gap + ROUNDING

    def _gap_to(self, bound: float) -> float:
        """Of the best plan, relative; infinity without one or the other."""
        value = self.ground.best.value
        if value == float("inf") or bound <= 0:
            return float("inf") if value > 0 else 0.0
        return max(0.0, (value - bound) / value)

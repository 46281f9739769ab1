"""One search of one program: improve neighbourhoods, then solve the whole, sharing time, best plan and bound.

What is looked for is a number of the replayed plan, its *value*: seconds under a limit of bytes, or bytes
under a limit of seconds. The program's objective is in the same unit.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from monet.errors import SolverError
from monet.planner.search.formulation import Formulation
from monet.planner.search.incumbent import ROUNDING, Deadline
from monet.planner.search.neighbourhoods import NODES, improve
from monet.planner.search.worker import Worker
from monet.planner.solvers.model import Answer, Limits, Model, Tick
from monet.planner.solvers.rows import Floats

SAME = 1e-6
"""Relative: how far the value of a replayed plan is from the solver's objective by its tolerances."""
PROVEN_ENOUGH = 0.01
"""Within this gap of a bound on every plan a proof is good, and time goes to better plans."""


@dataclass(slots=True)
class Search:
    """``program_bound``: no point of the program has a smaller value; 0 while nothing is proven. ``full_bound``: what
    is proven of every plan, whatever program it is a point of, and ``gap``: how near to that is near enough.
    ``enough``: a plan of this value or less, or a proof that the program has none, ends the search. ``worker``: improve
    neighbourhoods beside the solve of the whole, on a core of its own. ``turn_s``: from here on, the solve gives way to
    a proof, unless the best plan is near enough to the full bound by then."""

    formulation: Formulation
    deadline: Deadline
    enough: float = float("-inf")
    program_bound: float = 0.0
    full_bound: float = 0.0
    gap: float = 0.0
    worker: bool = False
    turn_s: float = float("inf")
    _better: bool = False
    _elsewhere: bool = False
    _seen: Floats | None = None

    def improve(self, until_s: float, seed: int = 0, nodes: int = NODES) -> bool:
        """Improves neighbourhoods of the best plan until that no longer helps, the search is over, or until
        ``until_s``; returns whether the plan is better. ``seed``: another one improves other neighbourhoods.
        ``nodes``: of a round."""
        formulation = self.formulation
        model = formulation.around(formulation.model())
        if model is None or self.is_over():
            return False
        self._elsewhere = False
        known = formulation.incumbent.value
        limits = Limits(self.deadline.left_s(until_s), formulation.gap, nodes)
        with self.beside():
            improve(
                formulation.program,
                model,
                formulation.solve,
                limits,
                self._found,
                self._tick,
                seed,
                self._cut,
                self._ends,
            )
        return formulation.incumbent.value < known

    def beside(self) -> Worker:
        """While entered, another core improves neighbourhoods of the incumbent in the program, where that is wanted."""
        return Worker(self.formulation, self.worker, self.deadline.elapsed_s())

    def run(self) -> str:
        """Solves the whole program; returns ``optimal`` (within the gap), ``good_enough``, ``time_limit``, also where
        no point of the program is good enough, ``interrupted`` or ``infeasible``."""
        with self.beside():
            answer = self._solve(self._tick_beside if self.worker else self._tick_whole)
        self.formulation.offer(answer.x)
        if answer.status == "infeasible" and self.formulation.incumbent.runs is not None:
            # The window's over-estimates exclude even the plan in hand: nothing is proven about others.
            return "time_limit"
        if answer.status == "optimal" and answer.x is not None and self.formulation.incumbent.runs is None:
            raise SolverError("internal error: the solver's point breaks the limit when it is replayed")
        if answer.status in ("interrupted", "infeasible"):
            return answer.status
        if self.formulation.incumbent.reaches(self.enough):
            return "good_enough"
        # A point that breaks the limit when it is replayed is dropped: what is optimal then is no plan.
        solved = answer.status == "optimal" and self.formulation.incumbent.value <= answer.objective * (1 + SAME)
        return "optimal" if solved or self._is_close() else "time_limit"

    def bound_beside(self, planned: Search, *, relaxed: bool) -> str:
        """Solves a larger program for its bound, until that is within the gap of the best plan; returns ``optimal``,
        ``time_limit`` or ``interrupted``.

        ``planned``: the search of the program whose worker improves the best plan meanwhile. ``relaxed``: points
        of this program are no plans.
        """
        with planned.beside():
            answer = self._solve(self._tick_bound if relaxed else self._tick_beside)
        if not relaxed:
            self.formulation.offer(answer.x)
        if answer.status == "interrupted":
            return "interrupted"
        return "optimal" if self._is_close() else "time_limit"

    def is_enough(self) -> bool:
        """Whether the best plan is as good as was asked for, or no point of the program is."""
        return self.formulation.incumbent.reaches(self.enough) or self.program_bound > self.enough > 0

    def is_over(self) -> bool:
        """Whether nothing better is wanted: good enough, near enough to what is proven, or cancelled."""
        return self.deadline.cancelled or self.is_enough() or self._is_close()

    def _solve(self, tick: Tick) -> Answer:
        """An answer for the whole program, its bound taken."""
        model = self.formulation.model()
        start = replace(model, start=self.formulation.point(model))
        answer = self.formulation.solve(start, Limits(self.deadline.left_s(), self.formulation.gap), tick)
        if np.isfinite(answer.bound):
            self.program_bound = max(self.program_bound, answer.bound)
        return answer

    def _found(self, x: Floats) -> bool:
        known = self.formulation.incumbent.value
        fits = self.formulation.offer(x)
        self._better = self.formulation.incumbent.value < known
        return fits

    def _cut(self, x: Floats) -> Model | None:
        """Of the point that was found last: as for ``Formulation``. Where its plan, with its copies at other times, is
        the best one, and no point of the program, these rounds end."""
        model = self.formulation.cut(x)
        self._elsewhere = model is not None and self._better and self.formulation.point(model) is None
        return model

    def _ends(self) -> bool:
        return self._elsewhere or self.is_over()

    def _tick(self, x: Floats | None, bound: float | None) -> bool:
        """Progress during a round: its bound is not a bound on the whole."""
        self.deadline.tell(self.formulation.incumbent, max(self.program_bound, self.full_bound))
        return self.is_over()

    def _tick_whole(self, x: Floats | None, bound: float | None) -> bool:
        """Progress during the solve of the whole: every new point is a plan, and may be the worker's next start."""
        self.program_bound = max(self.program_bound, bound or 0.0)
        if x is not None and x is not self._seen:
            self._seen = x
            self.formulation.offer(x)
        self.deadline.tell(self.formulation.incumbent, max(self.program_bound, self.full_bound))
        gives_way = self.deadline.elapsed_s() >= self.turn_s and self._gap_to(self.full_bound) > PROVEN_ENOUGH
        return gives_way or self.is_enough()

    def _tick_beside(self, x: Floats | None, bound: float | None) -> bool:
        """As ``_tick_whole``, where better plans or bounds may come from elsewhere than the solve."""
        return self._tick_whole(x, bound) or self._is_close()

    def _tick_bound(self, x: Floats | None, bound: float | None) -> bool:
        """As ``_tick_beside`` for a relaxation."""
        return self._tick_beside(None, bound)

    def _is_close(self) -> bool:
        return (
            self._gap_to(self.program_bound) <= self.formulation.gap + ROUNDING
            or self._gap_to(self.full_bound) <= self.gap + ROUNDING
        )

    def _gap_to(self, bound: float) -> float:
        """Of the best plan, relative; infinity without one or the other."""
        value = self.formulation.incumbent.value
        if value == float("inf") or bound <= 0:
            return float("inf") if value > 0 else 0.0
        return max(0.0, (value - bound) / value)

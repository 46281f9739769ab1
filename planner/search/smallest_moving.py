"""Strategies for the smallest budget with a second memory: budgets halved between what is proven too small and a plan.

The checkpoint program proves that no plan fits a budget, or that none that fits is fast enough, moves included; the
program of ``least_peak.py`` has no moves to minimise over.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from monet.errors import SolverError
from monet.planner.construction.first_plans import fastest_plan, smallest_budget
from monet.planner.memory_floor import floor_bytes
from monet.planner.search.incumbent import Incumbent
from monet.planner.search.state import PolicyOf, SearchState


@dataclass(frozen=True, slots=True)
class Extremes:
    """The fastest plan and the thriftiest known. ``share``: of the time limit."""

    share: float

    def run(self, state: SearchState) -> None:
        best, problem = state.incumbent, state.incumbent.problem
        state.scope, state.program_bound = "full", float(floor_bytes(problem))
        known = smallest_budget(problem, time.monotonic() + self.share * state.limit_s)
        for found in (fastest_plan(problem), None if known is None else known[1]):
            if found is not None:
                best.offer(found.runs)
        _end_if_done(state)


@dataclass(frozen=True, slots=True)
class SmallestWithoutMoves:
    """A whole search for the smallest budget without the second memory. ``share``: of the time limit; ``by``: what that
    search follows."""

    share: float
    by: PolicyOf

    def run(self, state: SearchState) -> None:
        problem = replace(state.incumbent.problem, second=None)
        best = Incumbent(problem, state.incumbent.measure, state.incumbent.fits)
        inner = state.inner(best, state.limit, self.share * state.limit_s)
        try:
            inner.follow_until_ctrl_c(self.by)
        except SolverError:  # moves make no plan faster: where none is known without them, there is none
            if state.incumbent.runs is None:
                raise
        if best.runs is not None:
            state.incumbent.offer(best.runs)
        elif inner.status == "infeasible" and state.incumbent.runs is None:
            state.status = "infeasible"
        state.built_s = state.deadline.elapsed_s()
        _end_if_done(state)


@dataclass(frozen=True, slots=True)
class Halving:
    """Budgets halved between the bound and the best plan, each tried with moves, until both meet. ``step``: of the time
    limit for each budget of the first round; twice that in the next. ``by``: what each of them follows."""

    step: float
    by: PolicyOf

    def run(self, state: SearchState) -> None:
        step_s = self.step * state.limit_s
        while state.incumbent.runs is not None and not _is_done(state) and state.deadline.left_s() > 0:
            self._halve(state, step_s)
            step_s *= 2
        state.status = "time_limit"
        _end_if_done(state)

    def _halve(self, state: SearchState, step_s: float) -> None:
        """Once, from the bound up to the best plan; a budget for which none is found in time counts as too small."""
        best, deadline = state.incumbent, state.deadline
        low = int(state.program_bound)
        while deadline.left_s() > 0 and not _is_done(state, low):
            middle = int(low + best.value) // 2
            tried = state.tried(middle, step_s, self.by)
            if tried.incumbent.runs is None or not best.offer(tried.incumbent.runs):
                low = middle
                if tried.is_proven_slower(state.limit):
                    state.program_bound = max(state.program_bound, float(middle))
            deadline.tell(best, state.program_bound)


def _end_if_done(state: SearchState) -> None:
    if _is_done(state):
        state.status = "optimal"


def _is_done(state: SearchState, low_bytes: float = 0.0) -> bool:
    """Whether the best plan is as near as was asked for to the bound, or to ``low_bytes``, if that is more."""
    value, bound = state.incumbent.value, max(low_bytes, state.program_bound)
    return state.incumbent.runs is not None and value - bound <= max(1.0, state.solving.gap * value)

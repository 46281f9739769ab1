"""The strategy of constructed plans (``planner/construction``)."""

from __future__ import annotations

import time
from dataclasses import dataclass

from monet.planner.construction.first_plans import construct, smallest_budget
from monet.planner.search.state import SearchState


@dataclass(frozen=True, slots=True)
class Walks:
    """Greedy eviction along the step: a plan where the relaxation gave none. Where none fits, the smallest budget for
    which there is one is looked for.

    ``share``: of the time limit, at most, for each.
    """

    share: float

    def run(self, state: SearchState) -> None:
        best = state.incumbent
        if best.runs is not None:
            return
        made = construct(state.index, state.budget_bytes, self._deadline_s(state))
        if made is not None:
            best.offer(made)
        if best.runs is None and (known := smallest_budget(best.problem, self._deadline_s(state))) is not None:
            state.smallest = known
            best.offer(known[1].runs)

    def _deadline_s(self, state: SearchState) -> float:
        return time.monotonic() + min(self.share * state.limit_s, state.deadline.left_s())

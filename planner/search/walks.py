"""The strategies of constructed plans (``planner/construction``)."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from monet.planner.construction.first_plans import construct, smallest_budget
from monet.planner.construction.kept import keep_what_fits
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
        made = construct(state.index, state.budget_bytes, deadline_s(state, self.share))
        if made is not None:
            best.offer(made)
        if best.runs is None and (known := smallest_budget(best.problem, deadline_s(state, self.share))) is not None:
            state.smallest = known
            best.offer(known[1].runs)


@dataclass(frozen=True, slots=True)
class Filling:
    """The relaxation's plans, the best first, without the recomputations whose results there is room for instead. It
    plans for few moments of the step, and at the others its plans leave room: of ResNet-50 at 40 % of eager's peak they
    take 3.26 s and more, filled 2.72, and branch and bound comes to 3.19.

    ``share``: of the time limit, at most.
    """

    share: float

    def run(self, state: SearchState) -> None:
        best, checkpoints = state.incumbent, state.checkpoints
        if checkpoints is None:
            return
        until_s = deadline_s(state, self.share)
        fitting = [(cost.objective_s, k) for k, (_, cost) in enumerate(checkpoints.seen) if best.fits(cost)]
        for _, k in sorted(fitting):
            if time.monotonic() >= until_s or state.is_over():
                return
            runs = checkpoints.seen[k][0]
            filled = keep_what_fits(best.problem, runs, state.budget_bytes, until_s, most_runs=math.inf)
            best.offer(filled)
            if best.runs is filled:
                state.unfilled = filled, runs


def deadline_s(state: SearchState, share: float) -> float:
    """Of ``time.monotonic``: after a share of the time limit, but for that limit."""
    return time.monotonic() + min(share * state.limit_s, state.deadline.left_s())

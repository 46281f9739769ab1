"""Strategies on the checkpoint program (``checkpoints.py``): its relaxation first, its branch and bound last."""

from __future__ import annotations

from dataclasses import dataclass

from monet.planner.search.checkpoints import CheckpointSearch
from monet.planner.search.state import SearchState


@dataclass(frozen=True, slots=True)
class Relaxation:
    """The linear relaxation, by row generation and relax-and-fix: a bound on every plan and plans near it. For most
    deep networks there is nothing left to do after it.

    ``until``: of the time limit; ``poor_until``: as long as its plans are far from the bound.
    """

    until: float
    poor_until: float | None = None

    def run(self, state: SearchState) -> None:
        best, gap = state.incumbent, state.solving.gap
        checkpoints = CheckpointSearch(
            state.index, state.budget_bytes, state.solve, best, state.deadline, gap, state.enough
        )
        state.checkpoints = checkpoints
        poor_until_s = None if self.poor_until is None else self.poor_until * state.limit_s
        try:
            checkpoints.run(self.until * state.limit_s, poor_until_s)
        finally:  # also where Ctrl-C comes between solves
            state.full_bound = checkpoints.bound
        state.built_s = state.deadline.elapsed_s()
        state.status = "time_limit"
        if checkpoints.infeasible:
            state.status, state.scope = "infeasible", "full"


@dataclass(frozen=True, slots=True)
class BranchAndBound:
    """Branch and bound on the checkpoint program, for a bound on every plan where the relaxation is weak, as with the
    large workspaces of convolutions. A worker goes on improving the best plan meanwhile. Where that is already proven
    within its windows, it takes no longer than everything before it. ``share``: of the time limit, at most."""

    share: float = 1.0

    def run(self, state: SearchState) -> None:
        checkpoints = state.checkpoints
        # Nothing in the exact program is good enough, and what it leaves out is seldom better.
        hopeless = state.program_bound > state.enough > 0
        if checkpoints is None or state.incumbent.runs is None or hopeless:
            return
        checkpoints.bound = max(checkpoints.bound, state.full_bound)
        until_s = state.until_s(self.share)
        if state.status == "optimal":
            until_s = min(until_s, 2 * state.deadline.elapsed_s())
        try:
            checkpoints.prove(until_s, state.planned)
        finally:
            state.full_bound = checkpoints.bound

"""Solve, order and place until the arena, not only the program's account of it, fits the budget.

The program counts the captured order. What it counts and what an arena needs differ in both directions::

    solve ──► order and place ──► too large: the program gets that much less (fragmentation)
                              └─► slack:     the program gets that much more (another order saves memory)
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from monet.errors import InfeasibleBudget
from monet.pipeline.lowering import Lowered
from monet.pipeline.meter import Meter, silent
from monet.pipeline.placement import placement
from monet.pipeline.smallest_plans import Placed, recall, remember
from monet.planner.ablation import MONET, restrict
from monet.planner.construction.first_plans import fastest_plan
from monet.planner.schedules import ABLATION, VARIANTS, plan_variant
from monet.planner.search import Solving
from monet.planner.solution import Runs, Solution

logger = logging.getLogger(__name__)

TRIES = 4
"""Solves at most."""
WORTH_SHARE = 0.005
"""Solving again pays where another order saves this share of the budget."""
REORDERED_SHARE = 0.15
"""A plan up to this share over the budget may fit once it is reordered."""
LEFT_SHARE = 0.25
"""Of the time limit: with less than this left, what an order saves is not solved for."""


@dataclass(frozen=True, slots=True)
class Fit:
    """What must fit: a plan of ``variant`` in ``budget_bytes``; ``start``: a plan to begin with."""

    lowered: Lowered
    budget_bytes: int
    variant: str = MONET
    solving: Solving = field(default_factory=Solving)
    start: Runs | None = None

    def excess_bytes(self, placed: Placed) -> int:
        """By how much a plan's arena and the fixed bytes are over the budget."""
        return _needed(placed, self.lowered) - self.budget_bytes


@dataclass(frozen=True, slots=True)
class Attempt:
    """One solve: what the program gets, and for how long."""

    target_bytes: int
    time_limit_s: float


def fit_budget(fit: Fit, meter: Meter = silent) -> Placed:
    """A plan whose arena fits beside the fixed bytes, and makes use of the budget.

    Where the arena needs more than the program counts, the program gets less than the budget; where another order
    needs less, it gets that much more, in what is left of the time limit. Where none of its plans fits, the smallest
    one known, also from an earlier search, may do so once it is ordered.

    Raises ``InfeasibleBudget`` otherwise; what it names is the size of an arena that was made and is kept, so that
    budget works. ``KeyboardInterrupt`` on Ctrl-C before there is an arena that fits.
    """
    attempts = _Attempts(fit, meter)
    attempt: Attempt | None = Attempt(fit.budget_bytes, fit.solving.time_limit_s)
    for _ in range(TRIES):
        if attempt is None:
            break
        attempt = attempts.after(attempt)
    if attempts.best is not None:
        return attempts.best
    return _smallest_known(attempts.refused or _refusal(fit), fit)


class _Attempts:
    """``best``: the fastest plan that fits so far. ``refused``: why the first solve found no plan at all."""

    def __init__(self, fit: Fit, meter: Meter) -> None:
        self._fit = fit
        self._meter = meter
        self._too_large = False
        self.best: Placed | None = None
        self.refused: InfeasibleBudget | None = None

    def after(self, attempt: Attempt) -> Attempt | None:
        """Solves and places; returns what to try next, None where nothing is worth it."""
        fit, begun = self._fit, time.monotonic()
        try:
            solution = self._solve(attempt)
        except InfeasibleBudget as refused:
            return self._without_plan(attempt, refused)
        left_s = attempt.time_limit_s - (time.monotonic() - begun)
        placed = solution, placement(solution.runs, fit.lowered, fit.budget_bytes)
        excess_bytes = fit.excess_bytes(placed)
        self._too_large = excess_bytes > 0
        if excess_bytes > 0:
            return self._smaller(attempt, solution, excess_bytes)
        if self.best is None or solution.objective_s < self.best[0].objective_s:
            self.best = placed
        return self._larger(attempt, solution, solution.peak_bytes - _needed(placed, fit.lowered), left_s)

    def _solve(self, attempt: Attempt) -> Solution:
        fit = self._fit
        solving = replace(fit.solving, time_limit_s=attempt.time_limit_s)
        with self._meter(attempt.time_limit_s) as progress:
            return plan_variant(
                fit.variant, fit.lowered.problem, attempt.target_bytes, solving, start=fit.start, progress=progress
            )

    def _without_plan(self, attempt: Attempt, refused: InfeasibleBudget) -> Attempt | None:
        """No plan fits in the captured order; the smallest one may fit in another."""
        if self.best is not None or self._too_large:
            return None
        budget_bytes, least = self._fit.budget_bytes, refused.smallest_bytes
        self.refused = refused
        if attempt.target_bytes > budget_bytes or least is None or least > budget_bytes * (1 + REORDERED_SHARE):
            return None
        return replace(attempt, target_bytes=least)

    def _smaller(self, attempt: Attempt, solution: Solution, excess_bytes: int) -> Attempt | None:
        """The arena is too large: the program gets that much less."""
        if self.best is None and solution.status == "interrupted":
            raise KeyboardInterrupt  # no plan fits yet, and whoever interrupts does not wait for another solve
        if self.best is not None or self.refused is not None:
            return None
        logger.info("the arena is %d bytes over the budget; solving again with that much less", excess_bytes)
        return Attempt(attempt.target_bytes - excess_bytes, self._fit.solving.time_limit_s)

    def _larger(self, attempt: Attempt, solution: Solution, saved_bytes: int, left_s: float) -> Attempt | None:
        """The arena fits with ``saved_bytes`` less than the program counts: the program gets that much more."""
        fit = self._fit
        binding = solution.peak_bytes >= attempt.target_bytes * (1 - WORTH_SHARE) and VARIANTS[fit.variant].solves
        if saved_bytes < fit.budget_bytes * WORTH_SHARE or not binding or solution.status == "interrupted":
            return None
        target_bytes = fit.budget_bytes + saved_bytes
        if target_bytes <= attempt.target_bytes or left_s < fit.solving.time_limit_s * LEFT_SHARE:
            return None
        logger.info(
            "the order needs %d bytes less than the program counts; solving again with that much more", saved_bytes
        )
        return Attempt(target_bytes, left_s)


def _refusal(fit: Fit) -> InfeasibleBudget:
    """For a budget that a plan fits, but no arena: it knows the smallest plan."""
    problem = fit.lowered.problem
    try:
        plan_variant(fit.variant, problem, problem.fixed_bytes, fit.solving, start=fit.start)
    except InfeasibleBudget as error:
        reason = ("A plan for ", fit.budget_bytes, " exists, but none was found whose buffers fit without gaps.")
        return InfeasibleBudget(reason, error.smallest_bytes, smallest_plan=error.smallest_plan)
    raise AssertionError("a plan needs memory beside the fixed bytes")


def _smallest_known(refused: InfeasibleBudget, fit: Fit) -> Placed:
    """The smallest plan known, of this search or an earlier one, or ``refused`` with what its arena needs."""
    lowered, variant = fit.lowered, fit.variant
    earlier, known = recall(lowered, variant), refused.smallest_plan
    if earlier is not None and fit.excess_bytes(earlier) <= 0:
        return replace(earlier[0], status="smallest_known"), earlier[1]
    if not isinstance(known, Solution):
        raise refused
    candidates: list[Solution | None] = [known]
    if variant in ABLATION:
        candidates.append(fastest_plan(restrict(lowered.problem, variant)))
    smallest = smallest_placed(candidates, lowered)
    if fit.excess_bytes(smallest) <= 0:
        return replace(smallest[0], status="smallest_known"), smallest[1]
    if earlier is None or _needed(smallest, lowered) < _needed(earlier, lowered):
        remember(lowered, variant, smallest)
    else:
        smallest = earlier
    raise InfeasibleBudget(refused.reason, _needed(smallest, lowered), advice=refused.advice) from refused


def _needed(placed: Placed, lowered: Lowered) -> int:
    return lowered.problem.fixed_bytes + placed[1].layout.arena_bytes


def smallest_placed(candidates: Sequence[Solution | None], lowered: Lowered) -> Placed:
    """The one whose arena is smallest; the first of several. None among them is left out, the first is not None."""
    fixed_bytes = lowered.problem.fixed_bytes
    placed = [(plan, placement(plan.runs, lowered, fixed_bytes)) for plan in candidates if plan is not None]
    return min(placed, key=lambda pair: pair[1].layout.arena_bytes)

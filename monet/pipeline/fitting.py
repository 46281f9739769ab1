"""Solve, order and lay out until the arena, not only the program's account of it, fits the budget."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from monet.errors import InfeasibleBudget
from monet.pipeline.lowering import Lowered
from monet.pipeline.placement import placement
from monet.pipeline.smallest_plans import Placed, recall, remember
from monet.planner.ablation import restrict
from monet.planner.construction.first_plans import fastest_plan
from monet.planner.progress import Progress
from monet.planner.schedules import ABLATION, VARIANTS, plan_variant
from monet.planner.solution import Solution
from monet.progress_line import ProgressLine

logger = logging.getLogger(__name__)

# A layout may be a little larger than the program's peak; then the program gets that much less, so often.
TRIES = 4
# Solving again pays where another order saves this share of the budget; and where no plan fits in the captured order,
# one that is at most this much too large may fit in another.
WORTH_SHARE, REORDERED_SHARE = 0.005, 0.15


def fit(
    lowered: Lowered, budget_bytes: int, variant: str, progress: bool | Progress, options: Mapping[str, Any]
) -> Placed:
    """A plan of ``variant`` whose arena fits beside the fixed bytes, and makes use of the budget.

    The program counts the captured order. Where the arena needs more than that (fragmentation), it gets less than the
    budget; where another order needs less, it gets that much more, in what is left of the time limit. Where none of
    its plans fits, the smallest one known, also from an earlier search, may do so once it is ordered.

    Raises ``InfeasibleBudget`` otherwise; what it names is the size of an arena that was made and is kept, so that
    budget works. ``KeyboardInterrupt`` on Ctrl-C before there is an arena that fits.
    """
    problem, limit_s = lowered.problem, float(options["time_limit_s"])
    target, left_s, excess = budget_bytes, limit_s, 0
    best: Placed | None = None
    refused: InfeasibleBudget | None = None
    for _ in range(TRIES):
        begun = time.monotonic()
        try:
            with ProgressLine(progress is True, left_s) as bar:
                told = progress if callable(progress) else bar
                solution = plan_variant(variant, problem, target, progress=told, **{**options, "time_limit_s": left_s})
        except InfeasibleBudget as error:
            if best is not None or excess > 0:
                break
            refused, least = error, error.smallest_bytes
            if target > budget_bytes or least is None or least > budget_bytes * (1 + REORDERED_SHARE):
                break
            target = least
            continue
        left_s -= time.monotonic() - begun
        placed = placement(solution, lowered, budget_bytes)
        needed = problem.fixed_bytes + placed.layout.arena_bytes
        excess = needed - budget_bytes
        if excess > 0:
            if best is None and solution.status == "interrupted":
                raise KeyboardInterrupt  # no plan fits yet, and whoever interrupts does not wait for another solve
            if best is not None or refused is not None:
                break
            logger.info("the arena is %d bytes over the budget; solving again with that much less", excess)
            target -= excess
            left_s = limit_s
            continue
        if best is None or solution.objective_s < best[0].objective_s:
            best = solution, placed
        saved = solution.peak_bytes - needed
        binding = solution.peak_bytes >= target * (1 - WORTH_SHARE) and VARIANTS[variant].solves
        if saved < budget_bytes * WORTH_SHARE or not binding or solution.status == "interrupted":
            break
        if budget_bytes + saved <= target or left_s < limit_s / 4:
            break
        logger.info("the order needs %d bytes less than the program counts; solving again with that much more", saved)
        target = budget_bytes + saved
    if best is not None:
        return best
    return _smallest_known(refused or _refusal(lowered, variant, budget_bytes, options), lowered, variant, budget_bytes)


def _refusal(lowered: Lowered, variant: str, budget_bytes: int, options: Mapping[str, Any]) -> InfeasibleBudget:
    """For a budget that a plan fits, but no arena: it knows the smallest plan."""
    try:
        plan_variant(variant, lowered.problem, lowered.problem.fixed_bytes, **options)
    except InfeasibleBudget as error:
        reason = ("A plan for ", budget_bytes, " exists, but none was found whose buffers fit without gaps.")
        return InfeasibleBudget(reason, error.smallest_bytes, smallest_plan=error.smallest_plan)
    raise AssertionError("a plan needs memory beside the fixed bytes")


def _smallest_known(refused: InfeasibleBudget, lowered: Lowered, variant: str, budget_bytes: int) -> Placed:
    """The smallest plan known, of this search or an earlier one, or ``refused`` with what its arena needs."""
    earlier, known = recall(lowered, variant), refused.smallest_plan
    if earlier is not None and _needed(earlier, lowered) <= budget_bytes:
        return replace(earlier[0], status="smallest_known"), earlier[1]
    if not isinstance(known, Solution):
        raise refused
    candidates: list[Solution | None] = [known]
    if variant in ABLATION:
        candidates.append(fastest_plan(restrict(lowered.problem, variant)))
    found = smallest_placed(candidates, lowered)
    if _needed(found, lowered) <= budget_bytes:
        return replace(found[0], status="smallest_known"), found[1]
    if earlier is None or _needed(found, lowered) < _needed(earlier, lowered):
        remember(lowered, variant, found)
    else:
        found = earlier
    raise InfeasibleBudget(refused.reason, _needed(found, lowered), advice=refused.advice) from refused


def _needed(placed: Placed, lowered: Lowered) -> int:
    return lowered.problem.fixed_bytes + placed[1].layout.arena_bytes


def smallest_placed(candidates: Sequence[Solution | None], lowered: Lowered) -> Placed:
    """The one whose arena is smallest; the first of several. None among them is left out, the first is not None."""
    found = [(one, placement(one, lowered, lowered.problem.fixed_bytes)) for one in candidates if one is not None]
    return min(found, key=lambda pair: pair[1].layout.arena_bytes)

"""Solve, order and place until the arena, not only the program's account of it, fits the budget.

The program counts the captured order. What it counts and what an arena needs differ in both directions::

    solve ──► order and place ──► too large: the program gets less (fragmentation)
                              └─► slack:     the program gets that much more (another order saves memory)
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from monet.errors import InfeasibleBudget, InvalidPlan
from monet.pipeline.known_plans import Placed, recall, remember
from monet.pipeline.lowering import Lowered
from monet.pipeline.meter import Meter, silent
from monet.pipeline.placement import placement
from monet.planner.ablation import MONET, restrict
from monet.planner.construction.first_plans import fastest_plan
from monet.planner.moments.repair import repaired
from monet.planner.problem import Problem
from monet.planner.program.index import index_of
from monet.planner.replay import Replay, replay
from monet.planner.schedules import ABLATION, MOVE, MOVE_ONLY, VARIANTS, plan_variant
from monet.planner.search import Solving
from monet.planner.solution import Proof, Runs, Solution

logger = logging.getLogger(__name__)

TRIES = 4
"""Solves at most."""
WORTH_SHARE = 0.005
"""Solving again pays where another order saves this share of the budget."""
REORDERED_SHARE = 0.15
"""A plan up to this share over the budget may fit once it is reordered."""
LEFT_SHARE = 0.25
"""Of the time limit: with less than this left, what an order saves is not solved for."""
STARTS = ("block", "sqrt-n-blocks", "selective")
"""Baselines that take milliseconds, and that no plan should be slower than."""
SOLVE_SHARE, AGAIN_SHARE, LATER_SHARE = 0.5, 0.3, 0.75
"""Of the time that is left: how much of it the first solve gets, one after an arena that did not fit, and one for a
larger budget after an arena that did; the rest is for order and layout, and for the next try."""
PLACE_SHARE = 0.6
"""Of the time that is left: how much of it order and layout get while no arena fits yet."""
LESS_SHARES = (0.25, 0.5, 2.0)
"""Of an arena's excess: how much less the program gets after the first arena that does not fit, the second and the
third. Another plan often fits for a part of it, and near the smallest budget every byte is dear; but after the last one
there is only a refusal."""
REFUSED_SHARE = 0.25
"""Of the time limit: how long the smallest plans are ordered and placed, at most, before a budget is refused."""
LEAST_SHARE = 0.05
"""Of the time limit: what a solve or a placement gets that is needed and for which there is no time left."""
INTERRUPTED_S = 1.0
"""How long the plan of an interrupted solve is ordered and placed, unless no arena fits by then."""


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


def fit_budget(fit: Fit, meter: Meter = silent) -> Placed:
    """A plan whose arena fits beside the fixed bytes, and makes use of the budget.

    Where the arena needs more than the program counts, the program gets less than the budget; where another order
    needs less, it gets that much more. Where none of its plans fits, the smallest one known may do so once it is
    ordered, and then others that need as much more in the captured order. No plan is slower than one that is known for
    this budget or less, from this search or an earlier one.

    All of it takes ``fit.solving.time_limit_s``, with solving, ordering and layout; ``fit.solving.prove`` may take as
    long again.

    Raises ``InfeasibleBudget`` otherwise; what it names is the size of an arena that was made and is kept, so that
    budget works. ``KeyboardInterrupt`` on Ctrl-C before there is an arena that fits.
    """
    parts = _of_parts(fit)
    known = _known(fit, parts)
    attempts = _Attempts(fit, meter, known, parts)
    attempts.search(fit.budget_bytes)
    if attempts.best is None and not attempts.interrupted:
        known = known or _smallest_known(attempts.refused or attempts.refusal(), fit, attempts)
        attempts.reorder(known)
    best = attempts.best
    if best is None or (known is not None and known[0].objective_s < best[0].objective_s):
        assert known is not None
        best = _as_found(known, None if best is None else best[0]), known[1]
    else:
        remember(fit.lowered, fit.variant, best)
    return (replace(best[0], status="interrupted"), best[1]) if attempts.interrupted else best


def _known(fit: Fit, parts: Sequence[Placed]) -> Placed | None:
    """The fastest plan of earlier searches, ``parts`` among them: their order may fit where the captured one does
    not."""
    placed = recall(fit.lowered, fit.variant, fit.budget_bytes)
    others = () if fit.lowered.problem.carried else parts
    return min((p for p in (placed, *others) if p is not None), key=lambda p: p[0].objective_s, default=None)


def _of_parts(fit: Fit) -> list[Placed]:
    """Where there are two memories: plans that are known without moves, and without recomputation."""
    if fit.variant != MOVE:
        return []
    lowered, budget_bytes = fit.lowered, fit.budget_bytes
    alone = replace(lowered, problem=replace(lowered.problem, second=None))
    known = recall(alone, MONET, budget_bytes), recall(lowered, MOVE_ONLY, budget_bytes)
    return [placed for placed in known if placed is not None]


def _as_found(known: Placed, found: Solution | None) -> Solution:
    """The plan of an earlier search with what this one, of which ``found`` came, has proven."""
    solution = known[0]
    if found is None:
        return replace(solution, status="smallest_known", proof=None)
    proof = found.proof
    if proof is not None:  # in another order a plan may be faster than all that fit in the captured one
        proof = replace(proof, bound_s=min(proof.bound_s, solution.objective_s))
    return replace(solution, status=found.status, proof=proof, build_s=found.build_s, solve_s=found.solve_s)


class _Attempts:
    """``best``: the fastest plan that fits so far. ``refused``: why the first solve found no plan at all.
    ``interrupted``: whether Ctrl-C ended one of them. ``known``, ``parts``: of earlier searches, to begin with."""

    def __init__(self, fit: Fit, meter: Meter, known: Placed | None, parts: Sequence[Placed] = ()) -> None:
        self._fit = fit
        self._meter = meter
        self._known = known
        self._parts = parts
        self._begun = time.monotonic()
        self._too_large = 0
        self.interrupted = False
        self._last: Solution | None = None
        self._proofs: list[tuple[int, Proof]] = []  # with the target that each is for
        self.best: Placed | None = None
        self.refused: InfeasibleBudget | None = None

    def left_s(self) -> float:
        """Of the time limit, and never less than what a part that is needed gets."""
        limit_s = self._fit.solving.time_limit_s
        return max(LEAST_SHARE * limit_s, limit_s - (time.monotonic() - self._begun))

    def search(self, target_bytes: int | None) -> None:
        """For one budget after the other; Ctrl-C is raised where no plan is there."""
        try:
            for _ in range(TRIES):
                if target_bytes is None:
                    break
                target_bytes = self.after(target_bytes)
        except KeyboardInterrupt:
            if self.best is None and self._known is None:
                raise
            self.interrupted = True

    def after(self, target_bytes: int) -> int | None:
        """Solves and places; returns which budget to try next, None where nothing is worth it."""
        fit = self._fit
        try:
            solution = self._solve(target_bytes)
        except InfeasibleBudget as refused:
            return self._without_plan(target_bytes, refused)
        self.interrupted = self.interrupted or solution.status == "interrupted"
        placed = self._placed(solution)
        excess_bytes = fit.excess_bytes(placed)
        self._last = solution
        if excess_bytes > 0:
            return self._smaller(target_bytes, solution, excess_bytes)
        if self.best is None or solution.objective_s < self.best[0].objective_s:
            self.best = placed
        return self._larger(target_bytes, solution, solution.peak_bytes - _needed(placed, fit.lowered))

    def _placed(self, solution: Solution) -> Placed:
        fit = self._fit
        left_s = self.left_s() if self.best is not None else PLACE_SHARE * self.left_s()
        if solution.status == "interrupted" and left_s > INTERRUPTED_S:
            # Whoever interrupts waits for no better order, but the plan is lost if none fits.
            placed = solution, placement(solution.runs, fit.lowered, fit.budget_bytes, INTERRUPTED_S)
            if fit.excess_bytes(placed) <= 0 or self.best is not None or self._known is not None:
                return placed
            logger.warning("interrupted; looking for an arena for the best plan so far: Ctrl-C again gives it up")
        return solution, placement(solution.runs, fit.lowered, fit.budget_bytes, left_s)

    def _solve(self, target_bytes: int) -> Solution:
        share = SOLVE_SHARE if self._last is None else AGAIN_SHARE if self.best is None else LATER_SHARE
        fit, limit_s = self._fit, share * self.left_s()
        with self._meter(limit_s) as progress:
            solution = plan_variant(
                fit.variant,
                fit.lowered.problem,
                target_bytes,
                replace(fit.solving, time_limit_s=limit_s),
                start=self._start(target_bytes),
                progress=progress,
            )
        return self._with_best_proof(target_bytes, solution)

    def _with_best_proof(self, target_bytes: int, solution: Solution) -> Solution:
        """The solution with the best of its own bound and those of earlier solves that hold for it: what no plan beats
        with more memory, none beats with less. A later solve may have no time for a bound of its own."""
        if solution.proof is not None:
            self._proofs.append((target_bytes, solution.proof))
        cost_s, prove = solution.objective_s, self._fit.solving.prove

        def rank(proof: Proof) -> tuple[bool, float, bool]:
            full = proof.scope == "full"
            return prove and full, proof.bound_s, full

        # A bound of fewer plans that is above this one's cost says that it is none of them.
        holding = [p for target, p in self._proofs if target >= target_bytes]
        best = max((p for p in holding if p.scope == "full" or p.bound_s <= cost_s), key=rank, default=None)
        return solution if best is None else replace(solution, proof=replace(best, bound_s=min(best.bound_s, cost_s)))

    def _start(self, target_bytes: int) -> Runs | None:
        """The fastest of the plans that are there without a search: the caller's, an earlier search's, and those of the
        baselines that a user would write by hand."""
        fit = self._fit
        if not VARIANTS[fit.variant].solves:
            return None
        starts = [] if fit.start is None else [fit.start]
        starts += [] if self._known is None else [self._known[0].runs]
        starts += [] if self.best is None else [self.best[0].runs]
        starts += [solution.runs for solution, _ in self._parts]
        starts += self._repaired(target_bytes)
        for name in STARTS:
            try:
                starts.append(VARIANTS[name].plan(fit.lowered.problem, target_bytes).runs)
            except InfeasibleBudget:
                continue
        costs = [(cost.objective_s, k) for k, cost in _replays(fit.lowered.problem, starts, target_bytes)]
        return starts[min(costs)[1]] if costs else None

    def _repaired(self, target_bytes: int) -> list[Runs]:
        """The last plan made to fit, where its arena did not."""
        fit = self._fit
        if self._last is None or fit.variant not in ABLATION:
            return []
        index = index_of(restrict(fit.lowered.problem, fit.variant))
        deadline_s = time.monotonic() + LEAST_SHARE * fit.solving.time_limit_s
        runs = repaired(index, self._last.runs, target_bytes, deadline_s)
        return [] if runs is None else [runs]

    def _without_plan(self, target_bytes: int, refused: InfeasibleBudget) -> int | None:
        """No plan fits in the captured order; the smallest one may fit in another."""
        if self.best is not None or self._too_large:
            return None
        budget_bytes, least = self._fit.budget_bytes, refused.smallest_bytes
        self.refused = refused
        if self._known is not None or least is None:
            return None
        near = target_bytes <= budget_bytes and least <= budget_bytes * (1 + REORDERED_SHARE)
        return least if near else None

    def reorder(self, known: Placed) -> None:
        """No plan fits as the program counts, but ``known`` does in another order: plans for which the program counts
        as much more than the budget may fit, too, and be faster. ``best`` is then one of them, if any fits."""
        fit = self._fit
        saved_bytes = known[0].peak_bytes - _needed(known, fit.lowered)
        moves = fit.lowered.problem.second is not None  # plans with copies keep the captured order
        if self.refused is None or saved_bytes <= 0 or moves or not VARIANTS[fit.variant].solves:
            return
        self._known = known
        if self._has_time():
            logger.info("solving again with the %d bytes that another order saves", saved_bytes)
            self.search(fit.budget_bytes + saved_bytes)

    def _has_time(self) -> bool:
        return self.left_s() >= self._fit.solving.time_limit_s * LEFT_SHARE

    def _smaller(self, target_bytes: int, solution: Solution, excess_bytes: int) -> int | None:
        """The arena is too large: the program gets less."""
        if self.best is None and solution.status == "interrupted":
            raise KeyboardInterrupt  # no plan fits yet, and whoever interrupts does not wait for another solve
        if self.best is not None:
            return None
        less_bytes = math.ceil(excess_bytes * LESS_SHARES[min(self._too_large, len(LESS_SHARES) - 1)])
        known = self._known
        # Where nothing fits as the program counts, no less is tried than for the plan that fits in another order.
        if self.refused is not None and (
            known is None or target_bytes - less_bytes < known[0].peak_bytes or not self._has_time()
        ):
            return None
        self._too_large += 1
        logger.info("the arena is %d bytes over the budget; solving again with %d less", excess_bytes, less_bytes)
        return target_bytes - less_bytes

    def _larger(self, target_bytes: int, solution: Solution, saved_bytes: int) -> int | None:
        """The arena fits with ``saved_bytes`` less than the program counts: the program gets that much more."""
        fit = self._fit
        binding = solution.peak_bytes >= target_bytes * (1 - WORTH_SHARE) and VARIANTS[fit.variant].solves
        if saved_bytes < fit.budget_bytes * WORTH_SHARE or not binding or solution.status == "interrupted":
            return None
        larger_bytes = fit.budget_bytes + saved_bytes
        if larger_bytes <= target_bytes or not self._has_time():
            return None
        logger.info(
            "the order needs %d bytes less than the program counts; solving again with that much more", saved_bytes
        )
        return larger_bytes

    def refusal(self) -> InfeasibleBudget:
        """For a budget that a plan fits, but no arena: it knows the smallest plan."""
        fit = self._fit
        problem, solving = fit.lowered.problem, replace(fit.solving, time_limit_s=self.left_s())
        try:
            plan_variant(fit.variant, problem, problem.fixed_bytes, solving, start=fit.start)
        except InfeasibleBudget as error:
            reason = ("A plan for ", fit.budget_bytes, " exists, but none was found whose buffers fit without gaps.")
            return InfeasibleBudget(reason, error.smallest_bytes, smallest_plan=error.smallest_plan)
        raise AssertionError("a plan needs memory beside the fixed bytes")


def _replays(problem: Problem, plans: Sequence[Runs], budget_bytes: int) -> Iterator[tuple[int, Replay]]:
    """The cost of each plan that is one of the problem and fits, with its position."""
    for position, runs in enumerate(plans):
        try:
            cost = replay(problem, runs)
        except (InvalidPlan, KeyError):
            continue  # the caller's, who is told when it is used
        if cost.peak_bytes <= budget_bytes:
            yield position, cost


def _smallest_known(refused: InfeasibleBudget, fit: Fit, attempts: _Attempts) -> Placed:
    """The smallest plan known, of this search or an earlier one, or ``refused`` with what its arena needs."""
    lowered, variant = fit.lowered, fit.variant
    earlier, known = recall(lowered, variant), refused.smallest_plan
    if not isinstance(known, Solution):
        raise refused
    candidates: list[Solution | None] = [known]
    if variant in ABLATION:
        candidates.append(fastest_plan(restrict(lowered.problem, variant)))
    smallest = smallest_placed(candidates, lowered, min(attempts.left_s(), REFUSED_SHARE * fit.solving.time_limit_s))
    remember(lowered, variant, smallest)
    if fit.excess_bytes(smallest) <= 0:
        return smallest
    if earlier is not None and _needed(earlier, lowered) <= _needed(smallest, lowered):
        smallest = earlier
    raise InfeasibleBudget(
        refused.reason, _needed(smallest, lowered), advice=refused.advice, counted_bytes=refused.counted_bytes
    ) from refused


def _needed(placed: Placed, lowered: Lowered) -> int:
    return lowered.problem.fixed_bytes + placed[1].layout.arena_bytes


def smallest_placed(candidates: Sequence[Solution | None], lowered: Lowered, time_limit_s: float = math.inf) -> Placed:
    """The one whose arena is smallest; the first of several. None among them is left out, the first is not None.

    ``time_limit_s``: for all of them, as for ``placement``.
    """
    fixed_bytes, plans = lowered.problem.fixed_bytes, [plan for plan in candidates if plan is not None]
    placed = [(plan, placement(plan.runs, lowered, fixed_bytes, time_limit_s / len(plans))) for plan in plans]
    return min(placed, key=lambda pair: pair[1].layout.arena_bytes)

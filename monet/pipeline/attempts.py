"""Solves and placements in one order of the operators.

What the program counts and what an arena needs may differ (gaps, or an order that is better still), so the bytes that
the program gets are bracketed: between the most that fit so far and the least that did not.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

from monet.errors import InfeasibleBudget
from monet.pipeline.fit import SHARES, WORTH_SHARE, FitState
from monet.pipeline.known_plans import Placed
from monet.pipeline.lowering import Lowered
from monet.pipeline.orders import order_of
from monet.pipeline.placement import as_placed, placement
from monet.planner.ablation import restrict
from monet.planner.checkpoints.repair import repaired
from monet.planner.construction.kept import keep_what_fits
from monet.planner.problem import Problem
from monet.planner.program.index import index_of
from monet.planner.replay import Replay, cost_of_plan, replay
from monet.planner.schedules import ABLATION, VARIANTS, plan_variant
from monet.planner.solution import Proof, Runs, Solution

logger = logging.getLogger(__name__)

TRIES = 4
"""Solves in one order, at most."""
STARTS = ("block", "sqrt-n-blocks", "selective")
"""Baselines that take milliseconds, and that no plan should be slower than."""
LAST_START = "sqrt-n"
"""A baseline that takes longer, for where no other plan is there: on 64,000 operators a search finds none in 60 s."""
LESS_SHARES = (1.0, 1.0, 2.0)
"""Of an arena's excess: how much less the program gets after the first arena that does not fit, the second and the
third, while none fits. A solve takes a second and a placement several, so the first one that fits is worth more than
the bytes that it leaves: later targets are between it and the one that did not fit."""
LESS_FILLED = (1.0, 1.0, 2.0, 4.0)
"""Of the least excess of an arena so far: how much less a plan that does not fit has in memory when it is placed
again."""
LEAST_LESS_SHARE = 0.0025
"""Of the budget: the least of that. A plan that fits but for some bytes is one of few, and has few layouts."""
INTERRUPTED_S, INTERRUPTED_AGAIN_S = 1.0, 10.0
"""How long the plan of an interrupted solve is ordered and placed; where its arena does not fit, how long each smaller
plan is looked for and placed; and how long the plan is placed again where none is found."""


class Attempts:
    """Solves and placements in one order, with one budget for the program after the other.

    ``fits_bytes``: the most that it got where the arena fitted; ``breaks_bytes``: the least where it did not.
    """

    def __init__(
        self,
        state: FitState,
        lowered: Lowered,
        limit_s: float,
        start: Runs | None = None,
        first_bytes: int | None = None,
    ) -> None:
        self._first_bytes = state.fit.budget_bytes if first_bytes is None else first_bytes
        self._state = state
        self._lowered = lowered
        self._until_s = time.monotonic() + limit_s
        self._begin = start
        self._last: Solution | None = None
        self._unfilled: Runs | None = None
        self._fitted = False
        self._too_large = 0
        self._proofs: list[tuple[int, Proof]] = []  # with the target that each is for
        self.fits_bytes = 0
        self.breaks_bytes: float = math.inf

    def left_s(self) -> float:
        return max(SHARES.least * self._state.fit.solving.time_limit_s, self._until_s - time.monotonic())

    def run(self) -> None:
        """Until no other target is worth it. A plan that is not faster than the best by what is worth it, and is proven
        to be none here, ends the first solve."""
        state = self._state
        before = state.best
        enough_s = None if before is None else before[0].objective_s * (1 - WORTH_SHARE)
        target_bytes: int | None = self._first_bytes
        for _ in range(TRIES):
            if target_bytes is None:
                return
            try:
                solution = self.solve(target_bytes, enough_s)
            except InfeasibleBudget as refused:
                if not self._fitted:
                    # Without its frames, which hold all that the caller has at hand, the results of a step perhaps.
                    refused.__traceback__ = None
                    state.refused.append((self._lowered, None if self._too_large else refused))
                return
            state.interrupted = state.interrupted or solution.status == "interrupted"
            if before is not None and solution.objective_s >= before[0].objective_s:
                self._prove_best(solution)
                return
            improving = enough_s is not None and solution.objective_s <= enough_s
            if solution.status == "good_enough":  # for this search, not for whoever asked
                solution = replace(solution, status="time_limit")
            target_bytes = self._after(target_bytes, solution, improving=improving)
            if enough_s is not None and not improving:
                return
            enough_s = None
        if not self._fitted and state.best is None:
            state.refused.append((self._lowered, None))

    def _after(self, target_bytes: int, solution: Solution, *, improving: bool) -> int | None:
        """Places the plan; the target to try next, None where nothing is worth it. ``improving``: its solve ended as
        soon as the plan was faster than the best, and goes on from there."""
        state = self._state
        fit = state.fit
        self._last = solution
        if solution.status == "interrupted":
            placed = self._placed_soon(target_bytes, solution)
            solution = placed[0]
        else:
            placed = self._placed(solution, SHARES.place * self.left_s())
        excess_bytes = fit.excess_bytes(placed)
        if excess_bytes > 0:
            self.breaks_bytes = min(self.breaks_bytes, target_bytes)
            looser = self._less_filled(target_bytes, solution, excess_bytes)
            if looser is None:
                return self._smaller(target_bytes, excess_bytes)
            placed, solution, target_bytes = looser, looser[0], looser[0].peak_bytes
        self._fitted, self.fits_bytes = True, max(self.fits_bytes, target_bytes)
        if state.best is None or solution.objective_s < state.best[0].objective_s:
            state.best = placed
        else:
            self._prove_best(solution)
        if state.interrupted:
            return None
        if improving:
            return target_bytes if state.has_time() else None
        return self._larger(target_bytes, solution, solution.peak_bytes - fit.needed_bytes(placed))

    def _less_filled(self, target_bytes: int, solution: Solution, excess_bytes: int) -> Placed | None:
        """The last plan with less of what was kept, if it is faster than the best and fits: a plan that fills every
        moment leaves no room for the gaps of a layout, and a placement takes less than another solve. What it was
        before it was filled is tried where it is the fastest, and last of all."""
        state = self._state
        if self._fitted or state.interrupted or state.fit.variant not in ABLATION:
            return None
        problem = restrict(self._lowered.problem, state.fit.variant)
        limit_bytes = target_bytes
        as_it_was = None if self._unfilled is None else with_runs(solution, self._unfilled, problem)
        for n, share in enumerate((*LESS_FILLED, None)):
            candidates = [] if as_it_was is None else [as_it_was]
            if share is not None:
                least_bytes = max(excess_bytes, LEAST_LESS_SHARE * state.fit.budget_bytes)
                limit_bytes -= math.ceil(share * least_bytes)
                candidates += self._filled_to(limit_bytes, solution, problem)
            made = min(candidates, key=lambda each: each.objective_s, default=None)
            if made is None or (state.best is not None and made.objective_s >= state.best[0].objective_s):
                return None
            as_it_was = None if made is as_it_was else as_it_was
            placed = self._placed(made, self.left_s() / (len(LESS_FILLED) + 1 - n))
            if state.fit.excess_bytes(placed) <= 0:
                return placed
            excess_bytes = min(excess_bytes, state.fit.excess_bytes(placed))
            if state.best is not None and not state.has_time():
                return None
        return None

    def _filled_to(self, limit_bytes: int, solution: Solution, problem: Problem) -> list[Solution]:
        """The last plan repaired, and what it was before it was filled, each filled with what fits."""
        starts = self._repaired(limit_bytes, SHARES.least * self._state.fit.solving.time_limit_s)
        starts += [] if self._unfilled is None else [self._unfilled]
        return [
            with_runs(solution, keep_what_fits(problem, starts[k], limit_bytes), problem)
            for k, _ in _replays(problem, starts, limit_bytes)
        ]

    def _prove_best(self, solution: Solution) -> None:
        """The best plan has what a later solve along its order has proven, where that is more."""
        best, proof = self._state.best, solution.proof
        if best is None or proof is None or order_of(best[0].runs) != order_of(solution.runs):
            return
        known = best[0].proof
        if solution.objective_s < best[0].objective_s * (1 - 1e-9) or (known and known.bound_s >= proof.bound_s):
            return
        status = "optimal" if solution.status == "optimal" else best[0].status
        proof = replace(proof, bound_s=min(proof.bound_s, best[0].objective_s))
        self._state.best = replace(best[0], proof=proof, status=status), best[1]

    def _smaller(self, target_bytes: int, excess_bytes: int) -> int | None:
        """The arena is too large: the program gets less."""
        state = self._state
        if state.interrupted or (state.best is not None and not state.has_time()):
            return None
        if self._fitted:
            return self._between()
        less_bytes = math.ceil(excess_bytes * LESS_SHARES[min(self._too_large, len(LESS_SHARES) - 1)])
        self._too_large += 1
        if self._too_large == TRIES:
            return None
        logger.info("the arena is %d bytes over the budget; solving again with %d less", excess_bytes, less_bytes)
        return target_bytes - less_bytes

    def _larger(self, target_bytes: int, solution: Solution, saved_bytes: int) -> int | None:
        """The arena fits with ``saved_bytes`` less than the program counts: the program gets that much more."""
        fit = self._state.fit
        binding = solution.peak_bytes >= target_bytes * (1 - WORTH_SHARE) and VARIANTS[fit.variant].solves
        if not binding or not self._state.has_time():
            return None
        if math.isfinite(self.breaks_bytes):
            return self._between()
        larger_bytes = fit.budget_bytes + saved_bytes
        if saved_bytes < fit.budget_bytes * WORTH_SHARE or larger_bytes <= target_bytes:
            return None
        logger.info(
            "the order needs %d bytes less than the program counts; solving again with as much more", saved_bytes
        )
        return larger_bytes

    def _between(self) -> int | None:
        """Half way from what fits to what does not."""
        if self.breaks_bytes - self.fits_bytes < WORTH_SHARE * self._state.fit.budget_bytes:
            return None
        return (self.fits_bytes + int(self.breaks_bytes)) // 2

    def _placed(self, solution: Solution, limit_s: float) -> Placed:
        placed = placement(solution.runs, self._lowered, self._state.fit.budget_bytes, limit_s)
        return as_placed(solution, self._lowered, placed), placed

    def _placed_soon(self, target_bytes: int, solution: Solution) -> Placed:
        """The plan of an interrupted solve; where its arena does not fit and no other plan is known, one that is made
        of it and needs less. Whoever interrupts waits for no better order and no other solve. Raises
        ``KeyboardInterrupt`` where none fits."""
        state = self._state
        fit = state.fit
        placed = self._placed(solution, INTERRUPTED_S)
        if fit.excess_bytes(placed) <= 0 or state.best is not None or state.known is not None:
            return placed
        logger.warning("interrupted; looking for an arena for the best plan so far: Ctrl-C again gives it up")
        for _ in range(TRIES):
            target_bytes = min(target_bytes, placed[0].peak_bytes) - fit.excess_bytes(placed)
            smaller = self._repaired(target_bytes, INTERRUPTED_S)
            if not smaller:
                break
            made = with_runs(solution, smaller[0], self._lowered.problem)
            placed = self._placed(made, INTERRUPTED_S)
            if fit.excess_bytes(placed) <= 0:
                return placed
        placed = self._placed(solution, INTERRUPTED_AGAIN_S)
        if fit.excess_bytes(placed) > 0:
            raise KeyboardInterrupt
        return placed

    def solve(self, target_bytes: int, enough_s: float | None = None) -> Solution:
        """The best plan of ``target_bytes`` in this order. Raises ``InfeasibleBudget``; ``KeyboardInterrupt`` where
        there is none."""
        share = SHARES.solve if self._last is None else SHARES.later if self._fitted else SHARES.again
        state = self._state
        fit, limit_s = state.fit, share * self.left_s()
        with state.meter(limit_s) as progress:
            solution = plan_variant(
                fit.variant,
                self._lowered.problem,
                target_bytes,
                replace(fit.solving, time_limit_s=limit_s),
                start=self._start(target_bytes),
                enough_s=enough_s,
                progress=progress,
            )
        self._unfilled, solution = solution.unfilled, replace(solution, unfilled=None)
        return self._with_best_proof(target_bytes, solution)

    def _with_best_proof(self, target_bytes: int, solution: Solution) -> Solution:
        """The solution with the best of its own bound and those of earlier solves that hold for it: what no plan beats
        with more memory, none beats with less. A later solve may have no time for a bound of its own."""
        if solution.proof is not None:
            self._proofs.append((target_bytes, solution.proof))
        cost_s, prove = solution.objective_s, self._state.fit.solving.prove

        def rank(proof: Proof) -> tuple[bool, float, bool]:
            full = proof.scope == "full"
            return prove and full, proof.bound_s, full

        # A bound of fewer plans that is above this one's cost says that it is none of them.
        holding = [p for target, p in self._proofs if target >= target_bytes]
        best = max((p for p in holding if p.scope == "full" or p.bound_s <= cost_s), key=rank, default=None)
        return solution if best is None else replace(solution, proof=replace(best, bound_s=min(best.bound_s, cost_s)))

    def _start(self, target_bytes: int) -> Runs | None:
        """The fastest of the plans that are there without a search: the caller's, an earlier search's, and those of the
        baselines that a user would write by hand. Those along another order are left out."""
        state = self._state
        fit, problem = state.fit, self._lowered.problem
        if not VARIANTS[fit.variant].solves:
            return None
        starts = [runs for runs in (fit.start, self._begin) if runs is not None]
        starts += [placed[0].runs for placed in (state.known, state.best, *state.parts) if placed is not None]
        starts += self._repaired(target_bytes, SHARES.least * fit.solving.time_limit_s)
        starts += _baselines(problem, target_bytes, STARTS)
        costs = [(cost.objective_s, k) for k, cost in _replays(problem, starts, target_bytes)]
        if costs:
            return starts[min(costs)[1]]
        return next(iter(_baselines(problem, target_bytes, (LAST_START,))), None)

    def _repaired(self, target_bytes: int, limit_s: float) -> list[Runs]:
        """The last plan made to fit, where its arena did not; none where that takes longer than ``limit_s``."""
        fit = self._state.fit
        if self._last is None or fit.variant not in ABLATION:
            return []
        index = index_of(restrict(self._lowered.problem, fit.variant))
        runs = repaired(index, self._last.runs, target_bytes, time.monotonic() + limit_s)
        return [] if runs is None else [runs]


def _baselines(problem: Problem, target_bytes: int, names: Sequence[str]) -> list[Runs]:
    """Those that fit."""
    found = []
    for name in names:
        try:
            found.append(VARIANTS[name].plan(problem, target_bytes).runs)
        except InfeasibleBudget:
            continue
    return found


def with_runs(solution: Solution, runs: Runs, problem: Problem) -> Solution:
    """Another plan that was made of a solution's and fits the same budget: what was proven of every plan holds for it,
    and what was proven of fewer where it may be one of them."""
    cost, proof = replay(problem, runs), solution.proof
    status = solution.status
    if proof is not None and proof.bound_s > cost.objective_s:
        proof = replace(proof, bound_s=cost.objective_s) if proof.scope == "full" else None
        status = "time_limit" if proof is None and status == "optimal" else status
    made = replace(solution, runs=runs, objective_s=cost.objective_s, peak_bytes=cost.peak_bytes)
    return replace(made, proof=proof, status=status)


def _replays(problem: Problem, plans: Sequence[Runs], budget_bytes: int) -> Iterator[tuple[int, Replay]]:
    """The cost of each plan that is one of the problem and fits, with its position."""
    for position, runs in enumerate(plans):
        cost = cost_of_plan(problem, runs)  # None: the caller's, who is told when it is used, or of another order
        if cost is not None and cost.peak_bytes <= budget_bytes:
            yield position, cost

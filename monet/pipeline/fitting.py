"""The fastest plan whose arena, not only the program's account of it, fits the budget.

The program counts memory along one order of the operators, and an order that saves memory also lets plans fit that are
faster. So one search goes through several orders, each of them lowered (``orders.py``), and none makes its result
worse::

    the best order of keeping everything  →  the captured order  →  the order of the best plan so far, while that helps

In each, what the program counts and what an arena needs may differ (gaps, or an order that is better still), so the
bytes that the program gets are bracketed: between the most that fit so far and the least that did not.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from monet.errors import InfeasibleBudget, InvalidPlan, SolverError
from monet.pipeline.known_plans import Placed, recall, remember
from monet.pipeline.lowering import Lowered
from monet.pipeline.meter import Meter, silent
from monet.pipeline.orders import FirstOrder, along, first_orders, in_order, order_of
from monet.pipeline.placement import ORDER_S, placement
from monet.planner.ablation import MONET, restrict
from monet.planner.construction.first_plans import fastest_plan, smallest_budget
from monet.planner.memory_floor import floor_s
from monet.planner.moments.repair import repaired
from monet.planner.problem import Problem
from monet.planner.program.index import index_of
from monet.planner.replay import Replay, replay
from monet.planner.schedules import ABLATION, MOVE, MOVE_ONLY, VARIANTS, plan_variant
from monet.planner.search import Solving
from monet.planner.solution import Proof, Runs, Solution

logger = logging.getLogger(__name__)

TRIES = 4
"""Solves in one order, at most."""
WORTH_SHARE = 0.005
"""Solving again pays where another order saves this share of the budget, and searching in another order where plans can
be faster by this share."""
LEFT_SHARE = 0.1
"""Of the time limit: with less than this left and a plan in hand, nothing is solved again."""
STARTS = ("block", "sqrt-n-blocks", "selective")
"""Baselines that take milliseconds, and that no plan should be slower than."""
SOLVE_SHARE, AGAIN_SHARE, LATER_SHARE = 0.7, 0.5, 0.75
"""Of the time that an order has left: how much of it the first solve gets, one after an arena that did not fit, and one
for another budget after an arena that did; the rest is for order and layout, and for the next try."""
PLACE_SHARE = 0.35
"""Of the time that is left: how much of it order and layout get while no arena fits yet."""
LESS_SHARES = (1.0, 1.0, 2.0)
"""Of an arena's excess: how much less the program gets after the first arena that does not fit, the second and the
third, while none fits. A solve takes a second and a placement several, so the first one that fits is worth more than
the bytes that it leaves: later targets are between it and the one that did not fit."""
SMALLEST_SHARE = 0.25
"""Of the time limit: how long the smallest plans are looked for, ordered and placed, at most, where none fits."""
LEAST_SHARE = 0.05
"""Of the time limit: what a solve or a placement gets that is needed and for which there is no time left."""
ORDER_SHARE = 0.25
"""Of the time limit: how long the order of keeping everything is looked for, at most."""
EACH_SHARE = 0.6
"""Of the time that is left: what each of several orders gets; the rest is for the best plan's order. Tuned on
``bench_orders.py``, where RegNet wants more of it for the first order and GoogLeNet for the second."""
INTERRUPTED_S, INTERRUPTED_AGAIN_S = 1.0, 10.0
"""How long the plan of an interrupted solve is ordered and placed; where its arena does not fit, how long each smaller
plan is looked for and placed; and how long the plan is placed again where none is found."""


@dataclass(frozen=True, slots=True)
class Fit:
    """What must fit: a plan of ``variant`` in ``budget_bytes``; ``start``: a plan to begin with. ``remembers``: plans
    of earlier searches are read, and the one that is found is kept for later ones."""

    lowered: Lowered
    budget_bytes: int
    variant: str = MONET
    solving: Solving = field(default_factory=Solving)
    start: Runs | None = None
    remembers: bool = True

    def needed_bytes(self, placed: Placed) -> int:
        """Of a plan's arena and the fixed bytes."""
        return self.lowered.problem.fixed_bytes + placed[1].layout.arena_bytes

    def excess_bytes(self, placed: Placed) -> int:
        """By how much that is over the budget."""
        return self.needed_bytes(placed) - self.budget_bytes

    @property
    def has_orders(self) -> bool:
        """Whether other orders than the captured one are searched in. Copies are timed along that one, and baselines
        are defined along it."""
        problem = self.lowered.problem
        return self.variant in ABLATION and problem.second is None and not problem.carried


def fit_budget(fit: Fit, meter: Meter = silent) -> Placed:
    """A plan whose arena fits beside the fixed bytes, and makes use of the budget. Its runs are along an order of their
    own (``orders.order_of``).

    Where none of the plans fits, the smallest one known may do so once it is ordered, and others along its order. No
    plan is slower than one that is known for this budget or less, from this search or an earlier one.

    All of it takes ``fit.solving.time_limit_s``, with solving, ordering and layout; ``fit.solving.prove`` may take as
    long again.

    Raises ``InfeasibleBudget`` otherwise; what it names is the size of an arena that was made and is kept, so that
    budget works. ``KeyboardInterrupt`` on Ctrl-C before there is an arena that fits.
    """
    parts = _of_parts(fit)
    known = _known(fit, parts)
    search = _Search(fit, meter, known, parts)
    try:
        search.run()
    except KeyboardInterrupt:
        if search.best is None and known is None:
            raise
        search.interrupted = True
    best = search.best
    if best is None or (known is not None and known[0].objective_s < best[0].objective_s):
        assert known is not None
        best = _as_found(known, None if best is None else best[0]), known[1]
    elif fit.remembers:
        remember(fit.lowered, fit.variant, best)
    return (replace(best[0], status="interrupted"), best[1]) if search.interrupted else best


def orders_of(fit: Fit) -> list[Lowered]:
    """The orders that are searched in, each lowered: the captured one, and the best one of keeping everything. First
    comes the one that leaves more room: where the budget is further from the least that any plan needs, on the way to
    what the fastest plan needs. One in which no plan fits is left out, unless none fits in either."""
    if not fit.has_orders:
        return [fit.lowered]
    orders = first_orders(fit.lowered, fit.variant, min(ORDER_S, ORDER_SHARE * fit.solving.time_limit_s))
    ranked = sorted(((_room(order, fit.budget_bytes), order.lowered) for order in orders), key=lambda each: -each[0])
    return [lowered for room, lowered in ranked if room > 0] or [lowered for _, lowered in ranked]


def _room(order: FirstOrder, budget_bytes: int) -> float:
    """0: the budget is the least that any plan needs; 1: what the fastest plan needs."""
    return (budget_bytes - order.least_bytes + 1) / max(1, order.fastest_bytes - order.least_bytes)


def _known(fit: Fit, parts: Sequence[Placed]) -> Placed | None:
    """The fastest plan of earlier searches, ``parts`` among them: their order may fit where the captured one does
    not."""
    placed = recall(fit.lowered, fit.variant, fit.budget_bytes) if fit.remembers else None
    others = () if fit.lowered.problem.carried else parts
    return min((p for p in (placed, *others) if p is not None), key=lambda p: p[0].objective_s, default=None)


def _of_parts(fit: Fit) -> list[Placed]:
    """Where there are two memories: plans that are known without moves, and without recomputation."""
    if fit.variant != MOVE or not fit.remembers:
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
    if proof is not None:  # in another order a plan may be faster than all that fit in this one
        proof = replace(proof, bound_s=min(proof.bound_s, solution.objective_s))
    return replace(solution, status=found.status, proof=proof, build_s=found.build_s, solve_s=found.solve_s)


class _Search:
    """One search through several orders. ``best``: the fastest plan that fits so far. ``known``, ``parts``: of earlier
    searches, to begin with. ``interrupted``: whether Ctrl-C ended a solve. ``refused``: why no plan was found, with the
    order that this is about."""

    def __init__(self, fit: Fit, meter: Meter, known: Placed | None, parts: Sequence[Placed] = ()) -> None:
        self.fit = fit
        self.meter = meter
        self.known = known
        self.parts = parts
        self.begun = time.monotonic()
        self.best: Placed | None = None
        self.refused: list[tuple[Lowered, InfeasibleBudget | None]] = []
        self.interrupted = False

    def left_s(self) -> float:
        """Of the time limit, and never less than what a part that is needed gets."""
        limit_s = self.fit.solving.time_limit_s
        return max(LEAST_SHARE * limit_s, limit_s - (time.monotonic() - self.begun))

    def has_time(self) -> bool:
        """For what is not needed."""
        return self.left_s() >= LEFT_SHARE * self.fit.solving.time_limit_s

    def run(self) -> None:
        """Raises ``InfeasibleBudget``, and ``KeyboardInterrupt`` on Ctrl-C amid a placement or where no plan fits."""
        fit, orders = self.fit, orders_of(self.fit)
        for order in orders:
            share = 1.0 if len(orders) == 1 else EACH_SHARE
            self._search_in(order, share * self.left_s())
            if self._is_over():
                return
        if self.best is None:
            self._fit_smallest()
        while not self._is_over() and self._improved_along_best():
            pass
        best = self.best
        if best is not None and best[0].status == "time_limit" and fit.has_orders and not self._is_over():
            first_bytes = max(fit.budget_bytes, best[0].peak_bytes)
            self._search_in(in_order(fit.lowered, order_of(best[0].runs)), self.left_s(), first_bytes=first_bytes)

    def _is_over(self) -> bool:
        """Whether nobody wants more: interrupted, or within the gap of what no plan of any order beats."""
        if self.interrupted:
            return True
        if self.best is None:
            return False
        fit = self.fit
        least_s = floor_s(restrict(fit.lowered.problem, fit.variant)) if fit.has_orders else 0.0
        return self.best[0].objective_s * (1 - fit.solving.gap) <= least_s

    def _search_in(
        self, lowered: Lowered, limit_s: float, start: Runs | None = None, first_bytes: int | None = None
    ) -> None:
        """``start``: a plan along this order to begin with; ``first_bytes``: what the program gets first, None for the
        budget."""
        if self.best is not None and not self.has_time():
            return
        try:
            _Attempts(self, lowered, limit_s, start, first_bytes).run()
        except SolverError as error:
            if self.best is None:
                raise
            logger.warning("a solver failed, the best plan so far is kept: %s", error)

    def _improved_along_best(self) -> bool:
        """Searches in the best plan's own order, where that needs less than the program counted."""
        fit, best = self.fit, self.best
        if best is None:
            return False
        solution, placed = best
        saved_bytes = solution.peak_bytes - fit.needed_bytes(best)
        if not fit.has_orders or not self.has_time() or saved_bytes < WORTH_SHARE * fit.budget_bytes:
            return False
        other = along(fit.lowered, solution.runs, placed.unrolled.steps)
        if other is None:
            return False
        logger.info("searching along the order of the best plan, which saves %d bytes", saved_bytes)
        self._search_in(other[0], self.left_s(), other[1])
        return self.best is not None and self.best[0].objective_s < solution.objective_s * (1 - WORTH_SHARE)

    def _fit_smallest(self) -> None:
        """No plan fits as the program counts: the smallest one known may fit once it is ordered, and faster ones along
        that order. Raises ``InfeasibleBudget`` where none does."""
        fit = self.fit
        refused = None
        if self.known is not None:
            smallest = self.known
        else:
            smallest, refused = self._smallest()
        other = along(fit.lowered, smallest[0].runs, smallest[1].unrolled.steps) if fit.has_orders else None
        if refused is not None and fit.excess_bytes(smallest) <= 0:
            solution = _as_found(smallest, None)
            if other is not None:  # along the order that it has once it is placed, in which it can be improved
                peak_bytes = replay(other[0].problem, other[1]).peak_bytes
                solution = replace(solution, runs=other[1], peak_bytes=peak_bytes)
            self.best = solution, smallest[1]
        if other is not None and self.has_time():
            logger.info("searching along the order of the smallest plan")
            self.refused.clear()
            self._search_in(other[0], self.left_s(), other[1])
        if self.best is not None or refused is None:
            return
        if other is not None and self.refused:
            again, _ = self._smallest(smallest)
            smallest = min(smallest, again, key=fit.needed_bytes)
        if fit.excess_bytes(smallest) > 0:
            raise self._refusal(smallest, refused)
        self.best = _as_found(smallest, None), smallest[1]

    def _smallest(self, known: Placed | None = None) -> tuple[Placed, InfeasibleBudget]:
        """The smallest plan of those orders in which none fits, and why none does. ``known``: where no order has one.
        Raises ``InfeasibleBudget`` where there is none at all."""
        fit = self.fit
        limit_s = min(self.left_s(), SMALLEST_SHARE * fit.solving.time_limit_s) / len(self.refused)
        found: list[tuple[Placed, InfeasibleBudget]] = []
        refused = InfeasibleBudget("no plan was looked for")
        for lowered, refusal in self.refused:
            refused = refusal or _without_gaps(fit, lowered, limit_s)
            if not isinstance(refused.smallest_plan, Solution):
                continue
            candidates: list[Solution | None] = [refused.smallest_plan]
            if fit.variant in ABLATION:
                candidates.append(fastest_plan(restrict(lowered.problem, fit.variant)))
            placed = smallest_placed(candidates, lowered, limit_s)
            if fit.remembers:
                remember(fit.lowered, fit.variant, placed)
            found.append((placed, refused))
        if found:
            return min(found, key=lambda each: fit.needed_bytes(each[0]))
        if known is None:
            raise refused
        return known, refused

    def _refusal(self, smallest: Placed, refused: InfeasibleBudget) -> InfeasibleBudget:
        """What it names works: the least that an arena of this search or an earlier one needs."""
        fit = self.fit
        earlier = recall(fit.lowered, fit.variant) if fit.remembers else None
        if earlier is not None and fit.needed_bytes(earlier) <= fit.needed_bytes(smallest):
            smallest = earlier
        least = fit.needed_bytes(smallest)
        error = InfeasibleBudget(refused.reason, least, advice=refused.advice, counted_bytes=refused.counted_bytes)
        error.__cause__ = refused
        return error


class _Attempts:
    """Solves and placements in one order, with one budget for the program after the other.

    ``fits_bytes``: the most that it got where the arena fitted; ``breaks_bytes``: the least where it did not.
    """

    def __init__(
        self,
        search: _Search,
        lowered: Lowered,
        limit_s: float,
        start: Runs | None = None,
        first_bytes: int | None = None,
    ) -> None:
        self._first_bytes = search.fit.budget_bytes if first_bytes is None else first_bytes
        self._search = search
        self._lowered = lowered
        self._until_s = time.monotonic() + limit_s
        self._begin = start
        self._last: Solution | None = None
        self._fitted = False
        self._too_large = 0
        self._proofs: list[tuple[int, Proof]] = []  # with the target that each is for
        self.fits_bytes = 0
        self.breaks_bytes: float = math.inf

    def left_s(self) -> float:
        return max(LEAST_SHARE * self._search.fit.solving.time_limit_s, self._until_s - time.monotonic())

    def run(self) -> None:
        """Until no other target is worth it. A plan that is not faster than the best by what is worth it, and is proven
        to be none here, ends the first solve."""
        search = self._search
        before = search.best
        enough_s = None if before is None else before[0].objective_s * (1 - WORTH_SHARE)
        target_bytes: int | None = self._first_bytes
        for _ in range(TRIES):
            if target_bytes is None:
                return
            try:
                solution = self.solve(target_bytes, enough_s)
            except InfeasibleBudget as refused:
                if not self._fitted:
                    search.refused.append((self._lowered, None if self._too_large else refused))
                return
            search.interrupted = search.interrupted or solution.status == "interrupted"
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
        if not self._fitted and search.best is None:
            search.refused.append((self._lowered, None))

    def _after(self, target_bytes: int, solution: Solution, *, improving: bool) -> int | None:
        """Places the plan; the target to try next, None where nothing is worth it. ``improving``: its solve ended as
        soon as the plan was faster than the best, and goes on from there."""
        search = self._search
        fit = search.fit
        self._last = solution
        if solution.status == "interrupted":
            placed = self._placed_soon(target_bytes, solution)
            solution = placed[0]
        else:
            left_s = self.left_s() if search.best is not None else PLACE_SHARE * self.left_s()
            placed = self._placed(solution, left_s)
        excess_bytes = fit.excess_bytes(placed)
        if excess_bytes > 0:
            self.breaks_bytes = min(self.breaks_bytes, target_bytes)
            return self._smaller(target_bytes, excess_bytes)
        self._fitted, self.fits_bytes = True, max(self.fits_bytes, target_bytes)
        if search.best is None or solution.objective_s < search.best[0].objective_s:
            search.best = placed
        else:
            self._prove_best(solution)
        if search.interrupted:
            return None
        if improving:
            return target_bytes if search.has_time() else None
        return self._larger(target_bytes, solution, solution.peak_bytes - fit.needed_bytes(placed))

    def _prove_best(self, solution: Solution) -> None:
        """The best plan has what a later solve along its order has proven, where that is more."""
        best, proof = self._search.best, solution.proof
        if best is None or proof is None or order_of(best[0].runs) != order_of(solution.runs):
            return
        known = best[0].proof
        if solution.objective_s < best[0].objective_s * (1 - 1e-9) or (known and known.bound_s >= proof.bound_s):
            return
        status = "optimal" if solution.status == "optimal" else best[0].status
        proof = replace(proof, bound_s=min(proof.bound_s, best[0].objective_s))
        self._search.best = replace(best[0], proof=proof, status=status), best[1]

    def _smaller(self, target_bytes: int, excess_bytes: int) -> int | None:
        """The arena is too large: the program gets less."""
        search = self._search
        if search.interrupted or (search.best is not None and not search.has_time()):
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
        fit = self._search.fit
        binding = solution.peak_bytes >= target_bytes * (1 - WORTH_SHARE) and VARIANTS[fit.variant].solves
        if not binding or not self._search.has_time():
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
        if self.breaks_bytes - self.fits_bytes < WORTH_SHARE * self._search.fit.budget_bytes:
            return None
        return (self.fits_bytes + int(self.breaks_bytes)) // 2

    def _placed(self, solution: Solution, limit_s: float) -> Placed:
        return solution, placement(solution.runs, self._lowered, self._search.fit.budget_bytes, limit_s)

    def _placed_soon(self, target_bytes: int, solution: Solution) -> Placed:
        """The plan of an interrupted solve; where its arena does not fit and no other plan is known, one that is made
        of it and needs less. Whoever interrupts waits for no better order and no other solve. Raises
        ``KeyboardInterrupt`` where none fits."""
        search = self._search
        fit = search.fit
        placed = self._placed(solution, INTERRUPTED_S)
        if search.best is not None or search.known is not None:
            return placed
        for _ in range(TRIES):
            if fit.excess_bytes(placed) <= 0:
                return placed
            target_bytes = min(target_bytes, placed[0].peak_bytes) - fit.excess_bytes(placed)
            smaller = self._repaired(target_bytes, INTERRUPTED_S)
            if not smaller:
                break
            made = _with_runs(solution, smaller[0], self._lowered.problem)
            placed = self._placed(made, INTERRUPTED_S)
        if fit.excess_bytes(placed) > 0:
            placed = self._placed(solution, INTERRUPTED_AGAIN_S)
        if fit.excess_bytes(placed) > 0:
            raise KeyboardInterrupt
        return placed

    def solve(self, target_bytes: int, enough_s: float | None = None) -> Solution:
        """The best plan of ``target_bytes`` in this order. Raises ``InfeasibleBudget``; ``KeyboardInterrupt`` where
        there is none."""
        share = SOLVE_SHARE if self._last is None else LATER_SHARE if self._fitted else AGAIN_SHARE
        search = self._search
        fit, limit_s = search.fit, share * self.left_s()
        with search.meter(limit_s) as progress:
            solution = plan_variant(
                fit.variant,
                self._lowered.problem,
                target_bytes,
                replace(fit.solving, time_limit_s=limit_s),
                start=self._start(target_bytes),
                enough_s=enough_s,
                progress=progress,
            )
        return self._with_best_proof(target_bytes, solution)

    def _with_best_proof(self, target_bytes: int, solution: Solution) -> Solution:
        """The solution with the best of its own bound and those of earlier solves that hold for it: what no plan beats
        with more memory, none beats with less. A later solve may have no time for a bound of its own."""
        if solution.proof is not None:
            self._proofs.append((target_bytes, solution.proof))
        cost_s, prove = solution.objective_s, self._search.fit.solving.prove

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
        search = self._search
        fit, problem = search.fit, self._lowered.problem
        if not VARIANTS[fit.variant].solves:
            return None
        starts = [runs for runs in (fit.start, self._begin) if runs is not None]
        starts += [placed[0].runs for placed in (search.known, search.best, *search.parts) if placed is not None]
        starts += self._repaired(target_bytes, LEAST_SHARE * fit.solving.time_limit_s)
        for name in STARTS:
            try:
                starts.append(VARIANTS[name].plan(problem, target_bytes).runs)
            except InfeasibleBudget:
                continue
        costs = [(cost.objective_s, k) for k, cost in _replays(problem, starts, target_bytes)]
        return starts[min(costs)[1]] if costs else None

    def _repaired(self, target_bytes: int, limit_s: float) -> list[Runs]:
        """The last plan made to fit, where its arena did not; none where that takes longer than ``limit_s``."""
        fit = self._search.fit
        if self._last is None or fit.variant not in ABLATION:
            return []
        index = index_of(restrict(self._lowered.problem, fit.variant))
        runs = repaired(index, self._last.runs, target_bytes, time.monotonic() + limit_s)
        return [] if runs is None else [runs]


def _with_runs(solution: Solution, runs: Runs, problem: Problem) -> Solution:
    """Another plan that was made of a solution's and takes longer: what was proven of all plans holds for it."""
    cost = replay(problem, runs)
    proof = solution.proof
    if proof is not None:
        proof = replace(proof, bound_s=min(proof.bound_s, cost.objective_s))
    return replace(solution, runs=runs, objective_s=cost.objective_s, peak_bytes=cost.peak_bytes, proof=proof)


def _without_gaps(fit: Fit, lowered: Lowered, limit_s: float) -> InfeasibleBudget:
    """Of a budget that plans fit, but no arena: with the variant's smallest plan."""
    reason = ("A plan for ", fit.budget_bytes, " exists, but none was found whose buffers fit without gaps.")
    if fit.variant in ABLATION:
        known = smallest_budget(restrict(lowered.problem, fit.variant), time.monotonic() + limit_s)
        return InfeasibleBudget(reason) if known is None else InfeasibleBudget(reason, known[0], smallest_plan=known[1])
    problem, solving = lowered.problem, replace(fit.solving, time_limit_s=limit_s)
    try:
        plan_variant(fit.variant, problem, problem.fixed_bytes, solving, start=fit.start)
    except InfeasibleBudget as error:
        return InfeasibleBudget(reason, error.smallest_bytes, smallest_plan=error.smallest_plan)
    raise AssertionError("a plan needs memory beside the fixed bytes")


def _replays(problem: Problem, plans: Sequence[Runs], budget_bytes: int) -> Iterator[tuple[int, Replay]]:
    """The cost of each plan that is one of the problem and fits, with its position."""
    for position, runs in enumerate(plans):
        try:
            cost = replay(problem, runs)
        except (InvalidPlan, KeyError):
            continue  # the caller's, who is told when it is used, or one along another order
        if cost.peak_bytes <= budget_bytes:
            yield position, cost


def smallest_placed(candidates: Sequence[Solution | None], lowered: Lowered, time_limit_s: float = math.inf) -> Placed:
    """The one whose arena is smallest; the first of several. None among them is left out, the first is not None.

    ``time_limit_s``: for all of them, as for ``placement``.
    """
    fixed_bytes, plans = lowered.problem.fixed_bytes, [plan for plan in candidates if plan is not None]
    placed = [(plan, placement(plan.runs, lowered, fixed_bytes, time_limit_s / len(plans))) for plan in plans]
    return min(placed, key=lambda pair: pair[1].layout.arena_bytes)

"""The fastest plan whose arena, not only the program's account of it, fits the budget.

The program counts memory along one order of the operators, and an order that saves memory also lets plans fit that are
faster. So one search goes through several orders, each of them lowered (``orders.py``), and none makes its result
worse::

    the best order of keeping everything  →  the captured order  →  the order of the best plan so far, while that helps

What happens in one order: ``attempts.py``.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from dataclasses import replace

from monet.errors import InfeasibleBudget, SolverError
from monet.pipeline.attempts import LAST_START, TRIES, Attempts, with_runs
from monet.pipeline.fit import SHARES, WORTH_SHARE, Fit, FitState
from monet.pipeline.known_plans import Placed, recall, recall_answer, remember, remember_answer
from monet.pipeline.lowering import Lowered
from monet.pipeline.meter import Meter, silent
from monet.pipeline.orders import FirstOrder, along, first_orders, in_order, order_of, order_of_problem
from monet.pipeline.placement import ORDER_S, as_placed, placement
from monet.planner.ablation import MONET, restrict
from monet.planner.construction.first_plans import fastest_plan, smallest_budget
from monet.planner.construction.kept import keep_what_fits
from monet.planner.memory_floor import floor_s
from monet.planner.problem import Problem
from monet.planner.replay import replay
from monet.planner.schedules import ABLATION, MOVE, MOVE_ONLY, VARIANTS, plan_variant
from monet.planner.solution import Runs, Solution

logger = logging.getLogger(__name__)

BELOW_FIXED_S = 30.0
"""The time limit, at most, of a budget that is below the fixed bytes: no order and no plan helps, and what is left to
find out is the smallest budget that works. ResNet-50's is 292 MB after 6 s, and 277 MB after 27 s."""


def fit_budget(fit: Fit, meter: Meter = silent) -> Placed:
    """A plan whose arena fits beside the fixed bytes, and makes use of the budget. Its runs are along an order of their
    own (``orders.order_of``).

    Where none of the plans fits, the smallest one known may do so once it is ordered, and others along its order. No
    plan is slower than one that is known for this budget or less, from this search or an earlier one.

    All of it takes ``fit.solving.time_limit_s``, with solving, ordering and layout, and ``BELOW_FIXED_S`` at most where
    no plan can fit; ``fit.solving.prove`` may take as long again.

    With ``fit.reuses`` an earlier search's answer is not looked for again.

    Raises ``InfeasibleBudget`` otherwise; what it names is the size of an arena that was made and is kept, so that
    budget works. ``KeyboardInterrupt`` on Ctrl-C before there is an arena that fits.
    """
    if fit.budget_bytes < fit.lowered.problem.fixed_bytes:
        limit_s = min(fit.solving.time_limit_s, BELOW_FIXED_S)
        fit = replace(fit, solving=replace(fit.solving, time_limit_s=limit_s))
    parts = _of_parts(fit)
    known = _known(fit, parts)
    state = FitState(fit, meter, known, parts)
    asked = fit.lowered, fit.variant, fit.budget_bytes, fit.solving
    reuses = fit.reuses and fit.remembers and not fit.solving.prove  # how much that proves is a matter of time
    answer = state.best = recall_answer(*asked) if reuses else None
    try:
        if answer is None:
            _Search(state).run()
        else:
            logger.info("an earlier search was asked the same: its plan is the answer")
    except KeyboardInterrupt:
        if state.best is None and known is None:
            raise
        state.interrupted = True
    best = state.best
    if best is None or (known is not None and known[0].objective_s < best[0].objective_s):
        assert known is not None
        best = _as_found(known, None if best is None else best[0]), known[1]
    elif fit.remembers:
        remember(fit.lowered, fit.variant, best)
    if reuses and answer is None and best[0].status == "optimal" and not state.interrupted:
        remember_answer(*asked, best)
    return (replace(best[0], status="interrupted"), best[1]) if state.interrupted else best


def _as_found(known: Placed, found: Solution | None) -> Solution:
    """The plan of an earlier search with what this one, of which ``found`` came, has proven."""
    solution = known[0]
    if found is None:
        return replace(solution, status="smallest_known", proof=None)
    proof = found.proof
    if proof is not None:  # in another order a plan may be faster than all that fit in this one
        proof = replace(proof, bound_s=min(proof.bound_s, solution.objective_s))
    return replace(solution, status=found.status, proof=proof, build_s=found.build_s, solve_s=found.solve_s)


def orders_of(fit: Fit) -> list[Lowered]:
    """The orders that are searched in, each lowered: the captured one, and the best one of keeping everything. First
    comes the one that leaves more room: where the budget is further from the least that any plan needs, on the way to
    what the fastest plan needs. One in which no plan fits is left out, unless none fits in either."""
    if not fit.has_orders:
        return [fit.lowered]
    orders = first_orders(fit.lowered, fit.kinds, min(ORDER_S, SHARES.order * fit.solving.time_limit_s))
    ranked = sorted(((_room(order, fit.budget_bytes), order.lowered) for order in orders), key=lambda each: -each[0])
    return [lowered for room, lowered in ranked if room > 0] or [lowered for _, lowered in ranked]


def _room(order: FirstOrder, budget_bytes: int) -> float:
    """0: the budget is the least that any plan needs; 1: what the fastest plan needs."""
    return (budget_bytes - order.least_bytes + 1) / max(1, order.fastest_bytes - order.least_bytes)


def _known(fit: Fit, parts: Sequence[Placed]) -> Placed | None:
    """The fastest plan of earlier searches, ``parts`` among them: their order may fit where the captured one does
    not."""
    placed = recall(fit.lowered, fit.variant, fit.budget_bytes) if fit.remembers else None
    others = () if fit.lowered.carried else parts
    return min((p for p in (placed, *others) if p is not None), key=lambda p: p[0].objective_s, default=None)


def _of_parts(fit: Fit) -> list[Placed]:
    """Where there are two memories: plans that are known without moves, and without recomputation."""
    if fit.variant != MOVE or not fit.remembers:
        return []
    lowered, budget_bytes = fit.lowered, fit.budget_bytes
    alone = replace(lowered, problem=replace(lowered.problem, second=None))
    known = recall(alone, MONET, budget_bytes), recall(lowered, MOVE_ONLY, budget_bytes)
    return [placed for placed in known if placed is not None]


class _Search:
    """One search through several orders."""

    def __init__(self, state: FitState) -> None:
        self.state = state
        self.fit = state.fit

    def run(self) -> None:
        """Raises ``InfeasibleBudget``, and ``KeyboardInterrupt`` on Ctrl-C amid a placement or where no plan fits."""
        self._search()
        self._keep_what_fits()

    def _search(self) -> None:
        fit, orders = self.fit, self._orders()
        for order in orders:
            share = 1.0 if len(orders) == 1 else SHARES.each
            self._search_in(order, share * self.state.left_s())
            if self._is_over():
                return
        if self.state.best is None:
            self._fit_smallest()
        while not self._is_over() and self._improved_along_best():
            pass
        best = self.state.best
        if best is not None and best[0].status == "time_limit" and fit.has_orders and not self._is_over():
            first_bytes = max(fit.budget_bytes, best[0].peak_bytes)
            self._search_in(in_order(fit.lowered, order_of(best[0].runs)), self.state.left_s(), first_bytes=first_bytes)

    def _orders(self) -> list[Lowered]:
        """Those of the plans that are known of parts of the variant come first."""
        fit, parts = self.fit, self.state.parts if self.fit.has_orders else ()
        others = {order_of_problem(lowered.problem): lowered for lowered in orders_of(fit)}
        first = dict.fromkeys(order_of(placed[0].runs) for placed in parts)
        ahead = [others.pop(order) if order in others else in_order(fit.lowered, order) for order in first]
        return [*ahead, *others.values()]

    def _is_over(self) -> bool:
        """Whether nobody wants more: interrupted, or within the gap of what no plan of any order beats."""
        if self.state.interrupted:
            return True
        if self.state.best is None:
            return False
        fit = self.fit
        least_s = floor_s(restrict(fit.lowered.problem, fit.kinds)) if fit.has_orders else 0.0
        return self.state.best[0].objective_s * (1 - fit.solving.gap) <= least_s

    def _search_in(
        self, lowered: Lowered, limit_s: float, start: Runs | None = None, first_bytes: int | None = None
    ) -> None:
        """``start``: a plan along this order to begin with; ``first_bytes``: what the program gets first, None for the
        budget."""
        if self.state.best is not None and not self.state.has_time():
            return
        try:
            Attempts(self.state, lowered, limit_s, start, first_bytes).run()
        except SolverError as error:
            if self.state.best is None:
                raise
            logger.warning("a solver failed, the best plan so far is kept: %s", error)

    def _improved_along_best(self) -> bool:
        """Searches in the best plan's own order, where that needs less than the program counted."""
        fit, best = self.fit, self.state.best
        if best is None:
            return False
        solution, placed = best
        saved_bytes = solution.peak_bytes - fit.needed_bytes(best)
        if not fit.has_orders or not self.state.has_time() or saved_bytes < WORTH_SHARE * fit.budget_bytes:
            return False
        other = along(fit.lowered, solution.runs, placed.unrolled.steps)
        if other is None:
            return False
        logger.info("searching along the order of the best plan, which saves %d bytes", saved_bytes)
        self._search_in(other[0], self.state.left_s(), other[1])
        return self.state.best is not None and self.state.best[0].objective_s < solution.objective_s * (1 - WORTH_SHARE)

    def _keep_what_fits(self) -> None:
        """Recomputes no more what the best plan's own order has room for: a search ends near enough to what is proven,
        and along the order that it counts in."""
        fit, best = self.fit, self.state.best
        if best is None or self.state.interrupted or not fit.has_orders:
            return
        if not any(stage.recompute for stage in best[0].runs.stages):
            return
        other = along(fit.lowered, best[0].runs, best[1].unrolled.steps)
        if other is None:
            return
        (lowered, runs), target_bytes = other, fit.budget_bytes
        problem = restrict(lowered.problem, fit.kinds)
        for _ in range(TRIES):
            fuller = keep_what_fits(problem, runs, target_bytes)
            if fuller == runs:
                return
            try:
                made = placement(fuller, lowered, fit.budget_bytes, min(ORDER_S, self.state.left_s()))
            except SolverError as error:
                logger.warning("a solver failed, the best plan so far is kept: %s", error)
                return
            placed = as_placed(with_runs(best[0], fuller, problem), lowered, made), made
            excess_bytes = fit.excess_bytes(placed)
            if excess_bytes <= 0:
                if fit.remembers:  # along the order of its search it is one to begin with
                    remember(fit.lowered, fit.variant, best)
                self.state.best = placed
            if excess_bytes <= 0 or not self.state.has_time():
                return
            target_bytes -= excess_bytes

    def _fit_smallest(self) -> None:
        """No plan fits as the program counts: the smallest one known may fit once it is ordered, and faster ones along
        that order. Raises ``InfeasibleBudget`` where none does."""
        fit = self.fit
        refused = None
        if self.state.known is not None:
            smallest = self.state.known
        else:
            smallest, refused = self._smallest()
        other = along(fit.lowered, smallest[0].runs, smallest[1].unrolled.steps) if fit.has_orders else None
        if refused is not None and fit.excess_bytes(smallest) <= 0:
            solution = _as_found(smallest, None)
            if other is not None:  # along the order that it has once it is placed, in which it can be improved
                peak_bytes = replay(other[0].problem, other[1]).peak_bytes
                solution = replace(solution, runs=other[1], peak_bytes=peak_bytes)
            self.state.best = solution, smallest[1]
        if other is not None and self.state.has_time():
            logger.info("searching along the order of the smallest plan")
            self.state.refused.clear()
            self._search_in(other[0], self.state.left_s(), other[1])
        if self.state.best is not None or refused is None:
            return
        if other is not None and self.state.refused:
            again, _ = self._smallest(smallest)
            smallest = min(smallest, again, key=fit.needed_bytes)
        if fit.excess_bytes(smallest) > 0:
            raise self._refusal(smallest, refused)
        self.state.best = _as_found(smallest, None), smallest[1]

    def _smallest(self, known: Placed | None = None) -> tuple[Placed, InfeasibleBudget]:
        """The smallest plan of those orders in which none fits, and why none does. ``known``: where no order has one.
        Raises ``InfeasibleBudget`` where there is none at all."""
        fit = self.fit
        limit_s = min(self.state.left_s(), SHARES.smallest * fit.solving.time_limit_s) / len(self.state.refused)
        found: list[tuple[Placed, InfeasibleBudget]] = []
        refused = InfeasibleBudget("no plan was looked for")
        for lowered, refusal in self.state.refused:
            refused = refusal or _without_gaps(fit, lowered, limit_s)
            if not isinstance(refused.smallest_plan, Solution):
                continue
            candidates: list[Solution | None] = [refused.smallest_plan]
            if fit.variant in ABLATION:
                problem = restrict(lowered.problem, fit.variant)
                candidates = [_leaner(problem, refused.smallest_plan), fastest_plan(problem)]
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


def _leaner(problem: Problem, known: Solution) -> Solution:
    """The smallest plan known, or √n segments, where these need less: on networks that walks take too long for."""
    try:
        other: object = VARIANTS[LAST_START].plan(problem, problem.fixed_bytes)
    except InfeasibleBudget as error:
        other = error.smallest_plan
    return other if isinstance(other, Solution) and other.peak_bytes < known.peak_bytes else known


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


def smallest_placed(candidates: Sequence[Solution | None], lowered: Lowered, time_limit_s: float = math.inf) -> Placed:
    """The one whose arena is smallest; the first of several. None among them is left out, the first is not None.

    ``time_limit_s``: for all of them, as for ``placement``.
    """
    plans = [plan for plan in candidates if plan is not None]
    each_s = time_limit_s / len(plans)
    made = [(plan, placement(plan.runs, lowered, None, each_s)) for plan in plans]
    placed = [(as_placed(plan, lowered, of), of) for plan, of in made]
    return min(placed, key=lambda pair: pair[1].layout.arena_bytes)

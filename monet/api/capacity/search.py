"""Looks for the answer: eager's peak, the smallest budget, what budgets between cost, the largest batch."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from monet.api.capacity.answer import INTERRUPTED, Answer, Batch, Point, Smallest
from monet.api.capacity.steps import Steps
from monet.base.amounts import ByteCount
from monet.errors import InfeasibleBudget, SolverError
from monet.lab.experiments.batch_search import largest_planned
from monet.pipeline.meter import Meter, silent
from monet.pipeline.planning import plan_prepared, plan_smallest
from monet.pipeline.preparation import Prepared
from monet.planner.search import Solving

logger = logging.getLogger(__name__)

SHARES = (Fraction(1, 4), Fraction(1, 2), Fraction(3, 4))
"""Of the way from the smallest budget to eager's peak: budgets whose cost is told."""


class FitSearch:
    """One search. ``answer``: what is known so far; None until the step is prepared."""

    def __init__(self, steps: Steps, memory: ByteCount, solving: Solving, meter: Meter = silent) -> None:
        self._steps, self._memory, self._solving, self._meter = steps, memory, solving, meter
        self.answer: Answer | None = None

    def run(self, *, batch: bool = True) -> Answer:
        """The whole answer, or what is known of it at Ctrl-C, which then says that it is ``INTERRUPTED``.

        ``batch``: look for the largest batch, too. Raises what preparing raises, and ``KeyboardInterrupt`` where
        nothing is known yet.
        """
        try:
            prepared = self._steps.at(None)
            self.answer = _begun(prepared, self._memory.bytes)
            finished = self._smallest(prepared) and self._points(prepared)
            if finished and batch and self._steps.batch is not None:
                finished = self._largest(self._steps.batch)
        except KeyboardInterrupt:
            if self.answer is None:
                raise
            finished = False
        return self.answer if finished else replace(self.answer, status=INTERRUPTED)

    def _known(self) -> Answer:
        assert self.answer is not None
        return self.answer

    def _smallest(self, prepared: Prepared) -> bool:
        """Whether the search was left in peace."""
        logger.info("looking for the smallest budget")
        found = plan_smallest(prepared, None, self._solving, meter=self._meter).summary
        assert found.bound_bytes is not None
        smallest = Smallest(found.budget_bytes, found.bound_bytes, found.bound_scope, found.overhead)
        point = Point(found.budget_bytes, found.overhead, found.peak_bytes)
        self.answer = replace(self._known(), smallest=smallest, points=(point,))
        return found.status != INTERRUPTED

    def _points(self, prepared: Prepared) -> bool:
        """The memory that was asked about first; the others as they rise."""
        known = self._known()
        assert known.smallest is not None
        for budget_bytes in budgets(known.smallest.budget_bytes, known.eager_peak_bytes, known.memory_bytes):
            logger.info("planning for %s", ByteCount(budget_bytes, self._memory.unit))
            try:
                found = plan_prepared(prepared, budget_bytes, self._solving, meter=self._meter).summary
            except (InfeasibleBudget, SolverError) as error:
                point, interrupted = Point(budget_bytes, None, message=str(error)), False
            else:
                point = Point(budget_bytes, found.overhead, found.peak_bytes)
                interrupted = found.status == INTERRUPTED
            points = sorted((*self._known().points, point), key=lambda p: p.budget_bytes)
            self.answer = replace(self._known(), points=tuple(points))
            if interrupted:
                return False
        return True

    def _largest(self, first: int) -> bool:
        logger.info("looking for the largest batch")
        try:
            found = largest_planned(self._steps.at, first, self._memory, None, self._solving, meter=self._meter)
        except InfeasibleBudget as error:
            self.answer = replace(self._known(), batch=Batch(None, None, {}, str(error)))
            return True
        summary = found.result.summary
        batch = Batch(found.batch, summary.overhead, dict(found.tried))
        self.answer = replace(self._known(), batch=batch)
        return summary.status != INTERRUPTED


def _begun(prepared: Prepared, memory_bytes: int) -> Answer:
    profile = prepared.lowered.profile
    return Answer(
        prepared.problem.name,
        memory_bytes,
        prepared.eager_peak_bytes,
        prepared.eager_s,
        estimated=profile.environment if profile.estimated else None,
    )


def budgets(smallest_bytes: int, eager_bytes: int, memory_bytes: int) -> Sequence[int]:
    """Budgets between the smallest and eager's peak, neither included, that are planned for: the memory itself first,
    if it lies between."""
    span = eager_bytes - smallest_bytes
    between = sorted({smallest_bytes + int(share * span) for share in SHARES} - {memory_bytes})
    chosen = [memory_bytes, *between] if smallest_bytes < memory_bytes else between
    return [count for count in chosen if smallest_bytes < count < eager_bytes]

"""The largest batch whose planned step fits a budget, at no more than a given overhead.

Measuring a batch takes minutes, solving one seconds. So a measured step is scaled to other batches (bytes and
seconds in proportion to the batch; parameters, their gradients and buffers unchanged), the scaled steps are searched,
and what they promise is then captured, measured and planned in earnest. Each such batch corrects the next
prediction. Only batches that were really planned are answers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from monet.base.amounts import ByteBudget, PeakShare, refusals_in
from monet.errors import CaptureError, ConfigError, InfeasibleBudget, SolverError
from monet.lab.experiments.configured import prepare_config
from monet.models.config import Config
from monet.ops.offers.offering import Offering
from monet.pipeline.meter import Meter, on_stderr, silent
from monet.pipeline.offloading import offloaded
from monet.pipeline.planning import PlanResult, plan_prepared
from monet.pipeline.preparation import Prepared, Preparing
from monet.planner.ablation import MONET, restrict
from monet.planner.problem import Problem
from monet.planner.search import Solving, plan_problem
from monet.step.second_memory.offload import Offload, variant_with

log = logging.getLogger(__name__)

ROUNDS = 6
"""So many batches are measured at most."""
PER_BATCH = frozenset({"inputs", "outputs", "output_gradients"})
"""Kinds of fixed bytes that grow with the batch."""
GUESS_S = 10.0
"""Seconds to solve a scaled step."""
LARGEST_STEP = 1024
"""Batches so many times the first are not looked for."""


@dataclass(frozen=True)
class LargestPlan:
    """``result`` is the plan of the batch ``batch``. ``tried``: batch → whether it fits."""

    batch: int
    result: PlanResult
    tried: Mapping[int, bool]


def largest_batch(
    config: Config,
    budget: ByteBudget,
    max_overhead: float | None = None,
    solving: Solving | None = None,
    preparing: Preparing | None = None,
    offering: Offering | None = None,
    *,
    offload: Offload | None = None,
    progress: bool = False,
) -> LargestPlan:
    """The largest batch of ``config`` that was planned and fits ``budget``.

    ``max_overhead``: predicted seconds beyond eager's at the same batch, relative; None: any. ``preparing`` and
    ``offering``: as for ``prepare_config``. ``offload``: a second memory to move tensors to. ``progress``: lines on
    stderr.

    Raises:
        ConfigError: the inputs have no batch in common, or the budget is a share of eager's peak.
        CaptureError: the first batch cannot be captured.
        InfeasibleBudget: none of the batches that were tried fits; it says which, and why there was no other.
    """

    def prepare(batch: int) -> Prepared:
        prepared = prepare_config(config.with_batch(batch), preparing, offering, progress=progress)
        return offloaded(prepared, offload, cache=preparing is None or preparing.cache)

    return largest_planned(
        prepare, config.batch(), budget, max_overhead, solving, variant=variant_with(offload, MONET),
        name=f"no batch of {config.model}", meter=on_stderr if progress else silent,
    )  # fmt: skip


def largest_planned(
    prepare: Callable[[int], Prepared],
    first: int,
    budget: ByteBudget,
    max_overhead: float | None = None,
    solving: Solving | None = None,
    *,
    variant: str = MONET,
    name: str = "no batch",
    meter: Meter = silent,
) -> LargestPlan:
    """The largest batch that was planned and fits ``budget``. ``prepare``: gives the step at a batch, ``first`` being
    the one to begin with. ``variant``: the whole program, with moves or without. ``name``: what a refusal begins with.
    Other arguments and errors as ``largest_batch``."""
    if isinstance(budget, PeakShare):
        raise ConfigError("a share of eager's peak grows with the batch: give --max-batch a budget in bytes")
    solving = solving or Solving()
    budget_bytes = budget.resolve(0)
    tried: dict[int, bool] = {}
    best: LargestPlan | None = None
    why: tuple[str | int, ...] = ()  # no other batch is tried
    batch, below = first, first * LARGEST_STEP + 1
    for _ in range(ROUNDS):
        log.info("planning batch %d", batch)
        try:
            prepared = prepare(batch)
        except CaptureError as error:  # batch norm, say, needs more than one value a channel
            if not tried:
                raise
            tried[batch] = False
            why = (f"; batch {batch} cannot be captured: {error}",)
            if best is not None or batch + 1 in tried:
                break
            batch += 1
            continue
        result = _try(prepared, budget_bytes, max_overhead, solving, variant, meter)
        tried[batch] = result is not None
        if result is None:
            below = min(below, batch)
        else:
            best = LargestPlan(batch, result, tried)
        if result is not None and result.summary.status == "interrupted":
            break
        above = best.batch if best is not None else 0
        try:
            guess = _guess(prepared, batch, above, below, budget_bytes, max_overhead, solving)
        except KeyboardInterrupt:
            if best is None:
                raise
            summary = replace(best.result.summary, status="interrupted")
            return replace(best, result=replace(best.result, summary=summary))
        if best is None and len(tried) > 1:  # twice too large: gradients of parameters do not shrink with the batch
            guess = min(guess, max(1, batch // 2))
        if guess == 0 and not why:
            unchanged = prepared.problem.fixed_bytes - _per_batch_bytes(prepared)
            why = (
                f": batch {batch} does not, and scaled from its step not even batch 1 would; what is there at any "
                "batch (parameters, buffers) takes ", unchanged,
            )  # fmt: skip
        if guess == above or guess in tried:
            break
        batch = guess
    if best is None:
        limit = "" if max_overhead is None else f" at {max_overhead:.1%} overhead"
        batches = f"{name} that was tried ({', '.join(map(str, sorted(tried)))})"
        with refusals_in(budget.unit):
            raise InfeasibleBudget((f"{batches} fits in ", budget_bytes, limit, *why))
    return best


def _try(
    prepared: Prepared, budget_bytes: int, max_overhead: float | None, solving: Solving, variant: str, meter: Meter
) -> PlanResult | None:
    try:
        result = plan_prepared(prepared, budget_bytes, solving, variant=variant, meter=meter)
    except InfeasibleBudget:
        return None
    return result if max_overhead is None or result.summary.overhead <= max_overhead else None


def _guess(
    prepared: Prepared,
    batch: int,
    above: int,
    below: int,
    budget_bytes: int,
    max_overhead: float | None,
    solving: Solving,
) -> int:
    """The largest batch of ``above`` (which fits) and those under ``below`` that fits by the scaled step."""
    problem, per_batch = restrict(prepared.problem, MONET), _per_batch_bytes(prepared)
    low, high = above, below
    step = max(1, batch)
    while high - low > 1:
        middle = (low + high) // 2 if high <= 2 * max(low, step) else max(low, step) * 2
        scaled = problem_at_batch(problem, per_batch, middle / batch)
        most_s = None if max_overhead is None else prepared.eager_s * (1 + max_overhead) * middle / batch
        try:
            solution = plan_problem(
                scaled,
                budget_bytes,
                replace(solving, time_limit_s=GUESS_S, prove=False),
                enough_s=float("inf") if most_s is None else most_s,
            )
            fits = most_s is None or solution.objective_s <= most_s
            if solution.status == "interrupted":
                raise KeyboardInterrupt
        except (InfeasibleBudget, SolverError):
            fits = False
        low, high = (middle, high) if fits else (low, middle)
    return low


def _per_batch_bytes(prepared: Prepared) -> int:
    """Of the step's fixed bytes those that grow with the batch."""
    return sum(count for kind, count in prepared.lowered.fixed.items() if kind in PER_BATCH)


def problem_at_batch(problem: Problem, per_batch_bytes: int, factor: float) -> Problem:
    """The problem at ``factor`` times the batch; ``per_batch_bytes`` of its fixed bytes grow with it.

    An estimate: kernels do not scale exactly, and workspaces often less than in proportion.
    """
    unchanged_bytes = problem.fixed_bytes - per_batch_bytes
    return replace(problem.scaled(factor), fixed_bytes=unchanged_bytes + round(per_batch_bytes * factor))

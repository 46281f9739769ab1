"""The plan that is made with the costs of a plan's own step.

Operators that are measured one by one leave out what they do to each other: what is in the caches, threads that wake
up, the runner between them. So each is timed in the plan's step (``measured_steps.py``), what that did not run is
corrected by what it did (``monet.ops.measuring.in_place``), and the program may choose otherwise.
"""

from __future__ import annotations

from dataclasses import replace

from monet.base.amounts import ByteBudget
from monet.errors import InfeasibleBudget, SolverError
from monet.lab.experiments.configured import prepare_config
from monet.lab.experiments.measured_steps import MeasuredStep
from monet.models.config import Config
from monet.ops.measuring.in_place import as_in_step
from monet.ops.offers.offering import Offering
from monet.pipeline.meter import Meter
from monet.pipeline.offloading import at_rates, offloaded
from monet.pipeline.planning import PlanResult, plan_prepared
from monet.pipeline.preparation import Prepared, Preparing
from monet.planner.problem import ASYNCHRONOUS
from monet.planner.search import Solving
from monet.planner.solution import Solution
from monet.step.second_memory.offload import Offload

MOST_SLOWED = 0.5
"""Of an operator's seconds: more than that copies beside it cannot be said to cost."""


def planned_again(
    config: Config,
    result: PlanResult,
    measured: MeasuredStep,
    budget: ByteBudget,
    solving: Solving,
    preparing: Preparing,
    offering: Offering,
    *,
    offload: Offload | None = None,
    variant: str,
    meter: Meter,
) -> PlanResult:
    """The plan with the costs, and the rates of copying, that ``measured`` has of the step of ``result``, which was
    made with the same arguments; ``result``'s own plan, with these costs, where none is found that is faster.

    By how much copies slow operators down cannot be seen in a step that has them: that is taken as it was known, and
    the rest of the operators' seconds is theirs. Raises what ``prepare_config`` raises.
    """
    known = prepare_config(config, preparing, offering).lowered
    taken_s = sum(each for of in measured.seconds.values() for each in of)
    moves, second = result.summary.second_memory, result.plan.environment.get("second_memory")
    slowed_s = 0.0
    if moves is not None and moves.mode == ASYNCHRONOUS and second is not None:
        slowed_s = min(second["slowdown_s"] * (moves.written_bytes + moves.read_bytes), MOST_SLOWED * taken_s)
    alone = {key: [each * (1 - slowed_s / taken_s) for each in of] for key, of in measured.seconds.items()}
    costs, copies = as_in_step(known.profile, known.catalogue, alone), measured.copies
    prepared = prepare_config(config, replace(preparing, costs=costs), offering)
    if offload is not None:
        prepared = offloaded(prepared, offload, cache=preparing.cache)
        prepared = at_rates(prepared, offload, copies.write_rate, copies.read_rate)
    taken_s += copies.waited_s
    try:
        again = plan_prepared(prepared, budget, solving, variant=variant, meter=meter)
    except (InfeasibleBudget, SolverError):  # the search found none in time; the first is there
        return _with_costs(result, None, prepared, taken_s, copies.waited_s)
    if again.summary.objective_s <= taken_s:
        return again
    return _with_costs(result, again.solution, prepared, taken_s, copies.waited_s)


def _with_costs(
    result: PlanResult, other: Solution | None, prepared: Prepared, taken_s: float, waited_s: float
) -> PlanResult:
    """``result``'s plan with the seconds that its step took, and the bound that ``other`` has on any."""
    bound_s = 0.0 if other is None else min(other.bound_s, taken_s)
    gap, scope = (taken_s - bound_s) / taken_s, "none" if other is None else other.bound_scope
    status = "time_limit" if other is None else other.status
    eager = {"baseline_s": prepared.eager_s, "eager_memory_s": prepared.eager_memory_s}
    solver = {**result.plan.solver, **eager, "objective_s": taken_s, "bound_s": bound_s, "gap": gap, "status": status}
    environment, moves = result.plan.environment, result.summary.second_memory
    if moves is not None and prepared.problem.second is not None:
        moves = moves.as_measured(prepared.problem.second, waited_s)
        rates = {"write_rate": moves.write_rate, "read_rate": moves.read_rate}
        environment = {**environment, "second_memory": {**environment["second_memory"], **rates}}
    plan = replace(result.plan, solver={**solver, "bound_scope": scope}, environment=environment)
    summary = replace(
        result.summary, status=status, objective_s=taken_s, bound_s=bound_s or None, gap=gap if bound_s else None,
        bound_scope=scope, baseline_s=prepared.eager_s, eager_memory_s=prepared.eager_memory_s or None,
        overhead=taken_s / prepared.eager_s - 1.0, second_memory=moves,
    )  # fmt: skip
    return replace(result, plan=plan, summary=summary)

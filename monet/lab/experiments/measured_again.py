"""The plan that is made with the costs of a plan's own step.

Operators that are measured one by one leave out what they do to each other: what is in the caches, threads that wake
up, the runner between them. So each is timed in the plan's step (``measured_steps.py``), what that did not run is
corrected by what it did (``monet.ops.measuring.in_place``), and the program may choose otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from monet.base.amounts import ByteBudget
from monet.errors import InfeasibleBudget, SolverError
from monet.lab.experiments.configured import prepare_config
from monet.models.config import Config
from monet.ops.measuring.in_place import as_in_step
from monet.ops.offers.offering import Offering
from monet.pipeline.meter import Meter
from monet.pipeline.planning import PlanResult, plan_prepared
from monet.pipeline.preparation import Prepared, Preparing
from monet.planner.search import Solving
from monet.planner.solution import Solution


def planned_again(
    config: Config,
    result: PlanResult,
    seconds: Mapping[str, Sequence[float]],
    budget: ByteBudget,
    solving: Solving,
    preparing: Preparing,
    offering: Offering,
    *,
    variant: str,
    meter: Meter,
) -> PlanResult:
    """The plan with the costs that ``seconds`` has of the step of ``result`` (by signature), which was made with the
    same arguments; ``result``'s own plan, with these costs, where none is found that is faster.

    Raises what ``prepare_config`` raises.
    """
    measured = prepare_config(config, preparing, offering).lowered
    costs = as_in_step(measured.profile, measured.catalogue, seconds)
    prepared = prepare_config(config, replace(preparing, costs=costs), offering)
    taken_s = sum(each for of in seconds.values() for each in of)
    try:
        again = plan_prepared(prepared, budget, solving, variant=variant, meter=meter)
    except (InfeasibleBudget, SolverError):  # the search found none in time; the first is there
        return _with_costs(result, None, prepared, taken_s)
    return again if again.summary.objective_s <= taken_s else _with_costs(result, again.solution, prepared, taken_s)


def _with_costs(result: PlanResult, other: Solution | None, prepared: Prepared, taken_s: float) -> PlanResult:
    """``result``'s plan with the seconds that its step took, and the bound that ``other`` has on any."""
    bound_s = 0.0 if other is None else min(other.bound_s, taken_s)
    gap, scope = (taken_s - bound_s) / taken_s, "none" if other is None else other.bound_scope
    status = "time_limit" if other is None else other.status
    eager = {"baseline_s": prepared.eager_s, "eager_memory_s": prepared.eager_memory_s}
    solver = {**result.plan.solver, **eager, "objective_s": taken_s, "bound_s": bound_s, "gap": gap, "status": status}
    plan = replace(result.plan, solver={**solver, "bound_scope": scope})
    summary = replace(
        result.summary, status=status, objective_s=taken_s, bound_s=bound_s or None, gap=gap if bound_s else None,
        bound_scope=scope, baseline_s=prepared.eager_s, eager_memory_s=prepared.eager_memory_s or None,
        overhead=taken_s / prepared.eager_s - 1.0,
    )  # fmt: skip
    return replace(result, plan=plan, summary=summary)

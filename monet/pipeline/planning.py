"""From a prepared step and a budget to a verified plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from monet.amounts import ByteBudget, parse_budget
from monet.errors import InfeasibleBudget
from monet.pipeline.fitting import fit, smallest_placed
from monet.pipeline.placement import Placement
from monet.pipeline.preparation import Prepared
from monet.pipeline.summary import Summary, plan_summary
from monet.planner.ablation import restrict
from monet.planner.construction.first_plans import fastest_plan
from monet.planner.progress import Progress
from monet.planner.schedules import VARIANTS
from monet.planner.search import smallest_plan
from monet.planner.solution import Solution
from monet.plans.plan import Plan
from monet.plans.verifier import verify
from monet.progress_line import ProgressLine


@dataclass(frozen=True)
class PlanResult:
    """A verified plan, what ``monet plan`` says of it, and the planner's solution that it was made of."""

    plan: Plan
    summary: Summary
    solution: Solution


def plan_prepared(
    prepared: Prepared,
    budget: ByteBudget | int | str,
    *,
    variant: str = "monet",
    window: int | None = None,
    time_limit_s: float = 120.0,
    gap: float = 0.01,
    solver: str = "HIGHS",
    prove: bool = False,
    cores: int | None = None,
    progress: bool | Progress = False,
) -> PlanResult:
    """Plan a prepared step for a budget, lay it out and verify it.

    ``variant``: a name of ``planner.schedules.VARIANTS``: the whole program, a part of it, or a baseline.
    ``window``: stages before its last use in which a tensor may be recomputed (None: by size). ``gap``: relative;
    solving stops there. ``prove``: bound the full program, not the windowed one. ``cores``: for solving (None:
    all). ``progress``: show a line on stderr, or call this as ``plan_problem`` does.
    """
    budget_bytes = parse_budget(budget).resolve(prepared.eager.peak_bytes)
    options: dict[str, Any] = {
        "window": window, "time_limit_s": time_limit_s, "gap": gap, "solver": solver, "cores": cores,
    }  # fmt: skip
    if prove and VARIANTS[variant].solves:
        options["prove"] = True
    return _result(prepared, budget_bytes, *fit(prepared.lowered, budget_bytes, variant, progress, options))


def plan_smallest(
    prepared: Prepared,
    max_overhead: float | None = None,
    *,
    window: int | None = None,
    time_limit_s: float = 120.0,
    gap: float = 0.01,
    solver: str = "HIGHS",
    progress: bool = False,
) -> PlanResult:
    """The fastest plan found within ``gap`` of the least memory found; its budget is what it needs.

    ``max_overhead``: predicted seconds beyond eager's, relative (0.1: 10 %); None: any. The bound on memory is
    ``summary.bound_bytes``. ``time_limit_s``: for each of the two searches. Other options as for ``plan_prepared``.
    """
    most_s = None if max_overhead is None else prepared.eager.objective_s * (1.0 + max_overhead)
    problem = restrict(prepared.problem, "monet")
    with ProgressLine(progress, time_limit_s, unit="bytes") as bar:
        found = smallest_plan(
            problem, most_s, window=window, time_limit_s=time_limit_s, gap=gap, solver=solver, progress=bar
        )
    # The program counts the captured order. In another one a plan that recomputes nothing can be the smaller.
    fastest = fastest_plan(problem)
    if fastest is not None and most_s is not None and fastest.objective_s > most_s:
        fastest = None
    solution, placed = smallest_placed([found.solution, fastest], prepared.lowered)
    if found.solution.status != "interrupted":
        # Plans of least memory run nearly everything again, most of it for nothing.
        options = {"window": window, "time_limit_s": time_limit_s, "gap": gap, "solver": solver}
        solution, placed = _faster(prepared, solution, placed, progress, options)
    budget_bytes = problem.fixed_bytes + placed.layout.arena_bytes
    result = _result(prepared, budget_bytes, solution, placed)
    # Another order, or a step of several requests, which are laid out as they come, can need less than the program.
    bound_bytes = min(found.bound_bytes, budget_bytes)
    gap_bytes = (budget_bytes - bound_bytes) / budget_bytes
    summary = replace(result.summary, bound_s=None, gap=gap_bytes, bound_bytes=bound_bytes)
    return replace(result, summary=summary)


def _faster(
    prepared: Prepared, solution: Solution, placed: Placement, progress: bool, options: Mapping[str, Any]
) -> tuple[Solution, Placement]:
    """The fastest plan found within the gap of the memory of ``solution``; its status stays that of the search for
    memory, unless this one is interrupted."""
    budget_bytes = int((prepared.problem.fixed_bytes + placed.layout.arena_bytes) * (1 + options["gap"]))
    start = solution if solution.peak_bytes <= budget_bytes else None
    try:
        faster, other = fit(prepared.lowered, budget_bytes, "monet", progress, {**options, "start": start})
    except InfeasibleBudget:
        return solution, placed
    except KeyboardInterrupt:
        return replace(solution, status="interrupted"), placed
    if faster.objective_s >= solution.objective_s:
        return solution, placed
    status = faster.status if faster.status == "interrupted" else solution.status
    return replace(faster, status=status, bound_scope=solution.bound_scope), other


def _result(prepared: Prepared, budget_bytes: int, solution: Solution, placed: Placement) -> PlanResult:
    made = Plan(
        budget_bytes=budget_bytes,
        arena_bytes=placed.layout.arena_bytes,
        arena_bound_bytes=placed.layout.bound_bytes,
        fixed_bytes=prepared.problem.fixed_bytes,
        fixed=prepared.lowered.fixed,
        steps=placed.unrolled.steps,
        buffers=placed.buffers,
        model=prepared.model,
        environment=prepared.environment,
        solver={
            "status": solution.status,
            "objective_s": solution.objective_s,
            "bound_s": solution.bound_s,
            "gap": solution.gap,
            "bound_scope": solution.bound_scope,
            "baseline_s": prepared.eager.objective_s,
            "baseline_peak_bytes": prepared.eager.peak_bytes,
            "eager_peak_bytes": prepared.eager_peak_bytes,
            "order": placed.ordered.method,
            "order_peak_bytes": placed.ordered.peak_bytes,
            "order_bound_bytes": placed.ordered.bound_bytes,
            "layout": placed.layout.method,
        },
    )
    verify(made)
    return PlanResult(made, plan_summary(made, solution, prepared.lowered), solution)

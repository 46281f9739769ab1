"""``monet plan --profile``: a schedule from published costs, without a model."""

from __future__ import annotations

import sys
from typing import Any

import click

from monet.amounts import refusals_in
from monet.commands.exit_status import INTERRUPTED
from monet.commands.options import check_target
from monet.commands.plan_request import PlanRequest
from monet.commands.rendering import render_schedule
from monet.files.atomic import write_json
from monet.planner.ablation import MONET, restrict
from monet.planner.problem import Problem
from monet.planner.published.profile import load_published
from monet.planner.published.solution import published_stages
from monet.planner.schedules import VARIANTS, plan_variant
from monet.planner.search import smallest_plan
from monet.planner.solution import Solution
from monet.progress_line import SolvingBar


def plan_profile(request: PlanRequest) -> None:
    """Prints the summary; with ``--json`` the schedule goes with it, as ``stages``."""
    assert request.profile is not None
    check_target(request.json_path, "--json")
    problem = load_published(request.profile)
    eager = plan_variant("pytorch", problem, sys.maxsize)
    with refusals_in(request.unit):
        summary = _plan(problem, eager, request)
    click.echo(render_schedule(summary, request.unit))
    if request.json_path is not None:
        write_json(request.json_path, summary)
    if summary["status"] == "interrupted":
        raise click.exceptions.Exit(INTERRUPTED)


def _plan(problem: Problem, eager: Solution, request: PlanRequest) -> dict[str, Any]:
    options = request.planning.solving()
    shown = not request.quiet
    if request.minimise is not None:
        most_s = None if request.max_overhead is None else eager.objective_s * (1 + request.max_overhead)
        with SolvingBar(shown, request.planning.time_limit, unit="bytes") as bar:
            found = smallest_plan(restrict(problem, MONET), most_s, progress=bar, **options)
        plan, budget_bytes = found.solution, found.solution.peak_bytes
        proven = {"bound_s": None, "gap": found.gap, "bound_bytes": found.bound_bytes}
    else:
        assert request.budget is not None
        budget_bytes = request.budget.resolve(eager.peak_bytes)
        if request.prove and VARIANTS[request.variant].solves:
            options["prove"] = True
        with SolvingBar(shown, request.planning.time_limit) as bar:
            plan = plan_variant(request.variant, problem, budget_bytes, progress=bar, **options)
        unproven = plan.bound_scope == "none"
        proven = {"bound_s": None if unproven else plan.bound_s, "gap": None if unproven else plan.gap}
    return {
        "name": problem.name,
        "variant": request.variant,
        "status": plan.status,
        "budget_bytes": budget_bytes,
        "peak_bytes": plan.peak_bytes,
        "fixed_bytes": problem.fixed_bytes,
        "baseline_s": eager.objective_s,
        "baseline_peak_bytes": eager.peak_bytes,
        "objective_s": plan.objective_s,
        "overhead": plan.objective_s / eager.objective_s - 1.0,
        **proven,
        "bound_scope": plan.bound_scope,
        "columns": plan.columns,
        "rows": plan.rows,
        "build_s": plan.build_s,
        "solve_s": plan.solve_s,
        "recomputed": sum(len(stage.recompute) for stage in plan.stages),
        "stages": published_stages(problem, plan),
    }

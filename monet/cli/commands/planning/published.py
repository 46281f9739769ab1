"""``monet plan --profile``: a schedule from published costs, without a model."""

from __future__ import annotations

import sys
from dataclasses import replace

import click

from monet.base.amounts import refusals_in, refusals_of
from monet.base.files.atomic import write_json
from monet.base.progress_line import ProgressLine
from monet.cli.commands.exit_status import INTERRUPTED
from monet.cli.commands.options import check_target
from monet.cli.commands.planning.request import PlanRequest
from monet.cli.commands.rendering import render_schedule
from monet.pipeline.summary import Summary, second_memory_summary
from monet.planner.ablation import MONET, restrict
from monet.planner.problem import Problem
from monet.planner.published.profile import load_published
from monet.planner.published.solution import published_stages
from monet.planner.schedules import as_planned, plan_variant
from monet.planner.search import smallest_plan
from monet.planner.solution import Solution
from monet.step.second_memory.offload import variant_with


def plan_profile(request: PlanRequest) -> None:
    """Prints the summary; with ``--json`` the schedule goes with it, as ``stages``."""
    assert request.profile is not None
    check_target(request.json_path, "--json", request.profile)
    problem, offload = load_published(request.profile), request.planning.offload
    if offload is not None:
        problem = replace(problem, second=offload.assumed())
    eager = plan_variant("pytorch", problem, sys.maxsize)
    with refusals_in(request.unit):
        summary = _plan(problem, eager, request)
    click.echo(render_schedule(summary, request.unit))
    if request.json_path is not None:
        write_json(request.json_path, summary.as_json())
    if summary.status == "interrupted":
        raise click.exceptions.Exit(INTERRUPTED)


def _plan(problem: Problem, eager: Solution, request: PlanRequest) -> Summary:
    if request.minimise is not None:
        return _smallest(problem, eager, request)
    return _within_budget(problem, eager, request)


def _smallest(problem: Problem, eager: Solution, request: PlanRequest) -> Summary:
    most_s = None if request.max_overhead is None else eager.objective_s * (1 + request.max_overhead)
    with ProgressLine(not request.quiet, request.planning.time_limit, unit="bytes") as bar:
        smallest = smallest_plan(restrict(problem, MONET), most_s, request.planning.solving(), progress=bar)
    variant = variant_with(request.planning.offload, request.variant)
    summary = _summary(problem, eager, smallest.solution, smallest.solution.peak_bytes, variant)
    return replace(
        summary, bound_s=None, gap=smallest.gap, bound_bytes=smallest.bound_bytes, bound_scope=smallest.scope
    )


def _within_budget(problem: Problem, eager: Solution, request: PlanRequest) -> Summary:
    assert request.budget is not None
    budget_bytes = request.budget.resolve(eager.peak_bytes)
    solving = request.planning.solving(prove=request.prove)
    variant = variant_with(request.planning.offload, request.variant)
    bar = ProgressLine(not request.quiet, request.planning.time_limit)
    with bar, refusals_of(request.budget, eager.peak_bytes):
        solution = plan_variant(variant, problem, budget_bytes, solving, progress=bar)
    return _summary(as_planned(problem, variant), eager, solution, budget_bytes, variant)


def _summary(problem: Problem, eager: Solution, solution: Solution, budget_bytes: int, variant: str) -> Summary:
    proven = solution.bound_s > 0
    return Summary(
        name=problem.name,
        variant=variant,
        status=solution.status,
        budget_bytes=budget_bytes,
        peak_bytes=solution.peak_bytes,
        fixed_bytes=problem.fixed_bytes,
        baseline_s=eager.objective_s,
        baseline_peak_bytes=eager.peak_bytes,
        objective_s=solution.objective_s,
        overhead=solution.objective_s / eager.objective_s - 1.0,
        bound_s=solution.bound_s if proven else None,
        gap=solution.gap if proven else None,
        bound_scope=solution.bound_scope,
        columns=solution.columns,
        rows=solution.rows,
        build_s=solution.build_s,
        solve_s=solution.solve_s,
        recomputed=sum(len(stage.recompute) for stage in solution.runs.stages),
        stages=published_stages(problem, solution.runs),
        second_memory=second_memory_summary(problem, solution.runs),
    )

"""``monet plan CONFIG``: capture, measure, plan, save, and if asked run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from monet.amounts import refusals_in
from monet.commands.exit_status import INTERRUPTED
from monet.commands.options import check_target
from monet.commands.plan_request import PlanRequest
from monet.configuration.config import Config, load_config

if TYPE_CHECKING:
    from monet.pipeline.planning import PlanResult
    from monet.pipeline.preparation import Prepared


def plan_model(request: PlanRequest) -> None:
    """Prints the summary and writes the plan file, and what else was asked for."""
    assert request.config is not None
    loaded = load_config(request.config)
    if request.batch is not None:
        loaded = loaded.with_batch(request.batch)
    output = request.output or Path(f"{Path(request.config).stem}.plan.json")
    check_target(output, "--output")
    check_target(request.json_path, "--json")
    if request.json_path is not None and request.json_path.absolute() == output.absolute():
        raise click.BadParameter(f"{request.json_path} is the plan file, too", param_hint="--json")

    import torch

    from monet.commands.rendering import render_measurement, render_summary
    from monet.files.atomic import write_json

    if request.planning.threads is not None:
        torch.set_num_threads(request.planning.threads)
    with refusals_in(request.unit):
        planned, result = _plan(loaded, request)
    result.plan.save(output)
    summary = result.summary
    click.echo(render_summary(summary, request.unit))
    click.echo(f"saved {output}")
    if request.json_path is not None:
        write_json(request.json_path, summary.as_json())
    if summary.status == "interrupted":
        click.echo("monet: interrupted; the plan is the best so far" + ", not measured" * request.measure, err=True)
        raise click.exceptions.Exit(INTERRUPTED)
    if request.measure:
        from monet.experiments.measured_steps import measure_config

        measured = measure_config(planned, output, progress=not request.quiet)
        summary = replace(summary, measured=measured)
        click.echo()
        click.echo(render_measurement(summary, measured, request.unit))
        if request.json_path is not None:
            write_json(request.json_path, summary.as_json())


def _plan(config: Config, request: PlanRequest) -> tuple[Config, PlanResult]:
    """The plan, and the configuration that it is for: ``--max-batch`` has one of its own."""
    if request.max_batch:
        return _largest_batch(config, request)
    if request.minimise is not None:
        return config, _smallest(config, request)
    return config, _within_budget(config, request)


def _largest_batch(config: Config, request: PlanRequest) -> tuple[Config, PlanResult]:
    from monet.experiments.batch_search import largest_batch

    assert request.budget is not None
    largest = largest_batch(
        config, request.budget, request.max_overhead, **_measuring(request), prove=request.prove,
        **request.planning.solving(),
    )  # fmt: skip
    summary = replace(largest.result.summary, batch=largest.batch, batches_tried=dict(largest.tried))
    return largest.config, replace(largest.result, summary=summary)


def _smallest(config: Config, request: PlanRequest) -> PlanResult:
    from monet.pipeline.planning import plan_smallest

    prepared = _prepared(config, request)
    return plan_smallest(prepared, request.max_overhead, **request.planning.solving(), progress=not request.quiet)


def _within_budget(config: Config, request: PlanRequest) -> PlanResult:
    from monet.pipeline.planning import plan_prepared

    assert request.budget is not None
    prepared = _prepared(config, request)
    return plan_prepared(
        prepared, request.budget, variant=request.variant, prove=request.prove, **request.planning.solving(),
        progress=not request.quiet,
    )  # fmt: skip


def _measuring(request: PlanRequest) -> dict[str, Any]:
    return {
        "reserve_bytes": request.planning.reserve,
        "exact": request.planning.exact,
        "cache": not request.no_cache,
        "progress": not request.quiet,
    }


def _prepared(config: Config, request: PlanRequest) -> Prepared:
    from monet.experiments.configured import prepare_config
    from monet.planner.schedules import STORAGE

    storage = STORAGE.get(request.variant, ())
    return prepare_config(config, **_measuring(request), storage=storage, density=request.planning.density)

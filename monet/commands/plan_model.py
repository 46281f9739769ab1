"""``monet plan CONFIG``: capture, measure, plan, save, and if asked run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from monet.commands.exit_status import INTERRUPTED
from monet.commands.options import check_target
from monet.commands.plan_request import PlanRequest
from monet.configuration.config import Config, load_config

if TYPE_CHECKING:
    from monet.pipeline.planning import PlanResult


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

    if request.threads is not None:
        torch.set_num_threads(request.threads)
    planned, result = _plan(loaded, request)
    result.plan.save(output)
    summary = result.summary
    click.echo(render_summary(summary))
    click.echo(f"saved {output}")
    if request.json_path is not None:
        write_json(request.json_path, summary)
    if summary["status"] == "interrupted":
        click.echo("monet: interrupted; the plan is the best so far" + ", not measured" * request.measure, err=True)
        raise click.exceptions.Exit(INTERRUPTED)
    if request.measure:
        from monet.experiments.measured_steps import measure_config

        measured = measure_config(planned, output, progress=not request.quiet)
        click.echo()
        click.echo(render_measurement(summary, measured))
        if request.json_path is not None:
            write_json(request.json_path, summary, measured)


def _plan(config: Config, request: PlanRequest) -> tuple[Config, PlanResult]:
    """The plan, and the configuration that it is for: ``--max-batch`` has one of its own."""
    from monet.configuration.model_loading import build_model, precision
    from monet.configuration.sample_inputs import empty_inputs
    from monet.ops.offers.offering import Offering
    from monet.pipeline.meter import on_stderr, silent
    from monet.pipeline.planning import plan_prepared, plan_smallest
    from monet.pipeline.preparation import Preparing, prepare
    from monet.planner.schedules import STORAGE
    from monet.planner.search import Solving

    shown = not request.quiet
    meter = on_stderr if shown else silent
    solving = Solving(request.time_limit, request.gap, request.window, request.solver.upper(), request.prove)
    preparing = Preparing(request.reserve, config.accumulate, not request.no_cache, config.seed)
    if request.max_batch:
        from monet.experiments.batch_search import largest_batch

        assert request.budget is not None
        found = largest_batch(
            config, request.budget, request.max_overhead, solving, preparing, Offering(request.exact), progress=shown
        )
        summary = {**found.result.summary, "batch": found.batch, "batches_tried": dict(found.tried)}
        return found.config, replace(found.result, summary=summary)
    model = build_model(config)
    args, kwargs = empty_inputs(config, model)
    offering = Offering(request.exact, STORAGE.get(request.variant, frozenset()), request.density)
    with precision(config):
        prepared = prepare(model, args, kwargs, preparing, offering, progress=shown)
    if request.minimise is not None:
        return config, plan_smallest(prepared, request.max_overhead, solving, meter=meter)
    assert request.budget is not None
    return config, plan_prepared(prepared, request.budget, solving, variant=request.variant, meter=meter)

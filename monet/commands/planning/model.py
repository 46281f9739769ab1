"""``monet plan CONFIG``: capture, measure, plan, save, and if asked run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from monet.amounts import refusals_in
from monet.commands.exit_status import INTERRUPTED
from monet.commands.options import check_target
from monet.commands.planning.request import PlanRequest
from monet.configuration.config import Config, load_config

if TYPE_CHECKING:
    from monet.ops.offers.offering import Offering
    from monet.pipeline.meter import Meter
    from monet.pipeline.planning import PlanResult
    from monet.pipeline.preparation import Prepared, Preparing


def plan_model(request: PlanRequest) -> None:
    """Prints the summary and writes the plan file, and what else was asked for."""
    assert request.config is not None
    loaded = load_config(request.config)
    loaded = loaded.on(request.device)
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
    from monet.pipeline.offloading import check_second_memory

    if request.planning.threads is not None:
        torch.set_num_threads(request.planning.threads)
    check_second_memory(request.planning.offload)
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
        config, request.budget, request.max_overhead, request.planning.solving(prove=request.prove),
        _preparing(request), _offering(request), offload=request.planning.offload, progress=not request.quiet,
    )  # fmt: skip
    summary = replace(largest.result.summary, batch=largest.batch, batches_tried=dict(largest.tried))
    return largest.config, replace(largest.result, summary=summary)


def _smallest(config: Config, request: PlanRequest) -> PlanResult:
    from monet.pipeline.planning import plan_smallest
    from monet.second_memory.offload import variant_with

    variant = variant_with(request.planning.offload, request.variant)
    prepared, solving = _with_second_memory(_prepared(config, request), request), request.planning.solving()
    return plan_smallest(prepared, request.max_overhead, solving, variant=variant, meter=_meter(request))


def _within_budget(config: Config, request: PlanRequest) -> PlanResult:
    from monet.pipeline.planning import plan_prepared
    from monet.second_memory.offload import variant_with

    assert request.budget is not None
    variant = variant_with(request.planning.offload, request.variant)
    prepared = _with_second_memory(_prepared(config, request), request)
    solving = request.planning.solving(prove=request.prove)
    return plan_prepared(prepared, request.budget, solving, variant=variant, meter=_meter(request))


def _with_second_memory(prepared: Prepared, request: PlanRequest) -> Prepared:
    from monet.pipeline.offloading import offloaded

    offload = request.planning.offload
    return prepared if offload is None else offloaded(prepared, offload, cache=not request.no_cache)


def _preparing(request: PlanRequest) -> Preparing:
    from monet.pipeline.preparation import Preparing

    return Preparing(request.planning.reserve, cache=not request.no_cache)


def _offering(request: PlanRequest) -> Offering:
    from monet.ops.offers.offering import Offering
    from monet.planner.schedules import STORAGE

    return Offering(request.planning.exact, STORAGE.get(request.variant, frozenset()), request.planning.density)


def _meter(request: PlanRequest) -> Meter:
    from monet.pipeline.meter import on_stderr, silent

    return silent if request.quiet else on_stderr


def _prepared(config: Config, request: PlanRequest) -> Prepared:
    from monet.experiments.configured import prepare_config

    return prepare_config(config, _preparing(request), _offering(request), progress=not request.quiet)

"""``monet plan CONFIG``: capture, measure, plan, save, and if asked run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from monet.base.amounts import refusals_in
from monet.cli.commands.exit_status import INTERRUPTED
from monet.cli.commands.planning.first_look import first_look
from monet.cli.commands.planning.plan_file import hand_over, plan_path
from monet.cli.commands.planning.request import PlanRequest
from monet.models.config import Config, load_config
from monet.plans.text import format_seconds

if TYPE_CHECKING:
    from monet.lab.experiments.measured_steps import MeasuredStep
    from monet.ops.offers.offering import Offering
    from monet.pipeline.meter import Meter
    from monet.pipeline.planning import PlanResult
    from monet.pipeline.preparation import Look, Prepared, Preparing
    from monet.pipeline.summary import Summary


def plan_model(request: PlanRequest) -> None:
    """Prints the summary and writes the plan file, and what else was asked for."""
    assert request.config is not None
    loaded = load_config(request.config)
    loaded = loaded.on(request.device)
    if request.batch is not None:
        loaded = loaded.with_batch(request.batch)
    output = plan_path(request, Path(request.config).stem)
    if request.measure:
        from monet.lab.experiments.measured_steps import expect_measuring

        expect_measuring(loaded)

    import torch

    from monet.base.files.atomic import write_json
    from monet.cli.commands.rendering import render_measurement
    from monet.pipeline.offloading import check_second_memory

    if request.planning.threads is not None:
        torch.set_num_threads(request.planning.threads)
    check_second_memory(request.planning.offload, loaded.device)
    with refusals_in(request.unit):
        planned, result = _plan(loaded, request)
    hand_over(result, output, request)
    if request.measure:
        summary, measured = _measured(planned, result, output, request)
        summary = replace(summary, measured=measured)
        click.echo()
        click.echo(render_measurement(summary, measured, request.unit))
        if request.json_path is not None:
            write_json(request.json_path, summary.as_json())


def _measured(
    config: Config, result: PlanResult, output: Path, request: PlanRequest
) -> tuple[Summary, dict[str, dict[str, float | int | None]]]:
    """Both steps, each in a process of its own. A plan by measured operators is made again with the times that they
    have in its step, and replaces the first in its file."""
    from monet.cli.commands.rendering import render_summary
    from monet.lab.experiments.measured_steps import measured_step

    threads, again = int(result.plan.environment["threads"]), _can_be_planned_again(request)
    eager = measured_step(config, None, threads, quiet=request.quiet)
    planned = measured_step(config, output, threads, in_place=again, quiet=request.quiet)
    if planned.seconds:
        found = _as_in_step(config, result, planned, request)
        found.plan.save(output)
        if found.plan.steps != result.plan.steps:
            click.echo(f"\n{render_summary(found.summary, request.unit)}\nsaved {output}")
            planned = measured_step(config, output, threads, quiet=request.quiet)
        result = found
    return result.summary, {"eager": eager.values, "planned": planned.values}


def _plan(config: Config, request: PlanRequest) -> tuple[Config, PlanResult]:
    """The plan, and the configuration that it is for: ``--max-batch`` has one of its own."""
    if request.max_batch:
        return _largest_batch(config, request)
    if request.minimise is not None:
        return config, _smallest(config, request)
    return config, _within_budget(config, request)


def _largest_batch(config: Config, request: PlanRequest) -> tuple[Config, PlanResult]:
    from monet.lab.experiments.batch_search import largest_batch

    assert request.budget is not None
    largest = largest_batch(
        config, request.budget, request.max_overhead, request.planning.solving(prove=request.prove),
        _preparing(request), _offering(request), offload=request.planning.offload, progress=not request.quiet,
    )  # fmt: skip
    summary = replace(largest.result.summary, batch=largest.batch, batches_tried=dict(largest.tried))
    return config.with_batch(largest.batch), replace(largest.result, summary=summary)


def _smallest(config: Config, request: PlanRequest) -> PlanResult:
    from monet.pipeline.planning import plan_smallest
    from monet.step.second_memory.offload import variant_with

    variant = variant_with(request.planning.offload, request.variant)
    prepared, solving = _prepared(config, request), request.planning.solving()
    return plan_smallest(prepared, request.max_overhead, solving, variant=variant, meter=_meter(request))


def _within_budget(config: Config, request: PlanRequest) -> PlanResult:
    from monet.pipeline.planning import plan_prepared
    from monet.step.second_memory.offload import variant_with

    assert request.budget is not None
    variant = variant_with(request.planning.offload, request.variant)
    prepared = _prepared(config, request, first_look(request) if request.planning.offload is None else None)
    solving = request.planning.solving(prove=request.prove)
    return plan_prepared(prepared, request.budget, solving, variant=variant, meter=_meter(request), reuse=True)


def _can_be_planned_again(request: PlanRequest) -> bool:
    """The least memory does not depend on times, and a batch was chosen by them."""
    return request.minimise is None and not request.max_batch


def _as_in_step(config: Config, result: PlanResult, measured: MeasuredStep, request: PlanRequest) -> PlanResult:
    """Planned again with the times of the plan's own step; what that changes is printed. Ctrl-C ends the command."""
    from monet.lab.experiments.measured_again import planned_again
    from monet.step.second_memory.offload import variant_with

    assert request.budget is not None
    offload = request.planning.offload
    with refusals_in(request.unit):
        again = planned_again(
            config, result, measured, request.budget, request.planning.solving(prove=request.prove),
            _preparing(request), _offering(request), offload=offload, variant=variant_with(offload, request.variant),
            meter=_meter(request),
        )  # fmt: skip
    if again.summary.status == "interrupted":
        click.echo("monet: interrupted; the first plan stays", err=True)
        raise click.exceptions.Exit(INTERRUPTED)
    changed = "another plan" if again.plan.steps != result.plan.steps else "the same plan"
    alone_s, in_step_s = result.summary.objective_s, again.summary.objective_s
    click.echo(
        f"planned again with the times of its own step: {changed}, {format_seconds(in_step_s)} predicted "
        f"(operators one by one: {format_seconds(alone_s)})"
    )
    return again


def _preparing(request: PlanRequest) -> Preparing:
    from monet.pipeline.preparation import Preparing

    return Preparing(request.planning.reserve, cache=not request.no_cache)


def _offering(request: PlanRequest) -> Offering:
    from monet.ops.offers.offering import Offering
    from monet.planner.schedules import STORAGE

    return Offering(
        request.planning.exact, STORAGE.get(request.variant, frozenset()), request.planning.density, request.fused
    )


def _meter(request: PlanRequest) -> Meter:
    from monet.pipeline.meter import on_stderr, silent

    return silent if request.quiet else on_stderr


def _prepared(config: Config, request: PlanRequest, look: Look | None = None) -> Prepared:
    from monet.lab.experiments.configured import prepare_config
    from monet.pipeline.offloading import offloaded

    prepared = prepare_config(config, _preparing(request), _offering(request), progress=not request.quiet, look=look)
    return offloaded(prepared, request.planning.offload, cache=not request.no_cache)

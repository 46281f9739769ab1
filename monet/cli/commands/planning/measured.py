"""``monet plan --profile``: a plan of a step that ``monet profile`` has measured, here or elsewhere."""

from __future__ import annotations

from dataclasses import replace

from monet.base.amounts import refusals_in
from monet.cli.commands.planning.plan_file import hand_over, plan_path
from monet.cli.commands.planning.request import PlanRequest
from monet.errors import ConfigError
from monet.pipeline.measured_step import read_step
from monet.pipeline.meter import on_stderr, silent
from monet.pipeline.offloading import offloaded
from monet.pipeline.planning import PlanResult, plan_prepared, plan_smallest
from monet.planner.schedules import STORAGE
from monet.step.second_memory.offload import variant_with


def plan_step(request: PlanRequest) -> None:
    """Prints the summary and writes the plan file."""
    assert request.profile is not None
    stem = request.profile.name.removesuffix(".json").removesuffix(".step")
    output = plan_path(request, stem)
    with refusals_in(request.unit):
        result = _planned(request)
    hand_over(result, output, request, runs_on=str(result.plan.environment["profile"]))


def _planned(request: PlanRequest) -> PlanResult:
    assert request.profile is not None
    planning, meter = request.planning, silent if request.quiet else on_stderr
    if request.variant in STORAGE:
        raise ConfigError(f"{request.variant} has storages of its own, which monet profile does not measure")
    prepared = read_step(request.profile, planning.reserve)
    variant = variant_with(planning.offload, request.variant)
    if planning.offload is not None and planning.offload.is_here:
        raise ConfigError(
            f"{planning.offload} is of the machine where the step runs; give rates: --offload bandwidth=2GB/s"
        )
    prepared = offloaded(prepared, planning.offload)
    if request.minimise is not None:
        return plan_smallest(prepared, request.max_overhead, planning.solving(), variant=variant, meter=meter)
    assert request.budget is not None
    solving = replace(planning.solving(), prove=request.prove)
    return plan_prepared(prepared, request.budget, solving, variant=variant, meter=meter, reuse=True)

"""``monet plan``: from a configuration or a profile, and a budget, to a plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from monet.amounts import parse_budget, parse_byte_count, parse_percentage
from monet.commands.exit_status import reports_errors
from monet.commands.options import amount
from monet.commands.plan_request import PlanRequest


def _variant(text: str) -> str:
    from monet.sweep.variants import parse_variant

    return parse_variant(text)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("config", required=False)
@click.option(
    "--profile",
    type=click.Path(path_type=Path),
    help="Plan this profile (format monet-profile-1) instead of a model; there is a schedule then and no plan file.",
)
@click.option(
    "--budget",
    callback=amount(parse_budget),
    help="All that the step may hold on the device: 6GB, 5.5GiB, 6000000000, or a share of what it takes with "
    "everything kept, as 50%.",
)
@click.option(
    "--minimise",
    type=click.Choice(["memory"]),
    help="Find the smallest budget instead of being given one, at any cost or at --max-overhead; then, in as much time "
    "again, the fastest plan within --gap of it.",
)
@click.option("--batch", type=click.IntRange(min=1), help="Another batch than CONFIG's: its inputs' first dimension.")
@click.option("--max-batch", is_flag=True, help="Find the largest batch that fits the budget (at --max-overhead).")
@click.option(
    "--max-overhead",
    callback=amount(parse_percentage),
    help="With --minimise or --max-batch: how much longer than eager's the step may take, as 10%.",
)
@click.option("--measure", is_flag=True, help="Then run one eager and one planned step, each in its own process.")
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    help="The plan file.  [default: CONFIG's name with .plan.json, in the working directory]",
)
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write the summary here as data, too.")
@click.option(
    "--reserve",
    default="0",
    show_default=True,
    callback=amount(parse_byte_count),
    help="Part of the budget to leave free, for optimiser state say: 200MB.",
)
@click.option(
    "--variant",
    default="monet",
    show_default=True,
    callback=amount(_variant),
    help="Plan by a part of the program or by a baseline; `monet sweep --help` names them.",
)
@click.option(
    "--density",
    default="75%",
    show_default=True,
    callback=amount(parse_percentage),
    help="With the variant gist: the share of non-zero values that sparse storage has room for.",
)
@click.option("--solver", default="HIGHS", show_default=True, help="Solver of the 0-1 program: HIGHS or GUROBI.")
@click.option(
    "--window",
    type=click.IntRange(min=1),
    help="How many backward stages before its last use a tensor may be recomputed in.  [default: chosen by size]",
)
@click.option(
    "--time-limit",
    type=click.FloatRange(min=0, min_open=True),
    default=120.0,
    show_default=True,
    help="Seconds to solve.",
)
@click.option(
    "--gap",
    type=click.FloatRange(min=0),
    default=0.01,
    show_default=True,
    help="Stop once the plan is proven to be this close to the best, relative.",
)
@click.option("--prove", is_flag=True, help="Spend up to --time-limit once more to bound the full program.")
@click.option("--threads", type=click.IntRange(min=1), help="CPU threads to plan for.  [default: PyTorch's own number]")
@click.option("--no-cache", is_flag=True, help="Measure every operator again.")
@click.option("--exact", is_flag=True, help="Only implementations whose results equal eager's bit for bit.")
@reports_errors
def plan(config: str | None, profile: Path | None, quiet: bool, **options: Any) -> None:
    """Plan the training step that CONFIG describes so that it stays under a budget of memory.

    CONFIG is a YAML file; a bare name that is not a file here is looked up among the configurations
    that ship with monet, such as resnet50.yaml or tiny.yaml. With --profile, plan a published profile.
    """
    request = PlanRequest(config=config, profile=profile, quiet=quiet, **options)
    _check_combination(click.get_current_context(), request)
    if profile is not None:
        from monet.commands.plan_profile import plan_profile

        plan_profile(request)
    else:
        from monet.commands.plan_model import plan_model

        plan_model(request)


def _check_combination(context: click.Context, request: PlanRequest) -> None:
    """Refuse options that contradict each other, or that the chosen mode would ignore."""
    if (request.config is None) == (request.profile is None):
        raise click.UsageError("give either CONFIG or --profile FILE")
    if request.minimise is None and request.budget is None:
        raise click.UsageError("give --budget, or --minimise memory to find the smallest one")
    if request.minimise is not None:
        _refuse(context, "--minimise memory", "budget", "max_batch", "prove")
    if request.max_overhead is not None and request.minimise is None and not request.max_batch:
        raise click.UsageError("--max-overhead goes with --minimise memory or --max-batch")
    if (request.minimise is not None or request.max_batch) and request.variant != "monet":
        raise click.UsageError(f"--variant {request.variant} goes with a budget alone")
    if request.max_batch:
        _refuse(context, "--max-batch", "batch")
    if request.profile is not None:
        _refuse(
            context, "--profile", "measure", "output", "reserve", "threads", "no_cache", "exact", "batch", "max_batch",
            "density",
        )  # fmt: skip


def _refuse(context: click.Context, mode: str, *names: str) -> None:
    for name in names:
        if context.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT:
            option = next(p.opts[0] for p in context.command.params if p.name == name)
            raise click.UsageError(f"{option} does not go with {mode}")

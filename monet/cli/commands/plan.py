"""``monet plan``: from a configuration or a profile, and a budget, to a plan."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from monet.base.amounts import parse_budget, parse_percentage
from monet.cli.commands import options
from monet.cli.commands.exit_status import reports_errors
from monet.cli.commands.options import BUDGET, CHOICES, RESULT, SOLVING, amount, option
from monet.cli.commands.planning.request import PlanRequest, refuse_for_published
from monet.cli.commands.sectioned_help import Rows, SectionedCommand
from monet.planner.ablation import MONET


def _variant(text: str) -> str:
    from monet.lab.sweep.variants import parse_variant

    return parse_variant(text)


def _lists() -> Iterable[tuple[str, Rows]]:
    return (*options.variant_lists(), ("Solvers", options.solvers()), ("Words", options.words()))


@click.command(cls=SectionedCommand, lists=_lists, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("config", required=False)
@options.profile
@options.device
@options.batch
@option(
    BUDGET,
    "--budget",
    metavar="BYTES",
    callback=amount(parse_budget),
    help="All that the step may hold on the device: 6GB (10^9 bytes each), 5.5GiB (2^30), 6000000000, or "
    + options.SHARE,
)
@option(
    BUDGET,
    "--minimise",
    type=click.Choice(["memory"]),
    help="Find the smallest budget instead of being given one, at any cost or at --max-overhead; then, in as much time "
    "again, the fastest plan within --gap of it.",
)
@option(BUDGET, "--max-batch", is_flag=True, help="Find the largest batch that fits the budget (at --max-overhead).")
@option(
    BUDGET,
    "--max-overhead",
    metavar="PERCENT",
    callback=amount(parse_percentage),
    help="With --minimise or --max-batch: how much longer than eager's the step may take, as 10%.",
)
@option(
    CHOICES,
    "--variant",
    metavar="NAME",
    default=MONET,
    show_default=True,
    callback=amount(_variant),
    help="Plan by a part of the 0-1 program or by a baseline: a name of the lists below.",
)
@options.planning_options(120.0, "the plan (each of two with --minimise, of several with --max-batch)")
@option(SOLVING, "--prove", is_flag=True, help="Spend up to --time-limit once more on a bound for plans of any window.")
@options.measure("one eager and one planned step, each in its own process")
@options.output("The plan file", "CONFIG's name with .plan.json, in the working directory")
@option(
    RESULT,
    "--json",
    "json_path",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Write the summary here as data, too; docs/summary-format.md explains it.",
)
@options.fused
@options.no_cache
@reports_errors
def plan(**given: Any) -> None:
    """Plan the training step that CONFIG describes so that it stays under a budget of memory.

    CONFIG is a YAML file that names a model and its inputs; a bare name that is not a file here is looked up among the
    configurations that ship with monet, such as resnet50.yaml or tiny.yaml. The result is a plan file, which
    monet.MonetModule runs, and a summary on stdout.
    """
    request = PlanRequest(**given)
    request.check(click.get_current_context())
    if request.profile is not None:
        from monet.base.files.step_file import is_step_file

        if is_step_file(request.profile):
            from monet.cli.commands.planning.measured import plan_step

            plan_step(request)
        else:
            from monet.cli.commands.planning.published import plan_profile

            refuse_for_published(click.get_current_context())
            plan_profile(request)
    else:
        from monet.cli.commands.planning.model import plan_model

        plan_model(request)

"""Where ``monet plan`` writes its plan, and what it says of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from monet.cli.commands.exit_status import INTERRUPTED
from monet.cli.commands.options import check_target
from monet.cli.commands.planning.request import PlanRequest

if TYPE_CHECKING:
    from monet.pipeline.planning import PlanResult


def plan_path(request: PlanRequest, stem: str) -> Path:
    """The file that was asked for, or one named by ``stem``. Raises ``BadParameter``, before anything is planned, where
    it or the summary's file cannot be written or these are one file."""
    output = request.output or Path(f"{stem}.plan.json")
    for path, option in ((output, "--output"), (request.json_path, "--json")):
        check_target(path, option, request.config, request.profile)
    if request.json_path is not None and request.json_path.absolute() == output.absolute():
        raise click.BadParameter(f"{request.json_path} is the plan file, too", param_hint="--json")
    return output


def hand_over(result: PlanResult, output: Path, request: PlanRequest, *, runs_on: str = "") -> None:
    """Writes plan and summary, and prints the summary; ends the command where Ctrl-C has ended the search. ``runs_on``:
    the machine, if it need not be this one."""
    from monet.base.files.atomic import write_json
    from monet.cli.commands.rendering import render_summary

    result.plan.save(output)
    click.echo(render_summary(result.summary, request.unit))
    click.echo(f"saved {output}" + (f"; it runs on {runs_on}" if runs_on else ""))
    if request.json_path is not None:
        write_json(request.json_path, result.summary.as_json())
    if result.summary.status == "interrupted":
        click.echo("monet: interrupted; the plan is the best so far" + ", not measured" * request.measure, err=True)
        raise click.exceptions.Exit(INTERRUPTED)

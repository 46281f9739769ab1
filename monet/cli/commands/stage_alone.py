"""What ``monet layout`` and ``monet order`` share: one stage, on a file, that Ctrl-C ends with the best so far."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import click

from monet.cli.commands.exit_status import INTERRUPTED
from monet.cli.commands.options import FiniteRange
from monet.cli.commands.sectioned_help import SectionedOption

Command = Callable[..., None]


def stage_options(section: str, stage: str, *, solved: str) -> Callable[[Command], Command]:
    """``--STAGE`` (a method), ``--time-limit``, ``--solver`` (of the methods ``solved``) and ``--json``."""
    option = partial(click.option, cls=SectionedOption, section=section)
    declared = (
        option(
            f"--{stage}", "method", metavar="METHOD", default="auto", show_default=True,
            help="A method of the list below.",
        ),
        option(
            "--time-limit", type=FiniteRange(min=0), default=30.0, show_default=True,
            help=f"Seconds, after which the best {stage} so far is the result.",
        ),
        option(
            "--solver", metavar="NAME", default="HIGHS", show_default=True,
            help=f"Solver of {solved}: HIGHS, or any mixed-integer solver that CVXPY has installed, GUROBI for "
            "instance.",
        ),
        click.option(
            "--json", "json_path", metavar="FILE", type=click.Path(path_type=Path), help="Write the result here."
        ),
    )  # fmt: skip

    def decorate(command: Command) -> Command:
        for declare in reversed(declared):
            command = declare(command)
        return command

    return decorate


def end_stage(json_path: Path | None, result: Mapping[str, Any], interrupted: bool, best: str) -> None:
    """Writes ``result`` as JSON; status 130 where Ctrl-C ended the search. ``best``: what the result is then."""
    from monet.base.files.atomic import write_json

    if json_path is not None:
        write_json(json_path, {**result, "interrupted": interrupted})
    if interrupted:
        click.echo(f"monet: interrupted; this is {best}", err=True)
        raise click.exceptions.Exit(INTERRUPTED)

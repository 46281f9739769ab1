"""``monet run``: a script of somebody else's over a profile-guided arena."""

from __future__ import annotations

import traceback
from functools import partial
from pathlib import Path
from types import TracebackType

import click

from monet.cli.commands.exit_status import FAILED, reports_errors


@click.command(
    context_settings={
        "help_option_names": ["-h", "--help"],
        "ignore_unknown_options": True,
        "allow_interspersed_args": False,
    }
)
@click.option("--profile-guided", is_flag=True, help="Serve its training steps from one planned arena.")
@click.option("--limit", help="Bytes that torch may hold, e.g. 6GB; a request beyond is an error that names it.")
@click.option("--html", type=click.Path(path_type=Path), help="Draw the arena into this file.")
@click.argument("script", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[ARGUMENTS]...")
@partial(reports_errors, is_all_ours=False)
def run(
    profile_guided: bool, limit: str | None, html: Path | None, script: Path, arguments: tuple[str, ...], quiet: bool
) -> None:
    """Run the Python file SCRIPT with ARGUMENTS, as it is.

    With --profile-guided its first training step is recorded, and later ones find their memory in one arena. A step
    begins with the first forward pass in training mode and ends when an optimizer has stepped. What was done is
    reported on stderr; the script's exit status is kept.
    """
    from monet.cli.commands.options import check_target

    if not profile_guided:
        raise click.UsageError("say how: monet run --profile-guided SCRIPT")
    check_target(html, "--html", script)

    from monet.api.guided.arena import profile_guided as make_arena
    from monet.api.guided.script import run_script

    arena = make_arena(limit)
    try:
        run_script(script, arguments, arena)
    except Exception as error:
        traceback.print_exception(error.with_traceback(_within(error, script)))  # as Python would print it
        raise click.exceptions.Exit(FAILED) from error
    finally:
        report = arena.report()
        if not quiet:
            click.echo(str(report), err=True)
            if report.steps == 0:
                click.echo(
                    "monet: no torch.optim optimizer has stepped after a forward pass in training mode", err=True
                )
        if html is not None and report.plans:
            arena.html(html)


def _within(error: BaseException, script: Path) -> TracebackType | None:
    """The error's traceback from the script's own first line on; all of it where it has none, as a syntax error."""
    found = error.__traceback__
    while found is not None and found.tb_frame.f_code.co_filename != str(script):
        found = found.tb_next
    return found or error.__traceback__

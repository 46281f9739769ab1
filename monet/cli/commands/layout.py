"""``monet layout``: the layout stage alone, on buffers from a file."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import click

from monet.cli.commands.exit_status import FAILED, reports_errors
from monet.cli.commands.sectioned_help import Rows, SectionedCommand, SectionedOption
from monet.cli.commands.stage_alone import end_stage, stage_options

_arena = partial(click.option, cls=SectionedOption, section="Arena")


def _lists() -> Iterable[tuple[str, Rows]]:
    from monet.planner.layout import METHODS

    return [("Methods of --layout", list(METHODS.items()))]


@click.command(cls=SectionedCommand, lists=_lists, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("path", metavar="FILE.csv", type=click.Path(path_type=Path))
@stage_options("Placing", "layout", solved="the method program")
@_arena("--capacity", type=click.IntRange(min=0), help="Bytes that are enough; exit status 1 where they are not.")
@_arena("--alignment", type=click.IntRange(min=1), default=1, show_default=True, help="Of offsets, in bytes.")
@reports_errors
def layout(
    path: Path,
    method: str,
    time_limit: float,
    capacity: int | None,
    alignment: int,
    solver: str,
    json_path: Path | None,
    quiet: bool,
) -> None:
    """Give the buffers in FILE.csv (columns id,lower,upper,size) offsets in an arena that is as small as possible.

    A buffer of size bytes is alive from tick lower up to, not including, tick upper. Ctrl-C ends the search; the best
    layout so far is the result then, and the exit status 130.
    """
    from monet.base.amounts import format_bytes
    from monet.base.progress_line import ProgressLine
    from monet.cli.commands.options import check_target
    from monet.planner.layout import layout as lay_out
    from monet.planner.layout.document import load_lifetimes

    check_target(json_path, "--json", path)
    begun = time.monotonic()
    lifetimes = load_lifetimes(path)
    with ProgressLine(not quiet and sys.stderr.isatty(), time_limit, unit="bytes", task="laying out") as bar:
        arena = lay_out(
            lifetimes, alignment=alignment, capacity_bytes=capacity, time_limit_s=time_limit, method=method,
            solver=solver, progress=bar,
        )  # fmt: skip
    seconds = time.monotonic() - begun
    excess = arena.arena_bytes / arena.bound_bytes - 1 if arena.bound_bytes else 0.0
    click.echo(
        f"{len(lifetimes)} buffers in {format_bytes(arena.arena_bytes)} ({arena.arena_bytes} bytes), {excess:.2%} "
        f"above the bound of {arena.bound_bytes} bytes; {arena.method}, {seconds:.1f} s"
    )
    result = {
        "offsets": {str(life.id): offset for life, offset in zip(lifetimes, arena.offsets, strict=True)},
        "peak_bytes": arena.arena_bytes,
        "bound_bytes": arena.bound_bytes,
        "method": arena.method,
        "seconds": seconds,
    }
    end_stage(json_path, result, arena.interrupted, "the best layout so far")
    if capacity is not None and arena.arena_bytes > capacity:
        click.echo(f"monet: error: {arena.arena_bytes - capacity} bytes more than the capacity", err=True)
        raise click.exceptions.Exit(FAILED)

"""``monet layout``: the layout stage alone, on buffers from a file."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import click

from monet.commands.exit_status import FAILED, INTERRUPTED, reports_errors


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("path", metavar="FILE.csv", type=click.Path(path_type=Path))
@click.option(
    "--layout",
    "method",
    default="auto",
    show_default=True,
    help="auto, long-lived-first, first-fit-by-size, search or program.",
)
@click.option("--time-limit", type=click.FloatRange(min=0), default=30.0, show_default=True, help="Seconds.")
@click.option("--capacity", type=click.IntRange(min=0), help="Bytes that are enough; status 1 where it does not fit.")
@click.option("--alignment", type=click.IntRange(min=1), default=1, show_default=True, help="Of offsets, in bytes.")
@click.option("--solver", default="HIGHS", show_default=True, help="Solver of the method program.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write the result here.")
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
    from monet.amounts import format_bytes
    from monet.commands.options import check_target
    from monet.files.atomic import write_json
    from monet.planner.layout import layout as lay_out
    from monet.planner.layout.document import load_lifetimes
    from monet.progress_line import ProgressLine

    check_target(json_path, "--json")
    begun = time.monotonic()
    lifetimes = load_lifetimes(path)
    with ProgressLine(not quiet and sys.stderr.isatty(), time_limit, unit="bytes", task="laying out") as bar:
        found = lay_out(
            lifetimes, alignment=alignment, capacity_bytes=capacity, time_limit_s=time_limit, method=method,
            solver=solver, progress=bar,
        )  # fmt: skip
    seconds = time.monotonic() - begun
    excess = found.arena_bytes / found.bound_bytes - 1 if found.bound_bytes else 0.0
    click.echo(
        f"{len(lifetimes)} buffers in {format_bytes(found.arena_bytes)} ({found.arena_bytes} bytes), {excess:.2%} "
        f"above the bound of {found.bound_bytes} bytes; {found.method}, {seconds:.1f} s"
    )
    if json_path is not None:
        offsets = {str(life.id): offset for life, offset in zip(lifetimes, found.offsets, strict=True)}
        write_json(
            json_path,
            {
                "offsets": offsets,
                "peak_bytes": found.arena_bytes,
                "bound_bytes": found.bound_bytes,
                "method": found.method,
                "seconds": seconds,
                "interrupted": found.interrupted,
            },
        )
    if found.interrupted:
        click.echo("monet: interrupted; this is the best layout so far", err=True)
        raise click.exceptions.Exit(INTERRUPTED)
    if capacity is not None and found.arena_bytes > capacity:
        click.echo(f"monet: error: {found.arena_bytes - capacity} bytes more than the capacity", err=True)
        raise click.exceptions.Exit(FAILED)

"""``monet sweep``: every variant under every budget, with tables, pictures and a report."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from monet.amounts import parse_byte_count, parse_percentage
from monet.commands.exit_status import FAILED, reports_errors
from monet.commands.options import amount
from monet.sweep.budgets import parse_budgets

if TYPE_CHECKING:
    from monet.amounts import ByteBudget
    from monet.sweep.source import Options, Source


def _parse_variants(text: str) -> tuple[str, ...]:
    from monet.sweep.variants import parse_variants

    return parse_variants(text)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("config", required=False)
@click.option(
    "--profile",
    type=click.Path(path_type=Path),
    help="Plan this profile (format monet-profile-1) instead of a model.",
)
@click.option(
    "--budgets",
    required=True,
    callback=amount(parse_budgets),
    help="FIRST:LAST:STEP with both ends, as 5GB:10GB:1GB, or single ones; commas between them. "
    "50% is half of what keeping everything needs.",
)
@click.option(
    "--variants",
    default="all",
    show_default=True,
    callback=amount(_parse_variants),
    help="all, ablation, baselines, or names with commas between them. MONeT itself is monet.",
)
@click.option("--measure", is_flag=True, help="Then run one step of every plan, and eager's, one process at a time.")
@click.option(
    "--jobs", type=click.IntRange(min=1), help="Cells to plan at a time.  [default: half the number of cores]"
)
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    help="Folder of everything.  [default: the configuration's name with .sweep]",
)
@click.option(
    "--reserve",
    default="0",
    show_default=True,
    callback=amount(parse_byte_count),
    help="Part of each budget to leave free: 200MB.",
)
@click.option("--solver", default="HIGHS", show_default=True, help="Solver of the 0-1 programs: HIGHS or GUROBI.")
@click.option(
    "--window",
    type=click.IntRange(min=1),
    help="How many backward stages before its last use a tensor may be recomputed in.  [default: the planner's]",
)
@click.option(
    "--time-limit",
    type=click.FloatRange(min=0, min_open=True),
    default=60.0,
    show_default=True,
    help="Seconds to solve one cell.",
)
@click.option(
    "--gap",
    type=click.FloatRange(min=0),
    default=0.01,
    show_default=True,
    help="Stop once a plan is proven to be this close to the best, relative.",
)
@click.option(
    "--density",
    default="75%",
    show_default=True,
    callback=amount(parse_percentage),
    help="Share of non-zero values that Gist's sparse storage has room for.",
)
@click.option("--threads", type=click.IntRange(min=1), help="CPU threads to plan for.  [default: PyTorch's own number]")
@click.option("--exact", is_flag=True, help="Only implementations whose results equal eager's bit for bit.")
@reports_errors
def sweep(
    config: str | None,
    profile: Path | None,
    budgets: tuple[ByteBudget, ...],
    variants: tuple[str, ...],
    measure: bool,
    jobs: int | None,
    output: Path | None,
    reserve: int,
    solver: str,
    window: int | None,
    time_limit: float,
    gap: float,
    density: float,
    threads: int | None,
    exact: bool,
    quiet: bool,
) -> None:
    """Plan the step that CONFIG describes by every variant under every budget, and draw what comes out.

    Finished cells are kept in the folder: a second run with the same inputs plans only what is missing.
    """
    from monet.planner.cores import usable_cores
    from monet.sweep.source import Options, check_options
    from monet.sweep.variants import storage_of

    storage = () if config is None else storage_of(variants)
    options = Options(window, time_limit, gap, solver.upper(), threads, reserve, exact, storage, density)
    source = _source(config, profile)
    check_options(source, options)
    if measure and source.config is None:
        raise click.BadParameter("there is no model to measure in a profile", param_hint="--measure")
    folder = output or Path(f"{source.name}.sweep")
    _check_folder(folder)
    _run(source, options, folder, variants, budgets, measure, jobs or max(1, usable_cores() // 2), not quiet)


def _source(config: str | None, profile: Path | None) -> Source:
    from monet.sweep.source import Source

    if profile is not None and config is None:
        return Source.of_profile(profile)
    if config is not None and profile is None:
        return Source.of_config(config)
    raise click.UsageError("give a CONFIG or a --profile, one of them")


def _check_folder(folder: Path) -> None:
    """Make the folder, or refuse one that cannot be written to, before the work is done rather than after it."""
    if folder.exists() and not folder.is_dir():
        raise click.BadParameter(f"{folder} is a file, not a folder", param_hint="--output")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        writable = os.access(folder, os.W_OK | os.X_OK)
    except OSError:
        writable = False
    if not writable:
        raise click.BadParameter(f"{folder} is not a folder that can be written to", param_hint="--output")


def _run(
    source: Source,
    options: Options,
    folder: Path,
    variants: tuple[str, ...],
    budgets: tuple[ByteBudget, ...],
    measure: bool,
    jobs: int,
    progress: bool,
) -> None:
    from monet.sweep.output import write_output
    from monet.sweep.run import SweepRun
    from monet.sweep.tables import aligned, measured_table, overhead_table
    from monet.sweep.units import unit_of

    run = SweepRun(source, options, folder, jobs=jobs, progress=progress)
    try:
        found = run.run(variants, budgets, measure=measure)
    except KeyboardInterrupt:
        done = len(run.finished)
        click.echo(f"monet: {done} finished cells are in {folder}; the same command goes on from there", err=True)
        raise
    written = write_output(found, source, options, folder)
    unit = unit_of(cell.budget_bytes for cell in found.cells)
    click.echo(aligned(overhead_table(found.rows, unit)))
    if measure and (measured := measured_table(found.rows, unit)) is not None:
        click.echo(f"\n{aligned(measured)}")
    click.echo(f"\n{len(found.cells)} cells, {found.computed} of them planned now")
    click.echo(f"saved {written[-1]}")
    failed = [cell for cell in found.cells if found.outcomes[cell].status == "error"]
    for cell in failed:
        click.echo(f"monet: error: {cell}: {found.outcomes[cell].message}", err=True)
    if failed:
        raise click.exceptions.Exit(FAILED)

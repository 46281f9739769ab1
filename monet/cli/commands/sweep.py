"""``monet sweep``: every variant under every budget, with tables, pictures and a report."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from monet.cli.commands import options
from monet.cli.commands.exit_status import FAILED, reports_errors
from monet.cli.commands.options import BUDGET, CHOICES, SOLVING, PlanningOptions, amount, check_folder, option
from monet.cli.commands.sectioned_help import Rows, SectionedCommand
from monet.lab.sweep.budgets import parse_budgets

if TYPE_CHECKING:
    from monet.base.amounts import ByteBudget
    from monet.lab.sweep.run import SweepRun
    from monet.lab.sweep.source import Options, Source


def _variants(text: str) -> tuple[str, ...]:
    from monet.lab.sweep.variants import parse_variants

    return parse_variants(text)


def _lists() -> Iterable[tuple[str, Rows]]:
    from monet.lab.sweep.variants import GROUPS

    together = [(name, ", ".join(names)) for name, names in GROUPS.items()]
    return (
        *options.variant_lists(), ("Names for several of these", together), ("Solvers", options.solvers()),
        ("Words", options.words()),
    )  # fmt: skip


@click.command(cls=SectionedCommand, lists=_lists, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("config", required=False)
@options.profile
@option(
    BUDGET,
    "--budgets",
    metavar="LIST",
    required=True,
    callback=amount(parse_budgets),
    help="FIRST:LAST:STEP with both ends, as 5GB:10GB:1GB, or single ones; commas between them. A budget is 6GB (10^9 "
    "bytes each), 5.5GiB (2^30), 6000000000, or " + options.SHARE,
)
@option(
    CHOICES,
    "--variants",
    metavar="LIST",
    default="all",
    show_default=True,
    callback=amount(_variants),
    help="Names of the lists below, with commas between them.",
)
@options.planning_options(60.0, "the plan of one cell")
@options.fused
@option(
    SOLVING,
    "--jobs",
    type=click.IntRange(min=1),
    help="Cells to plan at a time.  [default: half the number of cores]",
)
@option(
    SOLVING,
    "--cluster",
    metavar="ADDRESS",
    help="Plan the cells on the workers of the Dask scheduler at this address, as tcp://10.0.0.1:8786, and not here.",
)
@options.measure("eager's step and one step of every plan, one process at a time")
@options.output("Folder of everything that is written", "the configuration's or profile's name with .sweep")
@reports_errors
def sweep(
    config: str | None,
    profile: Path | None,
    budgets: tuple[ByteBudget, ...],
    variants: tuple[str, ...],
    planning: PlanningOptions,
    fused: bool,
    jobs: int | None,
    cluster: str | None,
    measure: bool,
    output: Path | None,
    quiet: bool,
) -> None:
    """Plan the step that CONFIG describes by every variant under every budget, and draw what comes out.

    CONFIG is a YAML file that names a model and its inputs, or one of those that ship with monet, such as tiny.yaml.
    A cell is one variant under one budget. Finished cells are kept in the folder: a second run with the same inputs
    plans only what is missing.
    """
    from monet.lab.sweep.run import SweepRun
    from monet.lab.sweep.source import check_options
    from monet.lab.sweep.variants import check_moving
    from monet.planner.cores import usable_cores

    check_moving(variants, planning.offload)
    source = _source(config, profile)
    chosen = _options(planning, variants if source.config is not None else (), fused=fused)
    check_options(source, chosen)
    if source.config is not None and planning.offload is not None:
        from monet.pipeline.offloading import check_second_memory

        check_second_memory(planning.offload, source.config.device)
    if measure and source.config is None:
        raise click.BadParameter("there is no model to measure in a profile", param_hint="--measure")
    if cluster is not None and jobs is not None:
        raise click.BadParameter("--cluster has its own workers, one cell at a time each", param_hint="--jobs")
    folder = output or Path(f"{source.name}.sweep")
    check_folder(folder)
    at_a_time = jobs or max(1, usable_cores() // 2)
    run = SweepRun(source, chosen, folder, jobs=at_a_time, progress=not quiet, cluster=cluster)
    _run(run, variants, budgets, measure)


def _options(planning: PlanningOptions, variants: tuple[str, ...], *, fused: bool) -> Options:
    """``variants``: those that a model is measured for."""
    from monet.lab.sweep.source import Options
    from monet.lab.sweep.variants import storage_of

    return Options(
        planning.window, planning.time_limit, planning.gap, planning.solver.upper(), planning.threads,
        planning.reserve, planning.exact, storage_of(variants), planning.density,
        None if planning.offload is None else str(planning.offload), planning.cores, fused,
    )  # fmt: skip


def _source(config: str | None, profile: Path | None) -> Source:
    from monet.lab.sweep.source import Source

    if profile is not None and config is None:
        return Source.of_profile(profile)
    if config is not None and profile is None:
        return Source.of_config(config)
    raise click.UsageError("give a CONFIG or a --profile, one of them")


def _run(run: SweepRun, variants: tuple[str, ...], budgets: tuple[ByteBudget, ...], measure: bool) -> None:
    """Runs the sweep, writes what comes out and prints its tables."""
    from monet.lab.sweep.output import write_output
    from monet.lab.sweep.tables import aligned, measured_table, overhead_table
    from monet.lab.sweep.units import unit_of

    try:
        sweep = run.run(variants, budgets, measure=measure)
    except KeyboardInterrupt:
        done = len(run.finished)
        click.echo(f"monet: {done} finished cells are in {run.folder}; the same command goes on from there", err=True)
        raise
    written = write_output(sweep, run.source, run.options, run.folder)
    unit = unit_of(cell.budget_bytes for cell in sweep.cells)
    click.echo(aligned(overhead_table(sweep.rows, unit)))
    if measure and (measured := measured_table(sweep.rows, unit)) is not None:
        click.echo(f"\n{aligned(measured)}")
    click.echo(f"\n{len(sweep.cells)} cells, {sweep.computed} of them planned now")
    click.echo(f"saved {written[-1]}")
    failed = [cell for cell in sweep.cells if sweep.outcomes[cell].status == "error"]
    for cell in failed:
        click.echo(f"monet: error: {cell}: {sweep.outcomes[cell].message}", err=True)
    if failed:
        raise click.exceptions.Exit(FAILED)

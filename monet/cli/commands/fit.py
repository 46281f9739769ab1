"""``monet fit``: will the step fit, and at what cost?"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from monet.base.amounts import ByteCount, parse_memory
from monet.cli.commands import options
from monet.cli.commands.exit_status import FAILED, INTERRUPTED, reports_errors
from monet.cli.commands.options import BUDGET, CHOICES, RESULT, amount, check_target, option
from monet.cli.commands.sectioned_help import Rows, SectionedCommand

if TYPE_CHECKING:
    from monet.api.capacity.answer import Answer

TIME_LIMIT_S = 20.0


def _lists() -> Iterable[tuple[str, Rows]]:
    return (("Solvers", options.solvers()), ("Words", options.words()))


@click.command(cls=SectionedCommand, lists=_lists, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("config")
@options.batch
@option(
    BUDGET,
    "--memory",
    metavar="BYTES",
    callback=amount(parse_memory),
    help="The memory that the step should fit into: 16GB (10^9 bytes each), 15GiB (2^30) or 16000000000. May be left "
    "out with --on a GPU: all that it has.",
)
@options.reserve
@option(BUDGET, "--no-batch", is_flag=True, help="Do not look for the largest batch that fits.")
@option(
    CHOICES,
    "--estimate",
    is_flag=True,
    help="Run nothing of the model, and allocate none of it: costs are estimated from shapes, and from how fast small "
    "models run here, which is measured once.",
)
@option(
    CHOICES,
    "--rates",
    metavar="RATES",
    help="With --estimate: operations and bytes a second, as 300GFLOPS,20GB/s, instead of this machine's.",
)
@option(
    CHOICES,
    "--on",
    metavar="MACHINE",
    help="Estimate for a machine that is not here, by its maker's figures: h100, 'rtx 4090', or a number of cores, as "
    "32-core.",
)
@options.exact
@options.fused
@options.threads
@options.solver
@options.window
@options.gap
@options.time_limit(TIME_LIMIT_S, "each of about ten plans")
@option(
    RESULT, "--json", "json_path", metavar="FILE", type=click.Path(path_type=Path),
    help="Write the answer here as data, too; docs/fit.md explains it.",
)  # fmt: skip
@options.no_cache
@reports_errors
def fit(
    config: str,
    batch: int | None,
    memory: ByteCount | None,
    reserve: int,
    no_batch: bool,
    estimate: bool,
    rates: str | None,
    on: str | None,
    exact: bool,
    fused: bool,
    threads: int | None,
    solver: str,
    window: int | None,
    gap: float,
    time_limit: float,
    json_path: Path | None,
    no_cache: bool,
    quiet: bool,
) -> None:
    """Say whether the training step that CONFIG describes fits into a memory: as it is, or by a plan and how much
    longer it then takes; what less memory costs, and which batch is the largest.

    CONFIG is a YAML file that names a model and its inputs, or one of those that ship with monet, such as tiny.yaml.
    Exit status 1: it does not fit.
    """
    from monet.models.config import load_config

    loaded = load_config(config)
    if batch is not None:
        loaded = loaded.with_batch(batch)
    check_target(json_path, "--json", config)
    if rates is not None and not estimate:
        raise click.UsageError("--rates goes with --estimate")
    if memory is None and on is None:
        raise click.UsageError("how much memory is there? Give --memory, as 16GB, or name a GPU with --on, as h100")

    import torch

    from monet.api.capacity.answer import INTERRUPTED as STOPPED
    from monet.api.capacity.answer import TOO_LARGE
    from monet.api.capacity.asking import room_and_rates
    from monet.api.capacity.search import FitSearch
    from monet.api.capacity.steps import config_steps
    from monet.api.capacity.text import render_answer
    from monet.base.files.atomic import write_json
    from monet.ops.offers.offering import Offering
    from monet.pipeline.meter import on_stderr, silent
    from monet.pipeline.preparation import Preparing
    from monet.planner.search import Solving

    if threads is not None:
        torch.set_num_threads(threads)
    dtype = getattr(torch, loaded.autocast or loaded.dtype or "float32")
    room, given = room_and_rates(memory, on, rates, dtype, estimate=estimate, cache=not no_cache, progress=not quiet)
    preparing = Preparing(reserve, cache=not no_cache, costs=given)
    steps = config_steps(loaded, preparing, Offering(exact, fused=fused), progress=not quiet)
    solving = Solving(time_limit, gap, window, solver.upper())
    answer: Answer = FitSearch(steps, room, solving, silent if quiet else on_stderr).run(batch=not no_batch)
    click.echo(render_answer(answer, room.unit))
    if json_path is not None:
        write_json(json_path, answer.as_json())
    if answer.status == STOPPED:
        raise click.exceptions.Exit(INTERRUPTED)
    if answer.fits == TOO_LARGE:
        raise click.exceptions.Exit(FAILED)

"""``monet profile``: a step measured here, as a file that is planned anywhere."""

from __future__ import annotations

from pathlib import Path

import click

from monet.cli.commands import options
from monet.cli.commands.exit_status import reports_errors
from monet.cli.commands.sectioned_help import SectionedCommand


@click.command(cls=SectionedCommand, lists=tuple, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("config")
@options.batch
@options.device
@options.exact
@options.threads
@options.no_cache
@options.output("The file", "CONFIG's name with .step.json, in the working directory")
@reports_errors
def profile(
    config: str, batch: int | None, device: str | None, exact: bool, threads: int | None, no_cache: bool,
    output: Path | None, quiet: bool,
) -> None:  # fmt: skip
    """Measure the step that CONFIG describes, and write it to a file that is planned anywhere.

    The file has the step's operators with the seconds and bytes of each of their implementations on this machine, and
    no values of the model. `monet plan --profile FILE --budget 6GB` needs neither the model nor a GPU; its plan runs
    on this machine.
    """
    from monet.cli.commands.options import check_target
    from monet.models.config import load_config

    target = output or Path(f"{Path(config).stem}.step.json")
    check_target(target, "--output", config)
    loaded = load_config(config).on(device)
    if batch is not None:
        loaded = loaded.with_batch(batch)

    import torch

    from monet.base.amounts import format_bytes
    from monet.lab.experiments.configured import prepare_config
    from monet.ops.offers.offering import Offering
    from monet.pipeline.measured_step import write_step
    from monet.pipeline.preparation import Preparing

    if threads is not None:
        torch.set_num_threads(threads)
    offering = Offering(exact)
    prepared = prepare_config(loaded, Preparing(cache=not no_cache), offering, progress=not quiet)
    write_step(prepared, offering, target)
    graph = prepared.lowered.catalogue.graph
    click.echo(
        f"{prepared.problem.name}: {len(graph.forward) + len(graph.backward)} operators, measured on "
        f"{prepared.environment['profile']}; eager's peak {format_bytes(prepared.eager_peak_bytes)}, "
        f"{prepared.eager_s:.3f} s"
    )
    click.echo(f"saved {target}")

"""``monet plan``: from a configuration and a budget to a plan file."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import click

from monet.byte_count import ByteBudget, parse_budget, parse_byte_count
from monet.commands.exit_status import INTERRUPTED, reports_errors
from monet.errors import ConfigError

_Amount = TypeVar("_Amount")


def _amount(parse: Callable[[str], _Amount]) -> Callable[[click.Context, click.Parameter, str], _Amount]:
    """An option's callback that reads an amount of memory."""

    def callback(context: click.Context, parameter: click.Parameter, value: str) -> _Amount:
        try:
            return parse(value)
        except ConfigError as error:
            raise click.BadParameter(str(error)) from error

    return callback


def _check_target(path: Path, option: str) -> None:
    """Refuse a file that cannot be written before the work is done rather than after it."""
    folder = path.absolute().parent
    if path.is_dir():
        raise click.BadParameter(f"{path} is a folder, not a file", param_hint=option)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise click.BadParameter(f"{folder} is not a folder that can be written to", param_hint=option)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("config")
@click.option(
    "--budget",
    required=True,
    callback=_amount(parse_budget),
    help="All that the step may hold on the device: 6GB, 5.5GiB, 6000000000, or a share of eager's peak as 50%.",
)
@click.option("--measure", is_flag=True, help="Then run one eager and one planned step, each in its own process.")
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    help="The plan file.  [default: CONFIG's name with .plan.json, in the working directory]",
)
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write the summary here as data, too.")
@click.option(
    "--reserve",
    default="0",
    show_default=True,
    callback=_amount(parse_byte_count),
    help="Part of the budget to leave free, for optimiser state say: 200MB.",
)
@click.option("--solver", default="HIGHS", show_default=True, help="Solver of the 0-1 program: HIGHS or GUROBI.")
@click.option(
    "--window",
    type=click.IntRange(min=1),
    help="How many backward stages before its last use a tensor may be recomputed in.  [default: chosen by size]",
)
@click.option(
    "--time-limit",
    type=click.FloatRange(min=0, min_open=True),
    default=120.0,
    show_default=True,
    help="Seconds to solve.",
)
@click.option(
    "--gap",
    type=click.FloatRange(min=0),
    default=0.01,
    show_default=True,
    help="Stop once the plan is proven to be this close to the best, relative.",
)
@click.option("--threads", type=click.IntRange(min=1), help="CPU threads to plan for.  [default: PyTorch's own number]")
@click.option("--no-cache", is_flag=True, help="Measure every operator again.")
@click.option("--exact", is_flag=True, help="Only implementations whose results equal eager's bit for bit.")
@reports_errors
def plan(
    config: str,
    budget: ByteBudget,
    measure: bool,
    output: Path | None,
    json_path: Path | None,
    reserve: int,
    solver: str,
    window: int | None,
    time_limit: float,
    gap: float,
    threads: int | None,
    no_cache: bool,
    exact: bool,
    quiet: bool,
) -> None:
    """Plan the training step that CONFIG describes so that it stays under a budget of memory.

    CONFIG is a YAML file; a bare name that is not a file here is looked up among the configurations
    that ship with monet, such as resnet50.yaml or tiny.yaml.
    """
    from monet.config import load_config
    from monet.summary import render_measurement, render_summary, write_json

    loaded = load_config(config)
    output = output or Path(f"{Path(config).stem}.plan.json")
    _check_target(output, "--output")
    if json_path is not None:
        _check_target(json_path, "--json")
        if json_path.absolute() == output.absolute():
            raise click.BadParameter(f"{json_path} is the plan file, too", param_hint="--json")

    import torch

    from monet.api import plan_model
    from monet.model_loading import build_model
    from monet.sample_inputs import empty_inputs

    if threads is not None:
        torch.set_num_threads(threads)
    args, kwargs = empty_inputs(loaded)
    result = plan_model(
        build_model(loaded),
        args,
        kwargs,
        budget,
        reserve_bytes=reserve,
        solver=solver.upper(),
        window=window,
        time_limit_s=time_limit,
        gap=gap,
        exact=exact,
        cache=not no_cache,
        progress=not quiet,
        seed=loaded.seed,
    )
    result.plan.save(output)
    summary = result.summary
    click.echo(render_summary(summary))
    click.echo(f"saved {output}")
    if json_path is not None:
        write_json(json_path, summary)
    if summary["status"] == "interrupted":
        raise click.exceptions.Exit(INTERRUPTED)
    if measure:
        from monet.measurement import measure_config

        measured = measure_config(loaded, output)
        click.echo()
        click.echo(render_measurement(summary, measured))
        if json_path is not None:
            write_json(json_path, summary, measured)

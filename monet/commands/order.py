"""``monet order``: the ordering stage alone, on a graph from a file."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import click

from monet.commands.exit_status import INTERRUPTED, reports_errors


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("path", metavar="GRAPH.json", type=click.Path(path_type=Path))
@click.option(
    "--order",
    "method",
    default="auto",
    show_default=True,
    help="auto, program, lpmf, depth-first, breadth-first, lescea, early-update, delayed-update, exact, roam, "
    "model-ss or model-ms.",
)
@click.option("--time-limit", type=click.FloatRange(min=0), default=30.0, show_default=True, help="Seconds.")
@click.option("--solver", default="HIGHS", show_default=True, help="Solver of model-ss and model-ms.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write the result here.")
@reports_errors
def order(path: Path, method: str, time_limit: float, solver: str, json_path: Path | None, quiet: bool) -> None:
    """Put the operators of GRAPH.json in an order of small peak memory, and prove how small it can be.

    What the graph is given (parameters, optimiser state, the batch) is not counted. Ctrl-C ends the search: the best
    order so far is printed and written, and the exit status is 130.
    """
    from monet.amounts import format_bytes
    from monet.commands.options import check_target
    from monet.files.atomic import write_json
    from monet.planner.cores import usable_cores
    from monet.planner.order import best_order
    from monet.planner.order.document import load_graph
    from monet.planner.order.graph import peak_bytes
    from monet.progress_line import ProgressLine

    check_target(json_path, "--json")
    begun = time.monotonic()
    graph = load_graph(path)
    shown = not quiet and sys.stderr.isatty()
    with ProgressLine(shown, time_limit, unit="bytes", task="ordering") as bar:
        found = best_order(
            graph, method=method, time_limit_s=time_limit, solver=solver, workers=usable_cores(), progress=bar
        )
    seconds = time.monotonic() - begun
    program = peak_bytes(graph, range(len(graph.nodes)))
    excess = found.peak_bytes / found.bound_bytes - 1 if found.bound_bytes else 0.0
    proof = "no order needs less" if found.proven else f"{excess:.2%} above the bound of {found.bound_bytes} bytes"
    click.echo(
        f"{len(graph.nodes)} operators in {format_bytes(found.peak_bytes)} ({found.peak_bytes} bytes), {proof}; "
        f"program order {format_bytes(program)}; {found.method}, {seconds:.1f} s"
    )
    if json_path is not None:
        write_json(
            json_path,
            {
                "order": list(found.order),
                "peak_bytes": found.peak_bytes,
                "bound_bytes": found.bound_bytes,
                "program_order_peak_bytes": program,
                "method": found.method,
                "seconds": seconds,
                "interrupted": found.interrupted,
            },
        )
    if found.interrupted:
        click.echo("monet: interrupted; this is the best order found by then", err=True)
        raise click.exceptions.Exit(INTERRUPTED)

"""``monet order``: the ordering stage alone, on a graph from a file."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from pathlib import Path

import click

from monet.cli.commands.exit_status import reports_errors
from monet.cli.commands.sectioned_help import Rows, SectionedCommand
from monet.cli.commands.stage_alone import end_stage, stage_options


def _lists() -> Iterable[tuple[str, Rows]]:
    from monet.planner.order import METHODS

    return [("Methods of --order", list(METHODS.items()))]


@click.command(cls=SectionedCommand, lists=_lists, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("path", metavar="GRAPH.json", type=click.Path(path_type=Path))
@stage_options("Ordering", "order", solved="model-ss and model-ms")
@reports_errors
def order(path: Path, method: str, time_limit: float, solver: str, json_path: Path | None, quiet: bool) -> None:
    """Put the operators of GRAPH.json in an order of small peak memory, and prove how small it can be.

    Inputs of the graph (parameters, optimiser state, the batch) are not counted. Ctrl-C ends the search: the best
    order so far is printed and written, and the exit status is 130.
    """
    from monet.base.amounts import format_bytes
    from monet.base.progress_line import ProgressLine
    from monet.cli.commands.options import check_target
    from monet.planner.cores import usable_cores
    from monet.planner.order import best_order
    from monet.planner.order.document import load_graph
    from monet.planner.order.graph import peak_bytes

    check_target(json_path, "--json", path)
    begun = time.monotonic()
    graph = load_graph(path)
    shown = not quiet and sys.stderr.isatty()
    with ProgressLine(shown, time_limit, unit="bytes", task="ordering") as bar:
        ordered = best_order(
            graph, method=method, time_limit_s=time_limit, solver=solver, workers=usable_cores(), progress=bar
        )
    seconds = time.monotonic() - begun
    captured = peak_bytes(graph, range(len(graph.nodes)))
    excess = ordered.peak_bytes / ordered.bound_bytes - 1 if ordered.bound_bytes else 0.0
    proof = "no order needs less" if ordered.proven else f"{excess:.2%} above the bound of {ordered.bound_bytes} bytes"
    click.echo(
        f"{len(graph.nodes)} operators in {format_bytes(ordered.peak_bytes)} ({ordered.peak_bytes} bytes), {proof}; "
        f"captured order {format_bytes(captured)}; {ordered.method}, {seconds:.1f} s"
    )
    result = {
        "order": list(ordered.order),
        "peak_bytes": ordered.peak_bytes,
        "bound_bytes": ordered.bound_bytes,
        "captured_order_peak_bytes": captured,
        "program_order_peak_bytes": captured,  # its name before; keys may only be added
        "method": ordered.method,
        "seconds": seconds,
    }
    end_stage(json_path, result, ordered.interrupted, "the best order found by then")

"""``monet show``: what a plan does, as text, as a page, and in the formats of other viewers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING

import click

from monet.base.amounts import format_bytes
from monet.cli.commands.exit_status import reports_errors
from monet.plans.text import compared, held_for

if TYPE_CHECKING:
    from monet.lab.views.origins import Origins
    from monet.lab.views.overview import Overview
    from monet.plans.plan import Plan

_WIDTH = 80
_LARGEST = 5
_LABEL = 11
_TOGETHER = "\N{NO-BREAK SPACE}"

_file = click.Path(path_type=Path)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("plan", metavar="PLAN.json", type=_file)
@click.option("--html", metavar="FILE", type=_file, help="Write a page that opens from disk: memory, arena, tables.")
@click.option("--snapshot", metavar="FILE", type=_file, help="Write a snapshot for pytorch.org/memory_viz.")
@click.option("--perfetto", metavar="FILE", type=_file, help="Write a timeline of the steps for ui.perfetto.dev.")
@click.option("--graph", metavar="FILE", type=_file, help="Write the steps as a graph, in GraphML.")
@click.option(
    "--trace",
    metavar="FILE",
    type=_file,
    help="What `monet trace --json FILE` wrote of the plan: seconds and lines of the model for the files above.",
)
@click.option(
    "--config", metavar="CONFIG", help="The plan's configuration: its model is captured for lines and modules of steps."
)
@reports_errors
def show(
    plan: Path,
    html: Path | None,
    snapshot: Path | None,
    perfetto: Path | None,
    graph: Path | None,
    trace: Path | None,
    config: str | None,
    quiet: bool,
) -> None:
    """Show what the plan PLAN.json keeps, recomputes and moves, and what is in memory at its peak.

    Needs the plan alone. A plan file has neither the seconds of each step nor the lines and modules that they come
    from: --trace adds seconds and lines, --config lines and modules.
    """
    from monet.base.files.atomic import write_bytes_atomically
    from monet.cli.commands.options import check_target
    from monet.plans.plan import Plan

    targets = {"--html": html, "--snapshot": snapshot, "--perfetto": perfetto, "--graph": graph}
    named = [plan.absolute()]
    for option, path in targets.items():
        check_target(path, option)
        if path is not None and path.absolute() in named:
            raise click.BadParameter(f"{path} is the plan, or another option's file", param_hint=option)
        named += [] if path is None else [path.absolute()]
    loaded = Plan.load(plan)
    origins = _origins(loaded, trace, config)
    click.echo("\n".join(summary_lines(loaded)))
    for option, path in targets.items():
        if path is not None:
            content, note = _content(option, loaded, origins)
            write_bytes_atomically(path, content)
            click.echo(f"wrote {path} ({format_bytes(len(content))}{note})")


def _origins(plan: Plan, trace: Path | None, config: str | None) -> Origins:
    from monet.lab.views.origins import UNKNOWN, read_trace

    origins = UNKNOWN if trace is None else read_trace(trace, plan)
    if config is None:
        return origins
    from monet.lab.experiments.model_origins import model_origins
    from monet.models.config import load_config

    found = model_origins(load_config(config), plan)
    return replace(origins, lines=found.lines, modules=found.modules)


def _content(option: str, plan: Plan, origins: Origins) -> tuple[bytes, str]:
    """What the file of an option holds, and what to say of it."""
    from monet.lab.views.page.document import page
    from monet.lab.views.snapshot import snapshot_bytes
    from monet.lab.views.step_graph import graphml_text
    from monet.lab.views.timeline import time_unit, timeline_text

    if option == "--html":
        return page(plan, origins).encode(), ""
    if option == "--snapshot":
        return snapshot_bytes(plan, origins), ""
    if option == "--graph":
        return graphml_text(plan, origins).encode(), ""
    return timeline_text(plan, origins).encode(), f", lengths are {time_unit(origins)}"


def summary_lines(plan: Plan) -> list[str]:
    """At most 24 lines of at most 80 characters."""
    from monet.cli.commands.rendering import table_lines
    from monet.lab.views.contents import kinds, peak
    from monet.lab.views.overview import overview
    from monet.lab.views.plain_text import plain

    found = overview(plan)
    lines = [f"plan of {found.name}" + (f" ({found.status})" if found.status else "")]
    for label, text in _rows(plan, found):
        head, *rest = wrap(text, _WIDTH - _LABEL, max_lines=2, placeholder=" …") or [""]
        lines += [f"{label:<{_LABEL}}{head}", *(" " * _LABEL + more for more in rest)]
    most = peak(plan)
    if most is not None:
        kind = {buffer.id: name for buffer, name in zip(plan.buffers, kinds(plan), strict=True)}
        step = plan.steps[most.step]
        lines += ["", f"at the peak: {format_bytes(most.load_bytes)} in {len(most.buffers)} buffers, "
                  f"step {most.step}, {step.kind} {plain(step.node)}"]  # fmt: skip
        rows = [("  value", "what", "bytes", "steps")]
        for buffer in most.buffers[:_LARGEST]:
            value = f"  {_cut(plain(buffer.value), 32)}"
            rows.append((value, kind[buffer.id], format_bytes(buffer.bytes), f"{buffer.first} to {buffer.last}"))
        lines += table_lines(rows, words=(0, 1))
    return [_cut(line.replace(_TOGETHER, " "), _WIDTH) for line in lines]


def _rows(plan: Plan, found: Overview) -> Iterator[tuple[str, str]]:
    yield "budget", format_bytes(plan.budget_bytes)
    of_eager = ""
    if found.eager_peak_bytes:
        share = plan.peak_bytes / found.eager_peak_bytes
        of_eager = f", {share:.1%} of eager's {format_bytes(found.eager_peak_bytes)}"
    yield "peak", f"{format_bytes(plan.peak_bytes)}, {plan.peak_bytes / plan.budget_bytes:.1%} of the budget{of_eager}"
    excess = plan.arena_bytes - plan.arena_bound_bytes
    above = f"{excess / plan.arena_bound_bytes:.2%} above the least" if excess else "no placement needs less"
    yield "  arena", f"{format_bytes(plan.arena_bytes)}, {above}"
    parts = sorted(((size, name) for name, size in plan.fixed.items() if size), reverse=True)
    # An amount and its unit stay together where lines are broken.
    listed = ", ".join(f"{name} {format_bytes(size)}".replace(" ", _TOGETHER) for size, name in parts)
    yield "  fixed", format_bytes(plan.fixed_bytes) + (f": {listed}" if listed else "")
    sizes = plan.model.get("dynamic", {}).get("sizes")
    if sizes:
        yield "shapes", "every one of " + ", ".join(f"{name} {few} to {most}" for name, (few, most) in sizes.items())
    yield "steps", f"{len(plan.steps)}: " + ", ".join(f"{count} {kind}" for kind, count in found.steps.items())
    if found.recomputed:
        runs = found.steps["recompute"]
        text = f"{len(found.recomputed)} operators in {runs} runs, which make {format_bytes(found.recomputed_bytes)}"
        yield "recomputed", text
    else:
        yield "recomputed", "nothing"
    if plan.second_bytes:
        room = format_bytes(plan.second_bytes)
        yield "moved", f"{len(found.moved)} values, {format_bytes(found.moved_bytes)}, to {room} of a second memory"
    else:
        yield "moved", "nothing"
    if found.predicted_s is not None:
        beside = "" if found.overhead is None else f", {compared(found.overhead)}"
        yield "predicted", f"{_seconds(found.predicted_s)}{beside}"
    if found.bound_s is not None:
        gap = "" if found.gap is None else f" (gap {found.gap:.1%})"
        yield "bound", f"{_seconds(found.bound_s)}{gap}, holds for {held_for(found.bound_scope)}"


def _seconds(seconds: float) -> str:
    return f"{seconds:.3f} s" if seconds >= 1 else f"{seconds * 1e3:.3f} ms"


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"

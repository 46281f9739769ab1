"""``monet compare``: how two plans of one model differ."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from monet.base.amounts import format_bytes
from monet.cli.commands.exit_status import reports_errors

if TYPE_CHECKING:
    from monet.lab.views.comparison import Comparison

_LISTED = 12


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("first", metavar="A.json", type=click.Path(path_type=Path))
@click.argument("second", metavar="B.json", type=click.Path(path_type=Path))
@click.option("--force", is_flag=True, help="Compare plans of different models, shapes or modes all the same.")
@click.option("--all", "is_whole", is_flag=True, help=f"List all that differs, not the first {_LISTED} of each kind.")
@reports_errors
def compare(first: Path, second: Path, force: bool, is_whole: bool, quiet: bool) -> None:
    """Show how the plans A.json and B.json of one model differ.

    Bytes, seconds, what is recomputed and moved, and which implementations run. Exit status 1 where they are of
    different models.
    """
    from monet.lab.views.comparison import comparison
    from monet.plans.plan import Plan

    found = comparison(Plan.load(first), Plan.load(second), force=force)
    click.echo("\n".join(comparison_lines(found, (str(first), str(second)), None if is_whole else _LISTED)))


def comparison_lines(found: Comparison, names: tuple[str, str], most: int | None) -> list[str]:
    """A table of the figures, and one of each kind of difference with ``most`` rows; None: with all."""
    from monet.cli.commands.rendering import table_lines
    from monet.lab.views.plain_text import plain

    one, other = found.overviews
    lines = [f"A  {plain(names[0])}: {one.name}", f"B  {plain(names[1])}: {other.name}", ""]
    lines += table_lines([("", "A", "B", "B - A"), *_figures(found)])
    if found.plans[0] == found.plans[1]:
        return [*lines, "", "The plans are equal."]

    def listed(title: str, head: tuple[str, ...], rows: Sequence[tuple[str, ...]], words: tuple[int, ...]) -> None:
        if rows:
            lines.extend(["", title, *table_lines([head, *rows[:most]], words=words)])
            if most is not None and len(rows) > most:
                lines.append(f"  and {len(rows) - most} more: --all")

    again = [(f"  {plain(node)}", str(a), str(b)) for node, (a, b) in sorted(found.recomputed.items())]
    listed("recomputed", ("  operator", "A", "B"), again, (0,))
    moved = [
        (f"  {plain(value)}", *(format_bytes(size) if size else "-" for size in sizes))
        for value, sizes in sorted(found.moved.items(), key=lambda item: -max(item[1]))
    ]
    listed("moved", ("  value", "A", "B"), moved, (0,))
    chosen = [
        (f"  {plain(choice.operator)}", choice.kind, plain(choice.first), plain(choice.second), str(choice.count))
        for choice in found.choices
    ]
    listed("implementations", ("  operator", "step", "A", "B", "operators"), chosen, (0, 1, 2, 3))
    return lines


def _figures(found: Comparison) -> list[tuple[str, ...]]:
    (a, b), (one, other) = found.plans, found.overviews
    rows: list[tuple[str, ...]] = []

    def row(name: str, first: float | None, second: float | None, show: Callable[[float], str]) -> None:
        if first is None and second is None:
            return
        difference = "-"
        if first is not None and second is not None:
            apart = second - first
            difference = "0" if not apart else f"{'+' if apart > 0 else '-'}{show(abs(apart))}"
        rows.append((name, *("-" if value is None else show(value) for value in (first, second)), difference))

    def amount(count: float) -> str:
        return format_bytes(int(count))

    row("budget", a.budget_bytes, b.budget_bytes, amount)
    row("peak", a.peak_bytes, b.peak_bytes, amount)
    row("  arena", a.arena_bytes, b.arena_bytes, amount)
    row("  fixed", a.fixed_bytes, b.fixed_bytes, amount)
    row("eager's peak", one.eager_peak_bytes, other.eager_peak_bytes, amount)
    row("predicted", one.predicted_s, other.predicted_s, _seconds)
    row("overhead", one.overhead, other.overhead, lambda share: f"{share:.1%}")
    row("bound", one.bound_s, other.bound_s, _seconds)
    row("steps", len(a.steps), len(b.steps), _count)
    row("buffers", len(a.buffers), len(b.buffers), _count)
    row("recomputed", len(one.recomputed), len(other.recomputed), _count)
    row("  runs", one.steps.get("recompute", 0), other.steps.get("recompute", 0), _count)
    row("  made again", one.recomputed_bytes, other.recomputed_bytes, amount)
    if one.moved or other.moved:
        row("moved", len(one.moved), len(other.moved), _count)
        row("  bytes", one.moved_bytes, other.moved_bytes, amount)
    changed = sum(choice.count for choice in found.choices)
    rows.append(("run by others", "", "", str(changed)))
    return rows


def _count(value: float) -> str:
    return f"{int(value):,}"


def _seconds(seconds: float) -> str:
    return f"{seconds:.3f} s" if seconds >= 1 else f"{seconds * 1e3:.3f} ms"

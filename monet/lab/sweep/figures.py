"""The pictures of a sweep as SVG text. Needs matplotlib (extra ``plots``).

Text and axes have the colour of the page around them (``currentColor``), the ground is clear.
"""

from __future__ import annotations

import io
import math
import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from monet.lab.sweep.cells import Step
from monet.lab.sweep.gap_trace import GAPS_PERCENT
from monet.lab.sweep.palette import INK, Look, look
from monet.lab.sweep.rows import Row
from monet.lab.sweep.units import MemoryUnit
from monet.planner.ablation import MONET

_SIZE = (8.6, 4.6)
_STYLE: Any = {  # matplotlib names every setting in a literal type
    "svg.fonttype": "none",
    "svg.hashsalt": "monet",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": INK,
    "grid.alpha": 0.14,
    "grid.linewidth": 0.8,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "legend.frameon": False,
}
_FONTS = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', Helvetica, Arial, sans-serif"
_PERCENT = FuncFormatter(lambda value, _: f"{value:g} %".replace("-", "−"))


@dataclass(frozen=True, slots=True)
class Timeline:
    """Memory along a step: bytes at every run of an operator, the first ``forward`` in the forward pass."""

    variant: str
    name: str
    memory_bytes: Sequence[int]
    forward: int


def overhead_by_budget(rows: Sequence[Row], unit: MemoryUnit) -> str | None:
    """Overhead against budget, one line a variant; below, which cells are feasible. None without any plan."""
    planned = [row for row in rows if row.overhead is not None]
    if not planned:
        return None
    variants = _variants(rows)
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(_SIZE[0], _SIZE[1] + 0.21 * len(variants)), layout="constrained")
        axes, strip = figure.subplots(
            2, 1, sharex=True, gridspec_kw={"height_ratios": [_SIZE[1] - 0.6, 0.3 + 0.21 * len(variants)]}
        )
        for variant in variants:
            mine = sorted((row for row in planned if row.variant == variant), key=lambda row: row.budget_bytes)
            _line(axes, variant, [unit.of(row.budget_bytes) for row in mine], [_percent(row.overhead) for row in mine])
        axes.axhline(0, color=INK, linewidth=0.8, alpha=0.5)
        axes.set_ylabel("step time above keeping everything")
        axes.yaxis.set_major_formatter(_PERCENT)
        _feasibility(strip, rows, variants, unit)
        strip.set_xlabel(f"budget ({unit.name})")
        budgets = sorted({unit.of(row.budget_bytes) for row in rows})
        if len(budgets) <= 12:
            strip.set_xticks(budgets, [f"{budget:.4g}" for budget in budgets])
        if len(budgets) == 1:
            strip.set_xlim(budgets[0] * 0.9, budgets[0] * 1.1)
        _legend(figure, axes)
        return _svg(figure, "overhead", "Overhead against budget for each variant")


def memory_by_overhead(rows: Sequence[Row]) -> str | None:
    """Peak memory, as a share of keeping everything, against overhead. None without any plan."""
    planned = [row for row in rows if row.overhead is not None and row.memory_ratio is not None]
    if not planned:
        return None
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=_SIZE, layout="constrained")
        axes = figure.subplots()
        for variant in _variants(rows):
            mine = sorted((row for row in planned if row.variant == variant), key=lambda row: row.budget_bytes)
            points = dict.fromkeys((_percent(row.memory_ratio), _percent(row.overhead)) for row in mine)
            _line(axes, variant, [x for x, _ in points], [y for _, y in points])
        axes.axhline(0, color=INK, linewidth=0.8, alpha=0.5)
        axes.set_xlabel("peak memory, as a share of keeping everything")
        axes.set_ylabel("step time above keeping everything")
        axes.xaxis.set_major_formatter(_PERCENT)
        axes.yaxis.set_major_formatter(_PERCENT)
        _legend(figure, axes)
        return _svg(figure, "memory", "Memory ratio against overhead for each variant")


def time_to_gap(rows: Sequence[Row]) -> str | None:
    """Seconds until 10, 5, 2 and 1 % of the bound: a mark a cell, a line through each variant's medians.

    None where no cell reached any gap.
    """
    reached = {
        variant: {gap: found for gap in GAPS_PERCENT if (found := _times(rows, variant, gap))}
        for variant in _variants(rows)
    }
    reached = {variant: times for variant, times in reached.items() if times}
    if not reached:
        return None
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=_SIZE, layout="constrained")
        axes = figure.subplots()
        for place, (variant, times) in enumerate(reached.items()):
            # Side by side, so that variants do not hide each other.
            aside = (place - (len(reached) - 1) / 2) * min(0.09, 0.7 / len(reached))
            style = look(variant)
            for gap, seconds in times.items():
                x = GAPS_PERCENT.index(gap) + aside
                axes.plot([x] * len(seconds), seconds, linestyle="", marker=style.marker, markersize=4.5,
                          color=style.colour, alpha=0.55, markeredgewidth=0)  # fmt: skip
            _line(axes, variant, [GAPS_PERCENT.index(gap) + aside for gap in times],
                  [statistics.median(seconds) for seconds in times.values()])  # fmt: skip
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} s"))
        axes.yaxis.set_minor_formatter(NullFormatter())
        every = [seconds for times in reached.values() for found in times.values() for seconds in found]
        axes.set_ylim(_rounded(min(every) / 1.1, math.floor), _rounded(max(every) * 1.1, math.ceil))
        axes.set_xlim(-0.5, len(GAPS_PERCENT) - 0.5)
        axes.set_xticks(range(len(GAPS_PERCENT)), [f"{gap} %" for gap in GAPS_PERCENT])
        axes.grid(axis="x", visible=False)
        axes.set_xlabel("gap between the best plan and the bound")
        axes.set_ylabel("planning time (log scale)")
        _legend(figure, axes)
        return _svg(figure, "gaps", "Seconds of planning until a gap is reached")


def second_memory(rows: Sequence[Row], unit: MemoryUnit) -> str | None:
    """Slowdown, share of operands in fast memory, and bytes copied against the share of memory that is fast, for each
    variant that moves (AutoTM, figures 7 and 10). None without any."""
    moving = [row for row in rows if row.moved_bytes is not None and row.peak_bytes is not None]
    if not moving:
        return None
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(_SIZE[0], _SIZE[1] * 1.5), layout="constrained")
        panels = figure.subplots(3, 1, sharex=True)
        for variant in _variants(moving):
            mine = sorted((_fast_share(row), row) for row in moving if row.variant == variant)
            x = [100 * share for share, _ in mine]
            _line(panels[0], variant, x, [_percent(row.overhead) for _, row in mine])
            _line(panels[1], variant, x, [_percent(row.fast_operands) for _, row in mine])
            _line(panels[2], variant, x, [unit.of(row.copied_bytes or 0) for _, row in mine])
        for axes, label in zip(
            panels, ("step time above\nkeeping everything", "operands in\nfast memory", f"copied ({unit.name})"),
            strict=True,
        ):  # fmt: skip
            axes.set_ylabel(label)
        for axes in panels[:2]:
            axes.yaxis.set_major_formatter(_PERCENT)
        panels[2].xaxis.set_major_formatter(_PERCENT)
        panels[2].set_xlabel("fast memory, as a share of both")
        _legend(figure, panels[0])
        return _svg(figure, "second", "Slowdown, operands in fast memory and bytes copied for each variant that moves")


def _fast_share(row: Row) -> float:
    """Of what a plan holds in both memories, what the fast one holds at its peak."""
    fast = row.peak_bytes or 0
    return fast / (fast + (row.moved_bytes or 0)) if fast else 0.0


def memory_along_step(timelines: Sequence[Timeline], step: Step, budget_bytes: int, unit: MemoryUnit) -> str:
    """Memory at every run of an operator along the step (MONeT, Figure 5), one curve a timeline."""
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=_SIZE, layout="constrained")
        axes = figure.subplots()
        top = max(max(timeline.memory_bytes, default=0) for timeline in timelines)
        for timeline in timelines:
            style = look(timeline.variant)
            memory = [unit.of(count) for count in timeline.memory_bytes]
            axes.step(range(len(memory)), memory, where="post", color=style.colour, label=timeline.name,
                      linewidth=style.width * 0.8, linestyle="-")  # fmt: skip
            axes.fill_between(range(len(memory)), memory, step="post", color=style.colour, alpha=0.12, linewidth=0)
            if timeline.forward < len(memory):
                axes.plot([timeline.forward], [memory[timeline.forward]], marker=style.marker, color=style.colour,
                          markersize=8, linestyle="", markeredgewidth=0)  # fmt: skip
        axes.axhline(unit.of(budget_bytes), color=INK, linewidth=1, linestyle=(0, (4, 3)), label="budget")
        axes.axhline(unit.of(step.fixed_bytes), color=INK, linewidth=1, linestyle=(0, (1, 2)), alpha=0.7,
                     label="in memory throughout")  # fmt: skip
        axes.set_ylim(0, unit.of(max(top, budget_bytes)) * 1.05)
        axes.set_xlim(left=0)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel("operators run since the step began (mark: the backward pass begins)")
        axes.set_ylabel(f"in memory ({unit.name})")
        _legend(figure, axes)
        return _svg(figure, "step", "Memory along the step")


def standalone(svg: str) -> str:
    """The same picture as a file of its own: dark on white wherever it is shown."""
    return svg.replace("<svg ", '<svg style="background:#ffffff;color:#1b1f24" ', 1)


def _variants(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(row.variant for row in rows))


def _times(rows: Sequence[Row], variant: str, gap: int) -> list[float]:
    return [max(seconds, 1e-3) for row in rows if row.variant == variant and (seconds := row.to_gap_s(gap)) is not None]


def _rounded(seconds: float, to_whole: Callable[[float], int]) -> float:
    """The next 1, 2 or 5 times a power of ten, down or up as ``to_whole`` does."""
    power = 10.0 ** math.floor(math.log10(seconds))
    steps = (1.0, 2.0, 5.0, 10.0)
    if to_whole is math.floor:
        return power * max(step for step in steps if step * power <= seconds)
    return power * min(step for step in steps if step * power >= seconds)


def _percent(share: float | None) -> float:
    return math.nan if share is None else share * 100


def _line(axes: Axes, variant: str, x: Sequence[float], y: Sequence[float]) -> None:
    if not x:
        return
    style = look(variant)
    axes.plot(
        x, y, label=variant, color=style.colour, marker=style.marker, linestyle=style.dash, linewidth=style.width,
        markersize=6.5, markeredgewidth=0, zorder=3 if variant == MONET else 2,
    )  # fmt: skip


def _feasibility(axes: Axes, rows: Sequence[Row], variants: Sequence[str], unit: MemoryUnit) -> None:
    """One line a variant: its mark where there is a plan, a cross where none fits, an exclamation mark for errors."""
    for place, variant in enumerate(variants):
        style = look(variant)
        for row in (row for row in rows if row.variant == variant):
            shown = Look(style.colour, style.marker, "")
            if row.overhead is None:
                shown = Look(INK, "$!$" if row.status == "error" else "x", "")
            drawn = shown.marker in ("x", "$!$")  # by a line, not by an area
            axes.plot([unit.of(row.budget_bytes)], [place], marker=shown.marker, markersize=7 if drawn else 5.5,
                      color=shown.colour, linestyle="", markeredgewidth=1.2 if drawn else 0)  # fmt: skip
    axes.set_yticks(range(len(variants)), variants, fontsize=8.5)
    axes.set_ylim(len(variants) - 0.4, -0.6)
    axes.grid(axis="x", visible=False)
    axes.tick_params(axis="y", length=0)
    failed = "      ! failed" if any(row.status == "error" for row in rows) else ""
    axes.set_title(f"✕ no plan found{failed}", fontsize=9, loc="right")
    for side in ("left", "top", "right"):
        axes.spines[side].set_visible(False)


def _legend(figure: Figure, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", handlelength=3.2, labelspacing=0.7)


def _svg(figure: Figure, name: str, title: str) -> str:
    """SVG text without an XML header; ids start with ``name``, so that pictures can share a page."""
    FigureCanvasSVG(figure)
    out = io.StringIO()
    figure.savefig(out, format="svg", transparent=True, metadata={"Date": None})
    text = out.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", text)
    text = text.replace(INK, "currentColor").replace("'DejaVu Sans'", _FONTS)
    heading, _, rest = text.partition(">")
    heading = re.sub(r' (width|height)="[^"]*pt"', "", heading)
    return f'{heading} role="img" aria-label="{title}"><title>{title}</title>{rest}'

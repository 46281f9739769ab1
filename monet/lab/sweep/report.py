"""One page about a sweep: tables and pictures in a file that needs no other. Needs jinja2 (extra ``plots``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

import jinja2

from monet.lab.sweep.published_runs import Reference, side_by_side
from monet.lab.sweep.rows import Row
from monet.lab.sweep.tables import (
    Table,
    cell_table,
    gap_table,
    measured_table,
    missing_table,
    overhead_table,
    published_table,
)
from monet.lab.sweep.units import MemoryUnit, step_unit_of
from monet.planner.schedules import VARIANTS

TEMPLATE = "report.html.jinja"


@dataclass(frozen=True, slots=True)
class Section:
    """A heading with a picture, a table, or both; ``caption`` belongs to the first of them."""

    title: str
    caption: str
    picture: str | None = None
    table: Table | None = None
    paragraphs: tuple[str, ...] = ()


def render_report(
    rows: Sequence[Row],
    pictures: Mapping[str, str],
    unit: MemoryUnit,
    about: Mapping[str, Any],
    reference: Reference | None,
) -> str:
    """The page as HTML. ``pictures``: SVG text by name. ``about``: as in ``sweep.json``."""
    template = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True).from_string(
        resources.files("monet.lab.sweep").joinpath(TEMPLATE).read_text(encoding="utf-8")
    )
    first = rows[0]
    variants = list(dict.fromkeys(row.variant for row in rows))
    budgets = sorted({row.budget_bytes for row in rows})
    between = unit.show_budget(budgets[0])
    if len(budgets) > 1:
        between = f"{len(budgets)} budgets from {between} to {unit.show_budget(budgets[-1])}"
    return template.render(
        title=f"Budget sweep of {first.model}",
        lead=f"{_counted(len(variants), 'variant')} under {between}: what each promises to hold in memory at most, and "
        "what that costs in step time.",
        facts=[
            (
                "keeping everything",
                f"{step_unit_of(first.baseline_s).show(first.baseline_s)}, peak {unit.show(first.baseline_peak_bytes)}",
            ),
            ("in memory throughout", unit.show(first.fixed_bytes)),
            ("cells", _cells(rows)),
        ],
        failed=[
            (f"{row.variant} at {unit.show_budget(row.budget_bytes)}", row.message)
            for row in rows
            if row.status == "error"
        ],
        sections=[s for s in _sections(rows, pictures, unit, variants, reference) if s.picture or s.table],
        made=_made(about),
    )


def _sections(
    rows: Sequence[Row],
    pictures: Mapping[str, str],
    unit: MemoryUnit,
    variants: Sequence[str],
    reference: Reference | None,
) -> list[Section]:
    pairs = side_by_side(rows, reference) if reference is not None else ()
    scopes = " and ".join(sorted({row.bound_scope for row in rows if row.bound_scope})) or "no cell"
    descriptions = {name: variant.description for name, variant in VARIANTS.items()}
    return [
        Section(
            "Overhead against budget",
            "Predicted step time, relative to keeping everything with default implementations. Below zero: a faster "
            "implementation than the default was chosen. The marks below the axes say which budgets have a plan.",
            pictures.get("overhead"),
            overhead_table(rows, unit),
        ),
        Section(
            "Memory against overhead",
            "Peak of each plan as a share of the peak of keeping everything, and what it costs. Lower left is better.",
            pictures.get("memory"),
        ),
        Section(
            "Memory along the step",
            "What is in memory at every run of an operator: MONeT's plan under the smallest budget that it fits, and "
            "keeping everything. By exact replay of the plan; fragmentation is not part of it.",
            pictures.get("step"),
        ),
        Section(
            "Two memories",
            "Variants that move tensors to a second memory: step time, the share of what operators read and make that "
            "is in the fast memory, and bytes copied, against the fast memory's share of what a plan holds in both "
            "(AutoTM, figures 7 and 10).",
            pictures.get("second"),
        ),
        Section(
            "Time to a gap",
            f"Seconds of planning until the best plan was proven to be within a gap. The bounds hold for: {scopes}. "
            "Cells that were planned at the same time shared the processor. Marks: cells; lines: medians of the cells "
            "that came there; the others are left out.",
            pictures.get("gaps"),
            gap_table(rows, unit),
        ),
        Section(
            "Planned and measured",
            "One step after a warm-up step, each in a process of its own. Measured peak: all that PyTorch's allocator "
            "held.",
            table=measured_table(rows, unit),
        ),
        Section(
            "Beside the published figures",
            f"Published: {reference.source}" if reference is not None else "",
            table=published_table(pairs, unit),
        ),
        Section("All cells", "Step times are predicted from measured operators.", table=cell_table(rows, unit)),
        Section(
            "Cells without a plan or a measurement",
            "Where no plan fits, either that is proven or none was found in time.",
            table=missing_table(rows, unit),
        ),
        Section(
            "Variants",
            "What each is; docs/baselines.md tells more.",
            table=Table(("variant", "what it is"), tuple((v, descriptions.get(v, "")) for v in variants), (0, 1)),
        ),
    ]


def _cells(rows: Sequence[Row]) -> str:
    infeasible = sum(row.status == "infeasible" for row in rows)
    failed = sum(row.status == "error" for row in rows)
    parts = [f"{len(rows)}, of them {len(rows) - infeasible - failed} planned", f"{infeasible} infeasible"]
    return ", ".join([*parts, *([f"{failed} failed"] if failed else [])])


def _made(about: Mapping[str, Any]) -> list[tuple[str, str]]:
    options = {key: value for key, value in about["options"].items() if value is not None}
    lines = [
        ("source", str(about["source"])),
        ("options", ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in options.items())),
    ]
    for made in about["planned_on"]:
        lines.append((f"planned on ({_counted(made['cells'], 'cell')})", _machine(made)))
    return [*lines, ("page made on", _machine({**about["machine"], "versions": about["versions"]}))]


def _machine(about: Mapping[str, Any]) -> str:
    parts = [about["cpu"] or "unknown processor"]
    if "cores" in about:
        parts += [f"{about['cores']} cores", f"{about['memory_bytes'] / 2**30:.1f} GiB", about["system"]]
    return ", ".join([*parts, *(f"{name} {version}" for name, version in about["versions"].items())])


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"

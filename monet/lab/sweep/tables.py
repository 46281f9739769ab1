"""The tables of a sweep, as text in cells; the page and the terminal show them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from monet.lab.sweep.gap_trace import GAPS_PERCENT
from monet.lab.sweep.published_runs import Published
from monet.lab.sweep.rows import Row
from monet.lab.sweep.units import MemoryUnit, show_duration, show_percent, step_unit_of


@dataclass(frozen=True, slots=True)
class Table:
    """``texts``: columns of words, which stand to the left."""

    heads: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]
    texts: tuple[int, ...] = (0,)


def overhead_table(rows: Sequence[Row], unit: MemoryUnit) -> Table:
    """Variants by budgets: overhead, or why there is none."""
    budgets = sorted({row.budget_bytes for row in rows})
    found = {(row.variant, row.budget_bytes): row for row in rows}
    return Table(
        ("variant", *(unit.show_budget(budget) for budget in budgets)),
        tuple(
            (variant, *(_overhead(found[variant, budget]) for budget in budgets))
            for variant in dict.fromkeys(row.variant for row in rows)
        ),
    )


def cell_table(rows: Sequence[Row], unit: MemoryUnit) -> Table:
    """One line a cell: what was planned."""
    step = step_unit_of(rows[0].baseline_s)
    heads = ("variant", "budget", "status", "step", "overhead", "bound", "gap", "bound holds for", "peak",
             "of keeping all", "arena", "smallest known", "built in", "solved in")  # fmt: skip
    lines = tuple(
        (
            row.variant,
            unit.show_budget(row.budget_bytes),
            row.status.replace("_", " "),
            step.show(row.objective_s),
            show_percent(row.overhead, signed=True),
            step.show(row.bound_s),
            show_percent(row.gap),
            row.bound_scope or "–",
            unit.show(row.peak_bytes),
            show_percent(row.memory_ratio),
            unit.show(row.arena_bytes),
            unit.show(row.smallest_bytes),
            show_duration(row.build_s),
            show_duration(row.solve_s),
        )
        for row in rows
    )
    used = [i for i in range(len(heads)) if i < 3 or any(line[i] != "–" for line in lines)]
    return Table(
        tuple(heads[i] for i in used),
        tuple(tuple(line[i] for i in used) for line in lines),
        tuple(place for place, i in enumerate(used) if heads[i] in ("variant", "status", "bound holds for")),
    )


def measured_table(rows: Sequence[Row], unit: MemoryUnit) -> Table | None:
    """Planned and measured side by side, eager's step first; None where nothing was measured."""
    measured = [row for row in rows if row.measured_step_s is not None or row.measured_allocator_peak_bytes is not None]
    if not measured:
        return None
    first = measured[0]
    step = step_unit_of(first.baseline_s)
    lines = [
        ("eager", "–", step.show(first.baseline_s), step.show(first.measured_eager_step_s),
         _ratio(first.measured_eager_step_s, first.baseline_s), unit.show(first.baseline_peak_bytes),
         unit.show(first.measured_eager_allocator_peak_bytes), "–",
         unit.show(first.measured_eager_resident_peak_bytes))
    ]  # fmt: skip
    for row in measured:
        excess = (
            None
            if row.measured_allocator_peak_bytes is None or row.peak_bytes is None
            else int(row.measured_allocator_peak_bytes) - row.peak_bytes
        )
        lines.append(
            (row.variant, unit.show_budget(row.budget_bytes), step.show(row.objective_s),
             step.show(row.measured_step_s), _ratio(row.measured_step_s, row.objective_s), unit.show(row.peak_bytes),
             unit.show(row.measured_allocator_peak_bytes), "–" if excess is None else f"{excess:+,}".replace("-", "−"),
             unit.show(row.measured_resident_peak_bytes))
        )  # fmt: skip
    heads = ("variant", "budget", "step planned", "step measured", "measured : planned", "peak promised",
             "peak measured", "above promise (bytes)", "resident set")  # fmt: skip
    return Table(heads, tuple(lines))


def gap_table(rows: Sequence[Row], unit: MemoryUnit) -> Table | None:
    """Seconds to each gap, a line a cell that a solver planned; None where no solver did."""
    solved = [row for row in rows if row.status in ("optimal", "time_limit")]
    if not solved:
        return None
    return Table(
        (
            "variant",
            "budget",
            "bound holds for",
            *(f"to {gap} %" for gap in GAPS_PERCENT),
            "gap at the end",
            "planned in",
        ),
        tuple(
            (
                row.variant,
                unit.show_budget(row.budget_bytes),
                row.bound_scope or "–",
                *(show_duration(row.to_gap_s(gap)) for gap in GAPS_PERCENT),
                show_percent(row.gap),
                show_duration((row.build_s or 0.0) + (row.solve_s or 0.0)),
            )
            for row in solved
        ),
        (0, 2),
    )


def missing_table(rows: Sequence[Row], unit: MemoryUnit) -> Table | None:
    """Infeasible cells, and plans that could not be measured, and why; None where there is none."""
    found = [row for row in rows if row.status == "infeasible" or row.message]
    if not found:
        return None
    lines = ((row.variant, unit.show_budget(row.budget_bytes), row.message or "–") for row in found)
    return Table(("variant", "budget", "why"), tuple(lines), (0, 2))


def published_table(pairs: Sequence[tuple[Row, Published]], unit: MemoryUnit) -> Table | None:
    """The authors' figures and these; None where no cell has a published one."""
    if not pairs:
        return None
    step = step_unit_of(pairs[0][0].baseline_s)
    return Table(
        ("variant", "budget", "step, published", "step, here", "here : published", "bound, published", "bound, here",
         "solved in, published", "solved in, here"),
        tuple(
            (
                row.variant,
                unit.show_budget(row.budget_bytes),
                "infeasible" if theirs.infeasible else step.show(theirs.objective_s),
                "infeasible" if row.status == "infeasible" else step.show(row.objective_s),
                _ratio(row.objective_s, theirs.objective_s, digits=4),
                step.show(theirs.bound_s),
                step.show(row.bound_s),
                show_duration(theirs.solve_s),
                "–" if row.solve_s is None else show_duration((row.build_s or 0.0) + row.solve_s),
            )
            for row, theirs in pairs
        ),
    )  # fmt: skip


def aligned(table: Table) -> str:
    """The table for a terminal, without a final newline."""
    lines = [table.heads, *table.lines]
    widths = [max(len(line[i]) for line in lines) for i in range(len(table.heads))]
    return "\n".join(
        "  ".join(
            text.ljust(width) if i in table.texts else text.rjust(width)
            for i, (text, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def _overhead(row: Row) -> str:
    return row.status if row.overhead is None else show_percent(row.overhead, signed=True)


def _ratio(above: float | int | None, below: float | int | None, digits: int = 2) -> str:
    return "–" if above is None or not below else f"{above / below:.{digits}f}"

"""The result of a sweep as data: one row a cell, the same in ``sweep.csv`` and in ``sweep.json``."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from monet.base.files.atomic import write_text_atomically
from monet.lab.sweep.cells import Cell, Outcome, Step

Measured = Mapping[str, float | int | None]
"""``step_s``, ``allocator_peak_bytes`` and ``resident_peak_bytes``, None where it could not be taken."""


@dataclass(frozen=True, slots=True)
class Row:
    """One cell. None where there is no such figure; its column in the CSV file is then empty.

    ``overhead``: objective / baseline - 1, where the baseline keeps everything and runs defaults.
    ``memory_ratio``: peak / the baseline's peak. ``gap``: (objective - bound) / objective, a fraction;
    it holds for ``bound_scope``. ``to_gap_10_s``: seconds until the gap was 10 %. ``moved_bytes`` to ``fast_operands``:
    as in ``Outcome``.
    """

    model: str
    variant: str
    budget_bytes: int
    status: str
    objective_s: float | None
    bound_s: float | None
    gap: float | None
    bound_scope: str | None
    baseline_s: float
    overhead: float | None
    peak_bytes: int | None
    baseline_peak_bytes: int
    memory_ratio: float | None
    arena_bytes: int | None
    fixed_bytes: int
    smallest_bytes: int | None
    build_s: float | None
    solve_s: float | None
    to_gap_10_s: float | None
    to_gap_5_s: float | None
    to_gap_2_s: float | None
    to_gap_1_s: float | None
    moved_bytes: int | None
    copied_bytes: int | None
    waited_s: float | None
    fast_operands: float | None
    measured_step_s: float | int | None
    measured_allocator_peak_bytes: float | int | None
    measured_resident_peak_bytes: float | int | None
    measured_eager_step_s: float | int | None
    measured_eager_allocator_peak_bytes: float | int | None
    measured_eager_resident_peak_bytes: float | int | None
    message: str | None

    def to_gap_s(self, percent: int) -> float | None:
        """Seconds to a gap of 10, 5, 2 or 1 percent."""
        return {10: self.to_gap_10_s, 5: self.to_gap_5_s, 2: self.to_gap_2_s, 1: self.to_gap_1_s}[percent]


def make_row(
    step: Step,
    cell: Cell,
    outcome: Outcome,
    planned: Measured | None = None,
    eager: Measured | None = None,
    unmeasured: str | None = None,
) -> Row:
    """The row of ``cell``; ``planned`` and ``eager``: what a measurement of both gave, ``unmeasured`` why none did."""
    planned, eager = planned or {}, eager or {}
    objective_s, peak_bytes = outcome.objective_s, outcome.peak_bytes
    return Row(
        model=step.name,
        variant=cell.variant,
        budget_bytes=cell.budget_bytes,
        status=outcome.status,
        objective_s=objective_s,
        bound_s=outcome.bound_s,
        gap=outcome.gap,
        bound_scope=outcome.bound_scope,
        baseline_s=step.baseline_s,
        overhead=None if objective_s is None or not step.baseline_s else objective_s / step.baseline_s - 1.0,
        peak_bytes=peak_bytes,
        baseline_peak_bytes=step.baseline_peak_bytes,
        memory_ratio=None if peak_bytes is None else peak_bytes / step.baseline_peak_bytes,
        arena_bytes=outcome.arena_bytes,
        fixed_bytes=step.fixed_bytes,
        smallest_bytes=outcome.smallest_bytes,
        build_s=outcome.build_s,
        solve_s=outcome.solve_s,
        to_gap_10_s=outcome.to_gap_s.get(10),
        to_gap_5_s=outcome.to_gap_s.get(5),
        to_gap_2_s=outcome.to_gap_s.get(2),
        to_gap_1_s=outcome.to_gap_s.get(1),
        moved_bytes=outcome.moved_bytes,
        copied_bytes=outcome.copied_bytes,
        waited_s=outcome.waited_s,
        fast_operands=outcome.fast_operands,
        measured_step_s=planned.get("step_s"),
        measured_allocator_peak_bytes=planned.get("allocator_peak_bytes"),
        measured_resident_peak_bytes=planned.get("resident_peak_bytes"),
        measured_eager_step_s=eager.get("step_s"),
        measured_eager_allocator_peak_bytes=eager.get("allocator_peak_bytes"),
        measured_eager_resident_peak_bytes=eager.get("resident_peak_bytes"),
        message=outcome.message or unmeasured,
    )


def write_csv(path: Path, rows: Sequence[Row]) -> None:
    """One line a row under a line of names; numbers in full, so that reading them gives the same ones."""
    text = io.StringIO()
    writer = csv.DictWriter(text, [f.name for f in fields(Row)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(row) for row in rows)
    write_text_atomically(path, text.getvalue())


def write_rows_json(path: Path, rows: Sequence[Row], about: Mapping[str, Any]) -> None:
    """The same rows under ``rows``, after ``about``: options, machine, versions."""
    content = {**about, "rows": [asdict(row) for row in rows]}
    write_text_atomically(path, json.dumps(content, indent=2) + "\n")

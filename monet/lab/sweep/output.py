"""Everything that a sweep leaves in its folder beside the finished cells."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from monet.base.files.atomic import write_text_atomically
from monet.lab.experiments.provenance import machine, versions
from monet.lab.sweep.published_runs import read_reference
from monet.lab.sweep.rows import write_csv, write_rows_json
from monet.lab.sweep.run import Sweep
from monet.lab.sweep.source import FORMAT, Options, Source
from monet.lab.sweep.units import MemoryUnit, unit_of
from monet.planner.ablation import MONET

logger = logging.getLogger(__name__)

PICTURES = {
    "overhead": "overhead-by-budget.svg",
    "memory": "memory-by-overhead.svg",
    "gaps": "time-to-gap.svg",
    "step": "memory-along-step.svg",
    "second": "second-memory.svg",
}
REPORT = "report.html"


def write_output(sweep: Sweep, source: Source, options: Options, folder: Path) -> tuple[Path, ...]:
    """``sweep.csv``, ``sweep.json`` and, with the extra ``plots``, pictures and ``report.html``; returns the paths."""
    about = _about(sweep, source, options)
    tables = (folder / "sweep.csv", folder / "sweep.json")
    write_csv(tables[0], sweep.rows)
    write_rows_json(tables[1], sweep.rows, about)
    try:
        from monet.lab.sweep import figures, report
    except ImportError as error:
        logger.warning("no pictures and no report: %s; pip install matplotlib jinja2", error)
        return tables
    unit = unit_of(cell.budget_bytes for cell in sweep.cells)
    made = {
        "overhead": figures.overhead_by_budget(sweep.rows, unit),
        "memory": figures.memory_by_overhead(sweep.rows),
        "gaps": figures.time_to_gap(sweep.rows),
        "step": _along_step(sweep, unit),
        "second": figures.second_memory(sweep.rows, unit),
    }
    pictures = {name: svg for name, svg in made.items() if svg is not None}
    for name, svg in pictures.items():
        write_text_atomically(folder / PICTURES[name], figures.standalone(svg))
    reference = read_reference(source.profile) if source.profile is not None else None
    page = report.render_report(sweep.rows, pictures, unit, about, reference)
    write_text_atomically(folder / REPORT, page)
    return (*tables, *(folder / PICTURES[name] for name in pictures), folder / REPORT)


def _about(sweep: Sweep, source: Source, options: Options) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "model": sweep.step.name,
        "source": source.name if source.config is not None else str(source.profile),
        "source_sha256": source.digest,
        "options": asdict(options),
        "machine": machine(),
        "versions": versions(),
        "planned_on": _planned_on(sweep),
    }


def _planned_on(sweep: Sweep) -> list[Mapping[str, Any]]:
    """Processors and versions that cells were planned with, and how many each: a sweep may go on elsewhere."""
    counts: dict[str, int] = {}
    for outcome in sweep.outcomes.values():
        if outcome.made_on:
            text = json.dumps(dict(outcome.made_on), sort_keys=True)
            counts[text] = counts.get(text, 0) + 1
    return [{**json.loads(text), "cells": count} for text, count in counts.items()]


def _along_step(sweep: Sweep, unit: MemoryUnit) -> str | None:
    """The plan under the smallest budget that has one, MONeT's if there is one, beside keeping everything."""
    from monet.lab.sweep.figures import Timeline, memory_along_step

    planned = [cell for cell in sweep.cells if sweep.outcomes[cell].memory_bytes]
    chosen = [cell for cell in planned if cell.variant == MONET] or planned
    if not chosen:
        return None
    cell = min(chosen, key=lambda cell: cell.budget_bytes)
    outcome, step = sweep.outcomes[cell], sweep.step
    timelines = [Timeline("pytorch", "keeping everything", step.memory_bytes, step.forward_moments)]
    if cell.variant != "pytorch":
        timelines.append(Timeline(cell.variant, f"{cell.variant} at {unit.show_budget(cell.budget_bytes)}",
                                  outcome.memory_bytes, outcome.forward_moments))  # fmt: skip
    return memory_along_step(timelines, step, cell.budget_bytes, unit)

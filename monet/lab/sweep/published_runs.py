"""Published results of MONeT's authors, read where they lie beside a profile; none of them is in this project."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from monet.lab.sweep.rows import Row
from monet.planner.ablation import MONET

logger = logging.getLogger(__name__)

GIB = 2**30

OUR_NAMES = {
    "all": MONET,
    "conv": "conv",
    "output": "output-activated",
    "intermediate": "intermediate-activated",
    "inplace_only": "in-place",
    "checkmate": "checkmate-d",
}
"""Their names of variants, and ours."""


@dataclass(frozen=True, slots=True)
class Published:
    """One published run. None where no plan, or no bound, was found; ``infeasible``: proven to be so."""

    variant: str
    budget_bytes: int
    objective_s: float | None
    bound_s: float | None
    solve_s: float | None
    infeasible: bool


@dataclass(frozen=True, slots=True)
class Reference:
    """``source`` says who ran it, with what and for how long."""

    source: str
    runs: tuple[Published, ...]


def read_reference(profile: Path) -> Reference | None:
    """``reference.json`` beside ``profile``, its runs of that model; None where there is none that can be read."""
    path = profile.parent / "reference.json"
    if not path.is_file():
        return None
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        model = json.loads(profile.read_text(encoding="utf-8"))["model"]
        runs = document["runs"].get(model, ())
        return Reference(str(document.get("source", path)), tuple(_run(run) for run in runs))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        logger.warning("%s holds no published results that can be read: %s: %s", path, type(error).__name__, error)
        return None


def _run(run: dict[str, object]) -> Published:
    return Published(
        variant=OUR_NAMES.get(str(run["variant"]), str(run["variant"])),
        budget_bytes=round(float(str(run["budget_gib"])) * GIB),
        objective_s=_seconds(run.get("objective_ms"), 1e3),
        bound_s=_seconds(run.get("bound_ms"), 1e3),
        solve_s=_seconds(run.get("seconds"), 1.0),
        infeasible=bool(run.get("infeasible")),
    )


def _seconds(value: object, units_a_second: float) -> float | None:
    return None if value is None else float(str(value)) / units_a_second


def side_by_side(rows: Sequence[Row], reference: Reference) -> tuple[tuple[Row, Published], ...]:
    """Rows and the published run of the same variant and budget, in the rows' order."""
    known = {(run.variant, run.budget_bytes): run for run in reference.runs}
    return tuple((row, known[at]) for row in rows if (at := (row.variant, row.budget_bytes)) in known)

"""What runs in a worker of a cluster: one cell after the other, of a step that another machine has prepared."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from monet.errors import MonetError
from monet.lab.sweep.cells import Cell, Outcome, Step
from monet.lab.sweep.source import Options, Source
from monet.planner.cores import usable_cores

if TYPE_CHECKING:
    from monet.lab.sweep.cell_planners import CellPlanner, Costs

PACKAGES = ("monet-planner", "torch")
"""These must be of one version everywhere."""


@dataclass(frozen=True, slots=True)
class Job:
    """``name``: of this run of the sweep. ``step``: what a worker's own step must come to, with the ``costs`` of the
    machine that it is for. ``threads``: of torch there; None for a published profile."""

    name: str
    source: Source
    options: Options
    step: Step
    costs: Costs
    threads: int | None
    versions: dict[str, str]


_one_at_a_time = threading.Lock()
"""A solve takes the worker's cores, and torch's settings are the process's."""
_open: dict[str, CellPlanner] = {}
"""The planner of the last job."""


def versions_here() -> dict[str, str]:
    """Of ``PACKAGES``, as they are installed."""
    return {package: version(package) for package in PACKAGES}


def given(job: Job) -> Job:
    """The job, as a task's result."""
    return job


def plan_remotely(job: Job, cell: Cell) -> tuple[Outcome, str | None]:
    """The outcome of ``cell`` and the text of its plan file, None where there is none."""
    from monet.lab.sweep.cell_planners import plan_cell

    with _one_at_a_time, TemporaryDirectory(prefix="monet-cell-") as folder:
        try:
            planner = _planner(job)
        except MonetError as error:
            return Outcome("error", job.step.problem, str(error)), None
        path = Path(folder) / "cell.plan.json"
        outcome = plan_cell(planner, cell, path)
        return outcome, path.read_text(encoding="utf-8") if path.is_file() else None


def _planner(job: Job) -> CellPlanner:
    """Of the job's step. Raises ``MonetError`` where this worker cannot make it, or makes another."""
    from monet.lab.sweep.cell_planners import open_planner

    here = versions_here()
    if here != job.versions:
        raise MonetError(f"a worker has {here}, and the sweep is of {job.versions}: install the same everywhere")
    if job.threads is not None:
        import torch

        torch.set_num_threads(job.threads)  # of this thread, too
    if job.name not in _open:
        _open.clear()
        _open[job.name] = open_planner(job.source, job.options, False, _cores(), job.costs)
    planner = _open[job.name]
    if planner.step.problem != job.step.problem:
        raise MonetError(
            "a worker makes another step of the same configuration: its code of the model, or its compiler, is another"
        )
    return planner


def _cores() -> int:
    """For one solve: Dask's worker says how many threads it was given."""
    from distributed import get_worker

    return max(1, min(int(get_worker().state.nthreads), usable_cores()))

"""Runs a sweep: plans what is not there yet, keeps what is done, measures if asked to."""

from __future__ import annotations

import hashlib
import logging
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from monet.base.amounts import ByteBudget
from monet.errors import MonetError
from monet.lab.experiments.provenance import machine, versions
from monet.lab.sweep.cells import Cell, Outcome, Step, outcome_content, outcome_of, step_content, step_of
from monet.lab.sweep.cluster import ClusterWorkers
from monet.lab.sweep.records import load_record, save_record
from monet.lab.sweep.rows import Measured, Row, make_row
from monet.lab.sweep.source import Options, Source, cell_key, source_key
from monet.lab.sweep.workers import Workers

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Sweep:
    """A finished sweep. ``computed``: how many cells this run planned; the others were there already."""

    step: Step
    cells: tuple[Cell, ...]
    outcomes: Mapping[Cell, Outcome]
    rows: tuple[Row, ...]
    computed: int


class SweepRun:
    """One run of a sweep in ``folder``, which is made if it is not there.

    ``folder/cells`` has one file a finished cell, ``folder/plans`` the plan files of a model's cells,
    ``folder/measured`` what was measured. A file that is damaged or belongs to other inputs is made again.
    """

    def __init__(
        self,
        source: Source,
        options: Options,
        folder: Path,
        *,
        jobs: int,
        progress: bool,
        cluster: str | None = None,
    ) -> None:
        """``jobs``: cells at a time, here; ``cluster``: the address of a Dask scheduler whose workers plan them."""
        self.source, self.options, self.jobs, self.progress = source, options, jobs, progress
        self.cluster = cluster
        self.folder = folder
        self.plans = folder / "plans"
        self._key = source_key(source, options, {**machine(), **versions()})
        self._cells = folder / "cells"
        self._step_path = self._cells / f"step-{self._key[:12]}.json"
        self.finished: dict[Cell, Outcome] = {}
        for path in (folder, self._cells, *((self.plans,) if source.config is not None else ())):
            path.mkdir(parents=True, exist_ok=True)

    def run(self, variants: Sequence[str], budgets: Sequence[ByteBudget], *, measure: bool = False) -> Sweep:
        """Plans every variant under every budget. Errors in single cells are outcomes (``status`` ``error``).

        Raises ``MonetError`` if the step cannot be prepared, ``KeyboardInterrupt`` after ending all children;
        cells that are finished are kept.
        """
        known = step = self._known_step()
        cells: tuple[Cell, ...] = ()
        missing: tuple[Cell, ...] = ()
        if known is not None:
            cells = _cells(variants, budgets, known)
            missing = self._missing(cells, known)
        computed = 0
        if step is None or missing:
            with self._workers() as workers:
                step = workers.prepare()
                if step != known:
                    if known is not None:
                        logger.info(
                            "operators cost something else now: cells planned for the old costs are planned again"
                        )
                    save_record(self._step_path, self._key, step_content(step))
                    cells = _cells(variants, budgets, step)
                    missing = self._missing(cells, step)
                computed = len(missing)
                self._plan(workers, missing)
        unmeasured: dict[Cell, str] = {}
        measured = self._measure(cells, unmeasured) if measure else {}
        eager = measured.get(None)
        rows = tuple(
            make_row(step, cell, self.finished[cell], measured.get(cell), eager, unmeasured.get(cell)) for cell in cells
        )
        return Sweep(step, cells, {cell: self.finished[cell] for cell in cells}, rows, computed)

    def _workers(self) -> Workers | ClusterWorkers:
        if self.cluster is None:
            return Workers(self.source, self.options, self.jobs, self.progress)
        return ClusterWorkers(self.source, self.options, self.cluster, self.progress)

    def _known_step(self) -> Step | None:
        content = load_record(self._step_path, self._key)
        try:
            return None if content is None else step_of(content)
        except TypeError:
            return None

    def _missing(self, cells: Sequence[Cell], step: Step) -> tuple[Cell, ...]:
        """Loads what is finished; returns what is not."""
        self.finished = {}
        for cell in cells:
            outcome = self._load(cell)
            if outcome is not None and outcome.problem == step.problem:
                self.finished[cell] = outcome
        return tuple(cell for cell in cells if cell not in self.finished)

    def _load(self, cell: Cell) -> Outcome | None:
        content = load_record(self._cell_path(cell), cell_key(self._key, self.options, cell))
        try:
            outcome = None if content is None else outcome_of(content)
        except TypeError:
            return None
        if outcome is not None and outcome.arena_bytes is not None and not self._plan_path(cell).is_file():
            return None
        return outcome

    def _cell_path(self, cell: Cell) -> Path:
        return self._cells / f"{self._stem(cell)}.json"

    def _plan_path(self, cell: Cell) -> Path:
        return self.plans / f"{self._stem(cell)}.plan.json"

    def _stem(self, cell: Cell) -> str:
        key = cell_key(self._key, self.options, cell)
        return f"{cell.variant}-{cell.budget_bytes}-{key[:12]}"

    def _plan(self, workers: Workers | ClusterWorkers, missing: Sequence[Cell]) -> None:
        if len(self.finished):
            logger.info("%d cells are finished already, %d to plan", len(self.finished), len(missing))
        with tqdm(total=len(missing), desc="planning", unit="cell", disable=not self.progress) as bar:
            for cell, outcome in workers.plan({cell: self._plan_path(cell) for cell in missing}):
                self.finished[cell] = outcome
                if outcome.status == "error":
                    # Not kept: the next run tries again. It is said at the end, too.
                    if self.progress:
                        tqdm.write(f"monet: {cell}: {outcome.message}", file=sys.stderr)
                else:
                    key = cell_key(self._key, self.options, cell)
                    save_record(self._cell_path(cell), key, outcome_content(outcome))
                bar.update()

    def _measure(self, cells: Sequence[Cell], unmeasured: dict[Cell, str]) -> dict[Cell | None, Measured]:
        """Measured steps by cell, eager's under None; one process at a time, nothing else running.

        ``unmeasured`` gets the cells whose plans do not run, and why.
        """
        from monet.lab.experiments.measured_steps import measure_config

        config = self.source.config
        assert config is not None
        folder = self.folder / "measured"
        folder.mkdir(exist_ok=True)
        eager_path = folder / "eager.json"
        found: dict[Cell | None, Measured] = {}
        eager = load_record(eager_path, self._key)
        if eager is not None:
            found[None] = eager
        planned = [cell for cell in cells if self.finished[cell].planned]
        for cell in tqdm(planned, desc="measuring", unit="plan", disable=not self.progress):
            plan, path = self._plan_path(cell), folder / f"{self._stem(cell)}.json"
            key = hashlib.sha256(plan.read_bytes()).hexdigest()
            known = load_record(path, key)
            if known is not None and None in found:
                found[cell] = known
                continue
            try:
                results = measure_config(config, plan, eager=None not in found, progress=False)
            except MonetError as error:  # Gist's sparse storage may not fit what is really in a tensor
                tqdm.write(f"monet: {cell} cannot be measured: {error}", file=sys.stderr)
                unmeasured[cell] = f"planned, but cannot be measured: {error}"
                continue
            found[cell] = results["planned"]
            save_record(path, key, results["planned"])
            if "eager" in results:
                found[None] = results["eager"]
                save_record(eager_path, self._key, results["eager"])
        return found


def _cells(variants: Sequence[str], budgets: Sequence[ByteBudget], step: Step) -> tuple[Cell, ...]:
    """Variant by variant, budgets rising; budgets that come to the same bytes once."""
    amounts = sorted({budget.resolve(step.baseline_peak_bytes) for budget in budgets})
    return tuple(Cell(variant, amount) for variant in variants for amount in amounts)

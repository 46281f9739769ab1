"""What a search and its worker work on together: a program, its solver, and the best plan."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from monet.planner.construction.copies import with_copies
from monet.planner.program.channel_rows import add_late_rows
from monet.planner.program.program import Program
from monet.planner.program.readback import read_point, write_point
from monet.planner.search.incumbent import Incumbent
from monet.planner.solvers.model import Model, Solve
from monet.planner.solvers.rows import Floats

log = logging.getLogger(__name__)
TOLERANCE = 1e-6
"""By which a point may miss a row."""


@dataclass(frozen=True, slots=True)
class Formulation:
    """A program, and the incumbent as a point of it. Plans are offered from either thread; ``gap`` is relative.
    ``seeds``: of the worker's rounds; one that is begun again frees other neighbourhoods than before. Rows are added to
    the program by either thread, one at a time."""

    program: Program
    solve: Solve
    incumbent: Incumbent
    gap: float
    seeds: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def model(self) -> Model:
        """The program with nothing fixed."""
        with self._lock:
            arrays = self.program.rows.arrays()
        return Model(arrays, np.zeros(len(arrays.cost)), np.ones(len(arrays.cost)))

    def cut(self, x: Floats) -> Model | None:
        """The program with the rows that a point breaks, if it takes the channel to a second memory for faster than it
        is; None if it does not."""
        with self._lock:
            added = add_late_rows(self.program, x)
        return self.model() if added else None

    def point(self, model: Model) -> Floats | None:
        """The best plan as a point of the program, if it is one."""
        known = self.incumbent.both()
        if known is None:
            return None
        runs, cost = known
        given = self.program.given
        if given is not None:
            runs = given.without(runs)
        x = write_point(self.program, runs)
        if x is not None and self.program.peak is not None:
            x[self.program.peak] = min(1.0, cost.peak_bytes / self.program.budget_bytes)
        return x if x is not None and model.violation(x) <= TOLERANCE else None

    def around(self, model: Model) -> Model | None:
        """The program with the best plan as the point to start from; None where it is no point of it. Memory rows count
        more than there is before a window begins: those that the plan breaks for that are as wide as it needs, so that
        its neighbourhoods have points, of which a replay tells whether they fit."""
        x = self.point(model)
        if x is not None:
            return replace(model, start=x)
        known = self.incumbent.both()
        if known is None or self.program.peak is not None or self.program.moves is not None:
            return None
        given = self.program.given
        x = write_point(self.program, known[0] if given is None else given.without(known[0]))
        if x is None:
            return None
        upper = model.arrays.upper.copy()
        rows = self.program.memory
        upper[rows] = np.maximum(upper[rows], model.activity(x)[rows])
        wide = replace(model, arrays=replace(model.arrays, upper=upper), start=x)
        return wide if wide.violation(x) <= TOLERANCE else None

    def offer(self, x: Floats | None) -> bool:
        """Replays a solver's point; returns whether it fits. One over the limit, by the solver's tolerance or as memory
        rows are wider than the budget (``around``), is dropped."""
        if x is None:
            return False
        runs = read_point(self.program, x)
        if self.program.given is not None:
            runs = self.program.given.added_to(runs)
        if not self.incumbent.offer(runs):
            log.info("a point of the solver exceeds the limit when replayed and is dropped")
            return False
        if self.program.moves is not None:  # at times of few to choose from
            self.incumbent.offer(with_copies(self.incumbent.problem, runs, self.program.budget_bytes))
        return True

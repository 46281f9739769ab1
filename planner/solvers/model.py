"""What a 0-1 solver is given and gives back: ``Model``, ``Limits`` and ``Tick``; ``Answer``.

An adapter (``Solve``) takes a ``Model`` and ``Limits`` and returns an ``Answer``, all in the model's units. It keeps
its library's status names to itself, and turns its failures into ``SolverError``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.sparse import csr_array

from monet.planner.solvers.rows import Arrays, Floats

Status = Literal["optimal", "time_limit", "stopped", "interrupted", "infeasible"]


@dataclass(frozen=True, slots=True)
class Model:
    """min cost·x over the points of ``arrays`` with ``fixed_lower`` ≤ x ≤ ``fixed_upper``, both in [0, 1].

    ``start`` is a feasible point to begin with, or None. ``basis``: of an ``Answer`` to a linear program that differs
    from this one in its limits only; an adapter may make use of it.
    """

    arrays: Arrays
    fixed_lower: Floats
    fixed_upper: Floats
    start: Floats | None = None
    basis: object | None = None

    def activity(self, x: Floats) -> Floats:
        """Of every row."""
        arrays = self.arrays
        shape = (len(arrays.lower), len(arrays.cost))
        found: Floats = csr_array((arrays.value, arrays.column_index, arrays.row_start), shape=shape) @ x
        return found

    def violation(self, x: Floats) -> float:
        """By how much ``x`` misses the worst row, in the row's own unit."""
        arrays = self.arrays
        if not len(arrays.lower):
            return 0.0
        activity = self.activity(x)
        return float(max(np.max(activity - arrays.upper), np.max(arrays.lower - activity), 0.0))


@dataclass(frozen=True, slots=True)
class Limits:
    """When to stop. ``gap`` is relative; ``nodes`` bounds the search tree (None: no bound).

    ``tolerance``: how far rows and integers may be off (None: the solver's own, 1e-6 to 1e-5). HiGHS alone heeds it.
    """

    time_s: float
    gap: float
    nodes: int | None = None
    tolerance: float | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """``x`` is the best point or None; no point costs less than ``bound`` (−inf while unknown).

    ``optimal`` means within the gap, ``stopped`` that the tick asked for the end, ``interrupted`` that Ctrl-C did.
    Costs are in the model's units. Of a model without integers, ``bound`` is its optimum, or −inf short of that;
    ``basis`` is what a solve of one that is like it may begin with.
    """

    status: Status
    x: Floats | None
    objective: float
    bound: float
    basis: object | None = None


Tick = Callable[[Floats | None, float | None], bool | None]
"""(best point so far, bound in the model's units) → whether the solve is to end; called from the thread that asked for
it. The same point is the same array; what is raised ends the solve, too."""
Solve = Callable[[Model, Limits, Tick | None], Answer]
"""An adapter: minimises the model until it is optimal or a limit is reached, and reports to the tick meanwhile."""

"""What a 0-1 solver is given and gives back, and how one is found by name.

An adapter takes a ``Model`` and ``Limits`` and returns an ``Answer``. It imports its library when it is
called, keeps its own status names to itself, and turns its failures into ``SolverError``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.sparse import csr_array

from monet.errors import SolverError
from monet.planner.rows import Arrays, Floats

Progress = Callable[[float | None, float | None, float | None, float], None]
"""(incumbent_s, bound_s, gap, elapsed_s); None while unknown. What it raises ends the solve."""

Status = Literal["optimal", "time_limit", "interrupted", "infeasible"]


@dataclass(frozen=True, slots=True)
class Model:
    """min cost·x over the points of ``arrays`` with ``fixed_lower`` ≤ x ≤ ``fixed_upper``, both in [0, 1].

    ``start`` is a feasible point to begin with, or None.
    """

    arrays: Arrays
    fixed_lower: Floats
    fixed_upper: Floats
    start: Floats | None = None

    def violation(self, x: Floats) -> float:
        """By how much ``x`` misses the worst row, in the row's own unit."""
        arrays = self.arrays
        if not len(arrays.lower):
            return 0.0
        shape = (len(arrays.lower), len(arrays.cost))
        activity = csr_array((arrays.value, arrays.column_index, arrays.row_start), shape=shape) @ x
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

    ``optimal`` means within the gap. Costs are in the model's units.
    """

    status: Status
    x: Floats | None
    objective: float
    bound: float


Tick = Callable[[Floats | None, float | None], None]
"""(best point so far, bound in the model's units); called from the thread that asked for the solve. The same point
is the same array; what is raised ends the solve."""

Solve = Callable[[Model, Limits, Tick | None], Answer]


def solver(name: str) -> Solve:
    """The adapter for ``HIGHS``, or for any mixed-integer solver that CVXPY has installed.

    Raises:
        SolverError: no solver of that name is installed; the message lists those that are.
    """
    from monet.planner.scaling import scaled

    wanted = name.upper()
    if wanted == "HIGHS":
        try:
            from monet.planner.highs import solve_highs
        except ImportError as error:
            raise SolverError(f"the solver HIGHS needs the package highspy: {error}") from error
        return scaled(solve_highs)
    from monet.planner.cvxpy_solver import installed_mip_solvers, solve_with

    installed = installed_mip_solvers()
    if wanted not in installed:
        names = ", ".join(["HIGHS", *sorted(set(installed) - {"HIGHS"})])
        raise SolverError(f"no solver {name!r} is installed; installed are: {names}")
    return scaled(solve_with(wanted))

"""Rows in bytes and costs in seconds, brought to the sizes that solvers' tolerances are made for.

This is the only place that scales. Factors are powers of 1024, so nothing is rounded.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from monet.planner.solvers.model import Answer, Limits, Model, Solve, Tick
from monet.planner.solvers.rows import Floats

STEP = 1024.0
LARGEST_ROW = STEP**2
"""A row with a larger coefficient is divided by this: bytes become MiB."""


def scaled(solve: Solve) -> Solve:
    """``solve`` on a scaled model; what it returns and reports is in the model's own units."""

    def solve_scaled(model: Model, limits: Limits, tick: Tick | None = None) -> Answer:
        factor = _cost_factor(model.arrays.cost)
        answer = solve(_scale(model, factor), limits, None if tick is None else _unscaling(tick, factor))
        return replace(answer, objective=answer.objective / factor, bound=answer.bound / factor)

    return solve_scaled


def _unscaling(tick: Tick, factor: float) -> Tick:
    def unscaled(x: Floats | None, bound: float | None) -> bool | None:
        return tick(x, None if bound is None else bound / factor)

    return unscaled


def _cost_factor(cost: Floats) -> float:
    """Brings the largest cost between 1 and 1024: seconds become about milliseconds."""
    largest = float(np.max(np.abs(cost), initial=0.0))
    return 1.0 if largest == 0.0 else float(STEP ** -np.floor(np.log(largest) / np.log(STEP)))


def _scale(model: Model, factor: float) -> Model:
    arrays = model.arrays
    if not len(arrays.lower):
        return replace(model, arrays=replace(arrays, cost=arrays.cost * factor))
    counts = np.diff(arrays.row_start)
    largest = np.zeros(len(counts))
    filled = counts > 0
    # reduceat repeats an element for an empty row; those rows are left at zero.
    largest[filled] = np.maximum.reduceat(np.abs(arrays.value), arrays.row_start[:-1][filled])
    divisor = np.where(largest >= LARGEST_ROW, LARGEST_ROW, 1.0)
    return replace(
        model,
        arrays=replace(
            arrays,
            cost=arrays.cost * factor,
            value=arrays.value / np.repeat(divisor, counts),
            lower=arrays.lower / divisor,
            upper=arrays.upper / divisor,
        ),
    )

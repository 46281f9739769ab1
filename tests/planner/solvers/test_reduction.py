"""Reduction around a solver: the same points and optima, with what is decided left out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from monet.planner.solvers.finder import solver
from monet.planner.solvers.model import Answer, Limits, Model, Tick
from monet.planner.solvers.reduction import reduced
from monet.planner.solvers.rows import Floats, Rows, Sum

COUNT = 10


def model_of(seed: int) -> Model:
    """Nested memory rows, as of operators that follow each other, choices, implications, and some columns fixed."""
    rng = np.random.default_rng(seed)
    rows = Rows()
    columns = [rows.column(float(rng.integers(1, 50))) for _ in range(COUNT)]
    freed = Sum(float(rng.integers(60, 90)))
    for column in columns:
        freed.add((column,), -float(rng.integers(1, 20)))
        if rng.random() < 0.7:
            rows.at_most(freed.copy(), 50.0)
    for _ in range(3):  # rows twice, and one that is looser
        rows.at_most(freed.copy(), 50.0 + float(rng.integers(0, 2)))
    rows.implies((columns[0],), (columns[1], columns[2]))
    rows.exactly(Sum().add((columns[3], columns[4])), 1.0)
    lower, upper = np.zeros(COUNT), np.ones(COUNT)
    for column in rng.choice(COUNT, int(rng.integers(0, 5)), replace=False):
        lower[column] = upper[column] = float(rng.integers(0, 2))
    return Model(rows.arrays(), lower, upper)


def points(model: Model) -> list[Floats]:
    """Those between the columns' bounds."""
    every = ((np.arange(2**COUNT)[:, None] >> np.arange(COUNT)) & 1).astype(np.float64)
    return [x for x in every if (x >= model.fixed_lower).all() and (x <= model.fixed_upper).all()]


def given_to_the_solver(model: Model) -> Model:
    seen: list[Model] = []

    def record(small: Model, limits: Limits, tick: Tick | None) -> Answer:
        seen.append(small)
        return Answer("time_limit", None, float("inf"), float("-inf"))

    reduced(record)(model, Limits(1.0, 0.0), None)
    return seen[0]


@pytest.mark.parametrize("seed", range(40))
def test_the_same_points_are_feasible(seed: int) -> None:
    model = model_of(seed)
    small = given_to_the_solver(model)
    free = model.fixed_upper > model.fixed_lower
    assert len(small.arrays.cost) == free.sum()
    assert [small.violation(x[free]) <= 1e-9 for x in points(model)] == [
        model.violation(x) <= 1e-9 for x in points(model)
    ]


@pytest.mark.parametrize("seed", range(40))
def test_optimum_bound_and_ticks_are_of_the_whole(seed: int) -> None:
    model = model_of(seed)
    feasible = [float(model.arrays.cost @ x) for x in points(model) if model.violation(x) <= 1e-9]
    told: list[tuple[Floats | None, float | None]] = []
    answer = solver("HIGHS")(model, Limits(20.0, 0.0), lambda x, bound: told.append((x, bound)))
    if not feasible:
        assert answer.status == "infeasible"
        return
    assert answer.status == "optimal" and answer.x is not None
    assert answer.objective == pytest.approx(min(feasible)) == pytest.approx(float(model.arrays.cost @ answer.x))
    assert model.violation(answer.x) <= 1e-6 and answer.bound <= min(feasible) + 1e-6
    assert all(len(x) == COUNT for x, _ in told if x is not None)
    assert all(bound <= min(feasible) + 1e-6 for _, bound in told if bound is not None)


def test_a_row_that_another_one_implies_is_left_out() -> None:
    rows = Rows()
    columns = [rows.column(1.0) for _ in range(3)]
    for least in (2.0, 1.0, 2.0):  # the second follows from either, and one of the others is enough
        rows.at_most(Sum().add(columns, -1.0), -least)
    small = given_to_the_solver(Model(rows.arrays(), np.zeros(3), np.ones(3)))
    assert list(small.arrays.upper) == [-2.0]


def test_a_point_is_told_once() -> None:
    """Whoever is told sees by the array whether the point is new."""
    model = replace(model_of(3), start=None)
    told: list[Floats | None] = []

    def twice(small: Model, limits: Limits, tick: Tick | None) -> Answer:
        assert tick is not None
        x = np.zeros(len(small.arrays.cost))
        tick(x, None)
        tick(x, None)
        tick(x.copy(), None)
        return Answer("time_limit", None, float("inf"), float("-inf"))

    reduced(twice)(model, Limits(1.0, 0.0), lambda x, bound: told.append(x))
    assert told[0] is told[1] and told[0] is not told[2]

"""Scaling around a solver: the same optimum, and everything that comes back in the model's own units."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from monet.planner.solvers.finder import solver
from monet.planner.solvers.model import Answer, Limits, Model, Tick
from monet.planner.solvers.rows import Floats, Rows, Sum
from monet.planner.solvers.scaling import LARGEST_ROW, scaled

GIGABYTES = 10**10
MICROSECONDS = 1e-5


def model_of(seed: int, count: int = 12) -> Model:
    """Drop some of ``count`` tensors of gigabytes, at microseconds each, until the rest fits."""
    rng = np.random.default_rng(seed)
    rows = Rows()
    columns = [rows.column(MICROSECONDS * int(rng.integers(10, 99)) / 10) for _ in range(count)]
    sizes = [int(rng.integers(GIGABYTES // 10, GIGABYTES)) for _ in range(count)]
    freed = Sum(float(sum(sizes)))
    for column, size in zip(columns, sizes, strict=True):
        freed.add((column,), -float(size))
    rows.at_most(freed, 0.6 * sum(sizes))
    rows.implies((columns[0],), (columns[1], columns[2]))
    rows.exactly(Sum().add((columns[3], columns[4])), 1.0)
    return Model(rows.arrays(), np.zeros(count), np.ones(count))


def points(model: Model) -> np.ndarray:
    count = len(model.arrays.cost)
    return ((np.arange(2**count)[:, None] >> np.arange(count)) & 1).astype(np.float64)


def best_by_brute_force(model: Model) -> float:
    return min(float(model.arrays.cost @ x) for x in points(model) if model.violation(x) <= 0.5)


@pytest.mark.parametrize("seed", range(5))
def test_gigabytes_and_microseconds_have_their_exact_optimum(seed: int) -> None:
    model = model_of(seed)
    answer = solver("HIGHS")(model, Limits(20.0, 0.0), None)
    best = best_by_brute_force(model)
    assert answer.status == "optimal" and answer.x is not None
    assert answer.objective == pytest.approx(best, rel=1e-9)
    assert answer.objective == pytest.approx(float(model.arrays.cost @ np.round(answer.x)), rel=1e-9)
    assert best * (1 - 1e-4) <= answer.bound <= best * (1 + 1e-9)
    assert model.violation(np.round(answer.x)) <= 0.5


def test_the_solver_sees_the_same_points_in_other_units() -> None:
    model = replace(model_of(0), start=np.zeros(12))
    seen: list[Model] = []

    def record(given: Model, limits: Limits, tick: Tick | None) -> Answer:
        seen.append(given)
        return Answer("time_limit", None, float("inf"), float("-inf"))

    answer = scaled(record)(model, Limits(1.0, 0.0), None)
    assert (answer.objective, answer.bound) == (float("inf"), float("-inf"))
    (given,) = seen
    assert 1.0 <= np.abs(given.arrays.cost).max() < 1024.0
    assert np.abs(given.arrays.value).max() <= GIGABYTES / LARGEST_ROW
    assert given.start is model.start
    assert [given.violation(x) <= 1e-7 for x in points(model)] == [model.violation(x) <= 1e-1 for x in points(model)]
    # Powers of two: not one bit is lost.
    ratio = given.arrays.cost / model.arrays.cost
    assert set(ratio) == {ratio[0]} and np.log2(ratio[0]).is_integer()
    small = np.abs(model.arrays.value) < 2
    assert np.array_equal(given.arrays.value[small], model.arrays.value[small])
    assert np.array_equal(given.arrays.value[~small] * LARGEST_ROW, model.arrays.value[~small])


def test_bound_objective_and_ticks_come_back_in_seconds() -> None:
    model = model_of(1)
    told: list[tuple[Floats | None, float | None]] = []
    point = np.ones(12)

    def answering(given: Model, limits: Limits, tick: Tick | None) -> Answer:
        assert tick is not None
        most, least = float(given.arrays.cost.max()), float(given.arrays.cost.min())
        tick(None, None)
        tick(point, least)
        tick(None, least)
        return Answer("optimal", point, most, least)

    answer = scaled(answering)(model, Limits(1.0, 0.0), lambda x, bound: told.append((x, bound)))
    most, least = float(model.arrays.cost.max()), float(model.arrays.cost.min())
    assert told == [(None, None), (point, least), (None, least)]
    assert told[1][0] is point
    assert (answer.objective, answer.bound) == (most, least)


def test_ticks_of_a_real_solve_enclose_its_optimum() -> None:
    model = model_of(2, count=18)
    told: list[tuple[Floats | None, float | None]] = []
    answer = solver("HIGHS")(model, Limits(20.0, 0.0), lambda x, bound: told.append((x, bound)))
    assert told
    assert all(bound is None or bound <= answer.objective * (1 + 1e-6) for _, bound in told)
    assert all(x is None or model.arrays.cost @ x >= answer.objective * (1 - 1e-6) for x, _ in told)


@pytest.mark.parametrize("cost", [0.0, 1.0, 1023.0, 1024.0, 1e-12, 3e7])
def test_extreme_costs(cost: float) -> None:
    rows = Rows()
    one, two = rows.column(cost), rows.column(2 * cost)
    rows.implies((), (one, two))
    rows.exactly(Sum().add((one, two)), 1.0)
    answer = solver("HIGHS")(Model(rows.arrays(), np.zeros(2), np.ones(2)), Limits(5.0, 0.0), None)
    assert answer.objective == pytest.approx(cost, rel=1e-9)


def test_a_model_without_rows_and_one_with_an_empty_row() -> None:
    bare = Rows()
    bare.column(-1e-6)
    answer = solver("HIGHS")(Model(bare.arrays(), np.zeros(1), np.ones(1)), Limits(5.0, 0.0), None)
    assert answer.objective == pytest.approx(-1e-6, rel=1e-9)
    rows = Rows()
    column = rows.column(-1e-6)
    rows.exactly(Sum(), 0.0)
    rows.at_most(Sum().add((column,), 3e10), 2e10)
    rows.exactly(Sum(), 0.0)
    answer = solver("HIGHS")(Model(rows.arrays(), np.zeros(1), np.ones(1)), Limits(5.0, 0.0), None)
    assert answer.objective == pytest.approx(0.0, abs=1e-15)

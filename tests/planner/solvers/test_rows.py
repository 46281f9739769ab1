"""Rows in the making: which are left out, and by how much a point misses one."""

from __future__ import annotations

import numpy as np
import pytest

from monet.planner.solvers.model import Model
from monet.planner.solvers.rows import Rows, Sum


def _violation(rows: Rows, *x: float) -> float:
    count = len(rows.costs)
    return Model(rows.arrays(), np.zeros(count), np.ones(count)).violation(np.array(x))


def test_a_row_that_no_point_breaks_is_left_out() -> None:
    rows = Rows()
    first, second = rows.column(), rows.column()
    both = Sum(1.0).add((first,), 2.0).add((second,), 3.0)
    rows.at_most(both, 6.0)
    rows.at_most(Sum(1.0).add((first,), -2.0), 1.0)
    assert rows.arrays().upper.tolist() == []
    rows.at_most(both, 5.5)
    assert rows.arrays().upper.tolist() == [4.5]


def test_a_point_misses_a_row_by_what_is_too_much_or_too_little() -> None:
    rows = Rows()
    first, second = rows.column(), rows.share()
    assert _violation(rows, 1.0, 1.0) == 0
    rows.excludes((first,), (second,))
    rows.exactly(Sum().add((first,), 2.0), 2.0)
    assert rows.arrays().integer.tolist() == [True, False]
    assert _violation(rows, 1.0, 0.0) == 0
    assert _violation(rows, 1.0, 0.25) == pytest.approx(0.25)
    assert _violation(rows, 0.5, 0.0) == pytest.approx(1.0)
    rows.implies((second,), ())
    assert _violation(rows, 1.0, 0.0) == 0


def test_rows_with_slack_are_not_missed_by_less_than_nothing() -> None:
    rows = Rows()
    column = rows.column()
    rows.at_most(Sum().add((column,), 4.0), 3.0)
    assert _violation(rows, 0.0) == 0

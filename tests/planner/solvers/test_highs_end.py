"""What is read of HiGHS when it ends, however it does, and what it is told."""

from __future__ import annotations

import math
from types import SimpleNamespace

import highspy
import numpy as np
import pytest

from monet.errors import SolverError
from monet.planner.solvers import highs
from monet.planner.solvers.highs import _answer, _Watch
from monet.planner.solvers.model import Limits, Model
from monet.planner.solvers.rows import Rows, Sum

ENDS = highspy.HighsModelStatus


def model() -> Model:
    """The lighter of two."""
    rows = Rows()
    columns = [rows.column(cost) for cost in (3.0, 2.0)]
    rows.exactly(Sum().add(columns), 1.0)
    return Model(rows.arrays(), np.zeros(2), np.ones(2))


class Ended:
    """HiGHS as it has ended."""

    def __init__(self, status: ENDS, x: list[float], bound: float = 1.0, known: bool = True) -> None:
        feasible, none = highspy.SolutionStatus.kSolutionStatusFeasible, highspy.SolutionStatus.kSolutionStatusNone
        self._status, self._x = status, x
        self._info = SimpleNamespace(primal_solution_status=feasible if known else none, mip_dual_bound=bound)

    def getModelStatus(self) -> ENDS:
        return self._status

    def getInfo(self) -> SimpleNamespace:
        return self._info

    def getSolution(self) -> SimpleNamespace:
        return SimpleNamespace(col_value=self._x)

    def modelStatusToString(self, status: ENDS) -> str:
        return str(status)


def watch(x: list[float] | None = None, bound: float | None = None) -> _Watch:
    seen = _Watch()
    seen.x, seen.bound = None if x is None else np.array(x), bound
    return seen


@pytest.mark.parametrize(
    ("ended", "expected"),
    [
        (Ended(ENDS.kTimeLimit, [1.0, 0.0]), [1.0, 0.0]),
        (Ended(ENDS.kTimeLimit, [1.0]), [0.0, 1.0]),  # of the program before the presolve was undone
        (Ended(ENDS.kTimeLimit, [1.0, 0.0], known=False), [0.0, 1.0]),
    ],
)
def test_the_point_is_its_own_where_it_has_one(ended: Ended, expected: list[float]) -> None:
    answer = _answer(ended, model(), watch([0.0, 1.0]), False)
    assert answer is not None and answer.status == "time_limit"
    assert answer.x is not None and answer.x.tolist() == expected
    assert answer.objective == pytest.approx(model().arrays.cost @ np.array(expected))


@pytest.mark.parametrize(
    ("bound", "seen", "expected"),
    [(1.5, 1.0, 1.5), (math.inf, 1.0, 1.0), (-1e30, 1.0, 1.0), (math.inf, None, -math.inf)],
)
def test_the_bound_is_the_last_one_seen_where_it_has_none(bound: float, seen: float | None, expected: float) -> None:
    answer = _answer(Ended(ENDS.kTimeLimit, [0.0, 1.0], bound), model(), watch(bound=seen), False)
    assert answer is not None and answer.bound == expected


def test_ends_without_an_answer() -> None:
    """A solve error may be the presolve's; anything that is not known is said."""
    assert _answer(Ended(ENDS.kSolveError, [0.0, 1.0]), model(), watch(), False) is None
    with pytest.raises(SolverError, match="ended without an answer"):
        _answer(Ended(ENDS.kModelError, [0.0, 1.0]), model(), watch(), False)
    answer = _answer(Ended(ENDS.kModelError, [0.0, 1.0]), model(), watch(), True)
    assert answer is not None and answer.status == "interrupted"


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        (Limits(5.0, 0.1), {"time_limit": 5.0, "mip_rel_gap": 0.1}),
        (Limits(-1.0, 0.0, nodes=7), {"time_limit": 0.0, "mip_max_nodes": 7}),
        (Limits(5.0, 0.0, tolerance=1e-9), {"mip_feasibility_tolerance": 1e-9}),
    ],
)
def test_limits_are_told(monkeypatch: pytest.MonkeyPatch, limits: Limits, expected: dict[str, float]) -> None:
    told: dict[str, object] = {}
    tell = highs._Quiet.setOptionValue

    def noted(self: highs._Quiet, name: str, value: object) -> object:
        told[name] = value
        return tell(self, name, value)

    monkeypatch.setattr(highs._Quiet, "setOptionValue", noted)
    highs._run(model(), limits, None, "choose")
    assert expected.items() <= told.items()
    assert ("mip_max_nodes" in told) == (limits.nodes is not None)
    assert ("mip_feasibility_tolerance" in told) == (limits.tolerance is not None)

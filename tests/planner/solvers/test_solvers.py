"""Solver adapters on known optima, and stopping them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest
from planner_problems import chain

from monet.errors import SolverError
from monet.planner.construction.first_plans import smallest_budget
from monet.planner.replay import replay
from monet.planner.search import Solving, plan_problem
from monet.planner.solvers.cvxpy import _answer, _explain, installed_mip_solvers
from monet.planner.solvers.finder import solver
from monet.planner.solvers.model import Limits, Model
from monet.planner.solvers.rows import Rows, Sum

NAMES = ["HIGHS", "highs", *sorted(installed_mip_solvers() - {"HIGHS"})]


def knapsack(count: int, seed: int) -> Model:
    """max value, weight ≤ half of all; as a minimisation."""
    rng = np.random.default_rng(seed)
    rows = Rows()
    weights = rng.integers(5, 60, count)
    columns = [rows.column(-float(w + rng.integers(0, 9))) for w in weights]
    total = Sum()
    for column, weight in zip(columns, weights, strict=True):
        total.add((column,), float(weight))
    rows.at_most(total, float(weights.sum() // 2))
    rows.exactly(Sum().add((columns[0], columns[1])), 1.0)
    return Model(rows.arrays(), np.zeros(count), np.ones(count))


def best_value(model: Model) -> float:
    count = len(model.arrays.cost)
    points = (np.arange(2**count)[:, None] >> np.arange(count)) & 1
    fits = [p for p in points if model.violation(p.astype(np.float64)) <= 1e-9]
    return float(min(model.arrays.cost @ p for p in fits))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", range(3))
def test_known_optimum(name: str, seed: int) -> None:
    model = knapsack(10, seed)
    answer = solver(name)(model, Limits(20.0, 0.0), None)
    assert answer.status == "optimal"
    assert answer.x is not None
    assert answer.objective == pytest.approx(best_value(model))
    assert answer.bound <= answer.objective + 1e-9
    assert model.violation(np.round(answer.x)) <= 1e-6


@pytest.mark.parametrize("name", NAMES)
def test_infeasible(name: str) -> None:
    rows = Rows()
    one, two = rows.column(1.0), rows.column(1.0)
    rows.exactly(Sum().add((one, two)), 2.0)
    rows.excludes((one,), (two,))
    answer = solver(name)(Model(rows.arrays(), np.zeros(2), np.ones(2)), Limits(20.0, 0.0), None)
    assert answer.status == "infeasible"
    assert answer.x is None


@pytest.mark.parametrize("name", NAMES)
def test_a_share_may_lie_between(name: str) -> None:
    rows = Rows()
    chosen, share = rows.column(1.0), rows.share()
    rows.costs[share] = 4.0
    # 10 bytes in 8 at most, less what is chosen away: share of 8 >= 10 - 6 chosen.
    rows.at_most(Sum(10.0, {chosen: -6.0, share: -8.0}), 0.0)
    answer = solver(name)(Model(rows.arrays(), np.zeros(2), np.ones(2)), Limits(20.0, 0.0), None)
    assert answer.status == "optimal" and answer.x is not None
    assert answer.x == pytest.approx([1.0, 0.5], abs=1e-6)
    assert answer.objective == pytest.approx(3.0)


def test_a_fixed_column_stays() -> None:
    model = knapsack(10, 0)
    upper = np.ones(10)
    upper[3] = 0
    answer = solver("HIGHS")(Model(model.arrays, np.zeros(10), upper), Limits(20.0, 0.0), None)
    assert answer.x is not None and answer.x[3] < 0.5


def test_missing_solver_names_the_installed() -> None:
    with pytest.raises(SolverError, match=r"no solver 'nothing' is installed; installed are: .*HIGHS"):
        solver("nothing")


def test_a_limited_licence_is_explained() -> None:
    text = _explain("GUROBI", RuntimeError("Model too large for size-limited license"), (5000, 4000))
    assert "5000 rows" in text and "HIGHS" in text


def test_a_licence_is_the_reason_for_its_own_solver_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("numerical trouble")

    monkeypatch.setattr("cvxpy.Problem.solve", fails)
    monkeypatch.setattr("monet.planner.solvers.cvxpy._gurobi_is_size_limited", lambda: True)
    with pytest.raises(SolverError, match="numerical trouble") as error:
        solver("SCIPY")(knapsack(10, 0), Limits(20.0, 0.0), None)
    assert "licence" not in str(error.value)


@pytest.mark.parametrize(("value", "bound"), [(10.0, 9.0), (-10.0, -11.0), (0.0, 0.0)])
def test_a_solver_that_tells_no_bound_has_the_gap_that_it_was_given(value: float, bound: float) -> None:
    problem = SimpleNamespace(status="optimal", value=value, solver_stats=None)
    answer = _answer("SCIP", problem, [1.0], Limits(20.0, 0.1))
    assert answer.status == "optimal" and answer.objective == value
    assert answer.bound == pytest.approx(bound)


def test_interrupt_from_progress_returns_the_best_plan() -> None:
    problem = chain(60)
    known = smallest_budget(problem)
    assert known is not None
    calls: list[float | None] = []

    def progress(incumbent: float | None, bound: float | None, gap: float | None, elapsed: float) -> None:
        if incumbent is not None:
            calls.append(incumbent)
        if len(calls) == 5:
            raise KeyboardInterrupt

    plan = plan_problem(problem, known[0] + 40, Solving(window=None, gap=0.0, time_limit_s=60.0), progress=progress)
    assert len(calls) == 5
    assert plan.status == "interrupted"
    assert replay(problem, plan.runs).peak_bytes == plan.peak_bytes <= known[0] + 40


@pytest.mark.usefixtures("default_interrupts")
def test_ctrl_c_stops_the_solve() -> None:
    problem = chain(60)
    known = smallest_budget(problem)
    assert known is not None

    def press(incumbent: float | None, bound: float | None, gap: float | None, elapsed: float) -> None:
        if incumbent is not None:
            signal.raise_signal(signal.SIGINT)

    plan = plan_problem(problem, known[0] + 40, Solving(window=None, gap=0.0, time_limit_s=60.0), progress=press)
    assert plan.status == "interrupted"


@pytest.mark.usefixtures("default_interrupts")
def test_ctrl_c_counts_where_the_search_has_enough_at_the_same_moment() -> None:
    """Where a tick ends the solve, as one that finds a plan good enough does: whoever solves next must not go on."""

    def press_and_end(x: object, bound: float | None) -> bool:
        signal.raise_signal(signal.SIGINT)
        return True

    assert solver("HIGHS")(knapsack(300, 0), Limits(60.0, 0.0), press_and_end).status == "interrupted"


def test_the_tick_ends_the_solve_and_its_point_is_kept() -> None:
    model = knapsack(300, 0)
    points: list[object] = []

    def ends(x: object, bound: float | None) -> bool:
        points.append(x)
        return x is not None

    answer = solver("HIGHS")(model, Limits(60.0, 0.0), ends)
    assert answer.status in ("stopped", "optimal") and answer.x is not None


def test_other_errors_of_progress_stop_the_solve() -> None:
    problem = chain(30)
    known = smallest_budget(problem)
    assert known is not None

    def progress(*_: object) -> None:
        raise ValueError("from the caller")

    with pytest.raises(ValueError, match="from the caller"):
        plan_problem(problem, known[0] + 40, Solving(window=None, gap=0.0), progress=progress)


@pytest.mark.slow
def test_time_limit_is_kept() -> None:
    problem = chain(60)
    known = smallest_budget(problem)
    assert known is not None
    begun = time.monotonic()
    plan = plan_problem(problem, known[0] + 40, Solving(window=None, gap=0.0, time_limit_s=3.0))
    assert time.monotonic() - begun < 15.0
    assert plan.status in ("time_limit", "optimal")
    assert 0.0 <= plan.gap < 1.0


def test_solving_prints_nothing() -> None:
    """Whatever a solver says of itself would be in the output of commands."""
    code = (
        "from planner_problems import chain\n"
        "from monet.planner.search import Solving, plan_problem\n"
        "plan_problem(chain(4), 10**9, Solving(time_limit_s=5.0))\n"
        "plan_problem(chain(4), 600, Solving(time_limit_s=5.0))\n"
    )
    paths = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": paths},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""

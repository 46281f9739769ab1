"""Moves as columns of the exact program: against every plan there is, and the rows of the channel."""

from __future__ import annotations

import math
from dataclasses import astuple, replace

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from moving_plans import chain, least, moved, second, without_waiting
from planner_problems import problems

from monet.planner.problem import (
    ASYNCHRONOUS,
    SYNCHRONOUS,
    BackwardImplementation,
    BackwardOperator,
    Problem,
)
from monet.planner.program.channel_rows import FINE, _Direction, add_late_rows
from monet.planner.program.constraints import build_program
from monet.planner.program.index import index_of
from monet.planner.program.memory_rows import add_memory_rows
from monet.planner.program.moves import MoveOffers
from monet.planner.program.program import Program
from monet.planner.program.readback import read_point, write_point
from monet.planner.replay import replay
from monet.planner.schedules import plan_variant
from monet.planner.solution import Runs
from monet.planner.solvers.finder import solver
from monet.planner.solvers.model import Answer, Limits, Model
from monet.planner.solvers.rows import Floats

options = settings(deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))


def whole_program(problem: Problem, budget_bytes: int) -> Program:
    """Windows of all stages, copies at every time."""
    program = build_program(problem, budget_bytes, None, moves=MoveOffers(every=True))
    add_memory_rows(program)
    return program


def solved(program: Program) -> Answer:
    """To optimality, with the rows that its points broke."""
    while True:
        arrays = program.rows.arrays()
        model = Model(arrays, np.zeros(len(arrays.cost)), np.ones(len(arrays.cost)))
        answer = solver("HIGHS")(model, Limits(60.0, 0.0), None)
        assert answer.status in ("optimal", "infeasible")
        if answer.x is None or not add_late_rows(program, answer.x):
            return answer


def point(program: Program, runs: Runs) -> Floats:
    x = write_point(program, runs)
    assert x is not None
    return x


def violation(program: Program, x: Floats) -> float:
    arrays = program.rows.arrays()
    return Model(arrays, np.zeros(len(arrays.cost)), np.ones(len(arrays.cost))).violation(x)


def objective(program: Program, x: Floats) -> float:
    return float(np.array(program.rows.costs) @ x)


@st.composite
def moving_chains(draw: st.DrawFn) -> tuple[Problem, Runs]:
    """A chain of which nothing is made again, and a plan that moves some of it, at any times."""
    count = draw(st.integers(2, 7))
    problem = chain(count, 1)
    problem = replace(
        problem,
        tensors=tuple(replace(tensor, bytes=draw(st.integers(1, 9))) for tensor in problem.tensors),
        second=second(float(draw(st.integers(50, 2000)))),
    )
    moves = {}
    for i in range(count):
        if f"t{i}" in index_of(problem).movable and draw(st.booleans()):
            used = count - 1 - i
            released = draw(st.integers(min(i + 1, count - 1), count - 1))
            moves[f"t{i}"] = (released, draw(st.integers(0, used)), used)
    return problem, moved(problem, moves)


class TestAgainstEveryPlan:
    @settings(options, max_examples=50)
    @given(problems(operators=2), st.integers(60, 5000), st.integers(2, 30), st.booleans())
    def test_optimum(self, problem: Problem, rate: int, extra: int, waiting: bool) -> None:
        whole = replace(problem, second=second(float(rate), **({"mode": SYNCHRONOUS} if waiting else {})))
        self.check(whole, problem.fixed_bytes + extra)

    @pytest.mark.parametrize("mode", [ASYNCHRONOUS, SYNCHRONOUS])
    @pytest.mark.parametrize("rate", [500.0, 700.0, 3000.0])
    @pytest.mark.parametrize("extra", [14, 19, 24])
    def test_optimum_of_a_chain(self, rate: float, extra: int, mode: str) -> None:
        """Nothing can be made again, and the first backward operators need room: what is moved must wait its turn."""
        problem = chain(3, 7)
        forward = tuple(replace(operator, recomputable=False) for operator in problem.forward)
        large = BackwardOperator("large", (BackwardImplementation("plain", 0.01, ()),), 10, 10)
        backward = (large, *problem.backward[1:])
        self.check(replace(problem, forward=forward, backward=backward, second=second(rate, mode=mode)), extra)

    def check(self, whole: Problem, budget: int) -> None:
        truth = least(whole, budget, 5000)
        if truth is None or truth == math.inf:
            return  # too many plans, or none that fits
        program = whole_program(whole, budget)
        answer = solved(program)
        assert answer.x is not None
        assert answer.objective == pytest.approx(truth, rel=1e-5)
        assert answer.bound <= truth * (1 + 1e-6)
        cost = replay(whole, read_point(program, answer.x))
        assert cost.objective_s == pytest.approx(truth, rel=1e-5)
        assert cost.peak_bytes <= budget
        assert program.moves is None or program.scope == "full + moves"


class TestPoints:
    @settings(options, max_examples=150)
    @given(moving_chains())
    def test_plan_is_a_point_that_costs_what_it_costs(self, made: tuple[Problem, Runs]) -> None:
        problem, runs = made
        cost = replay(problem, runs)
        program = whole_program(problem, cost.peak_bytes)
        x = point(program, runs)
        assert violation(program, x) <= 1e-6
        assert objective(program, x) == pytest.approx(cost.objective_s)
        assert add_late_rows(program, x) == 0
        assert replay(problem, read_point(program, x)).objective_s == pytest.approx(cost.objective_s)
        few = build_program(problem, cost.peak_bytes, None, moves=MoveOffers(plan=runs, most_s=cost.objective_s))
        add_memory_rows(few)
        x = point(few, runs)
        assert violation(few, x) <= 1e-6
        assert objective(few, x) == pytest.approx(cost.objective_s)

    @settings(options, max_examples=150)
    @given(moving_chains())
    @pytest.mark.slow
    def test_late_copies_get_rows(self, made: tuple[Problem, Runs]) -> None:
        """A point that does not wait breaks rows that are added for it, and a point that does breaks none of them."""
        problem, runs = made
        cost = replay(problem, runs)
        assume(cost.traffic is not None and cost.traffic.waited_s > 1e-4)
        program = whole_program(problem, cost.peak_bytes)
        x = point(program, runs)
        hurried = without_waiting(program, x)
        assume(violation(program, hurried) <= 1e-6)  # the first rows know of it already
        assert add_late_rows(program, hurried) > 0
        assert violation(program, hurried) > 1e-6
        assert violation(program, x) <= 1e-6
        assert add_late_rows(program, x) == 0

    def test_a_position_begins_when_what_comes_before_it_is_over(self) -> None:
        """In each pass by its own seconds."""
        problem = replace(chain(4, 100), second=second(1e9))
        slower = [tuple(replace(q, time_s=0.03) for q in operator.implementations) for operator in problem.backward]
        backward = (replace(o, implementations=made) for o, made in zip(problem.backward, slower, strict=True))
        problem = replace(problem, backward=tuple(backward))
        runs = moved(problem, {"t0": (3, 0, 3)})
        program = whole_program(problem, replay(problem, runs).peak_bytes)
        x, moves = point(program, runs), program.moves
        assert moves is not None
        for forward, seconds in ((True, 0.01), (False, 0.03)):
            direction = _Direction(program, moves, forward)
            for position in range(4):
                begins_s = direction.begin(position).at(x) * moves.horizon_s / FINE
                assert begins_s == pytest.approx(position * seconds, abs=1e-5)

    def test_an_interval_where_prefixes_say_nothing(self) -> None:
        """One return has all the time there is, a later one little: together they have enough from the beginning to
        the end, but the second has not enough of its own."""
        problem = replace(chain(5, 100), second=second(1e4))  # a copy takes 10 ms, as an operator does
        problem = replace(problem, tensors=tuple(replace(t, bytes=300) if t.id == "t1" else t for t in problem.tensors))
        self.check_one_row_is_added(problem, moved(problem, {"t0": (4, 0, 4), "t1": (4, 2, 3)}))

    def test_a_copy_is_not_interrupted(self) -> None:
        """The long return is issued first and needed last: with interruption both would be in time."""
        problem = replace(chain(6, 100), second=second(1e4))
        problem = replace(problem, tensors=tuple(replace(t, bytes=300) if t.id == "t0" else t for t in problem.tensors))
        # Read from 0 to 30 ms, and the other until 40 ms, which is needed at 20 ms.
        self.check_one_row_is_added(problem, moved(problem, {"t0": (5, 0, 5), "t3": (5, 1, 2)}))

    def check_one_row_is_added(self, problem: Problem, runs: Runs) -> None:
        """The plan waits 20 ms, without which no row is broken but the one that is added for it."""
        cost = replay(problem, runs)
        assert cost.traffic is not None and cost.traffic.waited_s == pytest.approx(0.02)
        program = whole_program(problem, cost.peak_bytes)
        x = point(program, runs)
        hurried = without_waiting(program, x)
        assert violation(program, hurried) <= 1e-6
        assert add_late_rows(program, hurried) == 1
        assert violation(program, hurried) > 1e-6
        assert violation(program, x) <= 1e-6


class TestEndsOfTheBandwidth:
    @settings(options, max_examples=30)
    @given(problems(operators=4), st.integers(8, 60))
    def test_without_bandwidth_it_is_the_program_without_moves(self, problem: Problem, budget: int) -> None:
        plain = build_program(problem, budget, None)
        program = build_program(replace(problem, second=second(1e-9)), budget, None, moves=MoveOffers(every=True))
        for made in (plain, program):
            add_memory_rows(made)
        assert program.scope == plain.scope == "full"
        assert add_late_rows(program, np.zeros(len(program.rows.costs))) == 0
        for one, other in zip(astuple(plain.rows.arrays()), astuple(program.rows.arrays()), strict=True):
            assert np.array_equal(one, other)

    def test_bandwidth_that_is_too_little_moves_nothing(self) -> None:
        """Columns are there, and none of them pays."""
        problem = chain(5, 100)
        plain = solved(whole_program(problem, 400))
        program = whole_program(replace(problem, second=second(100 / 0.04)), 400)
        answer = solved(program)
        assert program.moves is not None and answer.x is not None
        assert answer.objective == pytest.approx(plain.objective)

    @pytest.mark.parametrize("mode", [ASYNCHRONOUS, SYNCHRONOUS])
    def test_all_bandwidth_is_an_unlimited_budget(self, mode: str) -> None:
        """What operators work on fits, and no more: each plan without moves is slower, with them none waits."""
        problem = chain(5, 100)
        eager_s = plan_variant("pytorch", problem, 10**9).objective_s
        assert solved(whole_program(problem, 200)).objective > eager_s * 1.05
        answer = solved(whole_program(replace(problem, second=second(1e12, mode=mode)), 200))
        assert answer.objective == pytest.approx(eager_s, rel=1e-6)

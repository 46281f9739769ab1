"""Moves as columns of the exact program: against every plan there is, and the rows of the channel."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from moving_plans import chain, least, second
from planner_problems import problems

from monet.planner.problem import SYNCHRONOUS, Problem
from monet.planner.program.channel_rows import add_late_rows
from monet.planner.program.constraints import build_program
from monet.planner.program.memory_rows import add_memory_rows
from monet.planner.program.moves import MoveOffers
from monet.planner.program.program import Program
from monet.planner.program.readback import read_point
from monet.planner.replay import replay
from monet.planner.schedules import plan_variant
from monet.planner.solvers.finder import solver
from monet.planner.solvers.model import Answer, Limits, Model

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


class TestAgainstEveryPlan:
    @settings(options, max_examples=150)
    @given(problems(operators=2), st.integers(60, 5000), st.integers(2, 30), st.booleans())
    def test_optimum(self, problem: Problem, rate: int, extra: int, waiting: bool) -> None:
        whole = replace(problem, second=second(float(rate), **({"mode": SYNCHRONOUS} if waiting else {})))
        budget = problem.fixed_bytes + extra
        truth = least(whole, budget)
        assume(truth is not None and truth < math.inf)
        assert truth is not None
        program = whole_program(whole, budget)
        answer = solved(program)
        assert answer.x is not None
        assert answer.objective == pytest.approx(truth, rel=1e-5)
        cost = replay(whole, read_point(program, answer.x))
        assert cost.objective_s == pytest.approx(truth, rel=1e-5)
        assert cost.peak_bytes <= budget

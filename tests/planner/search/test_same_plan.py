"""With one core, equal inputs give equal plans, however long solves take."""

from __future__ import annotations

import random
import time

import pytest
from layered_problems import layers
from planner_problems import chain, repeated

from monet.planner.construction.first_plans import smallest_budget
from monet.planner.problem import Problem
from monet.planner.search import Solving, plan_problem, state
from monet.planner.solvers.finder import solver
from monet.planner.solvers.model import Answer, Limits, Model, Solve, Tick


def _slow(name: str) -> Solve:
    solve, noise = solver(name), random.Random()

    def slowly(model: Model, limits: Limits, tick: Tick | None = None) -> Answer:
        time.sleep(noise.uniform(0.0, 0.02))
        return solve(model, limits, tick)

    return slowly


@pytest.mark.parametrize(
    ("problem", "share"),
    [(layers(4), 1.6), (chain(9), 1.3), pytest.param(repeated(3), 1.6, marks=pytest.mark.slow)],
    ids=["layers", "chain", "repeated"],
)
@pytest.mark.sampled(2)
def test_a_slow_machine_finds_the_same_plan(problem: Problem, share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    known = smallest_budget(problem)
    assert known is not None
    budget, solving = int(share * known[0]), Solving(time_limit_s=600.0, cores=1)
    quick = plan_problem(problem, budget, solving)
    monkeypatch.setattr(state, "find_solver", _slow)
    slow = plan_problem(problem, budget, solving)
    assert quick.status == slow.status == "optimal"
    assert quick.runs == slow.runs

"""The worker of a solve: what it finds counts, what it fails with is told, and it never stays behind."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
from planner_problems import chain

from monet.errors import SolverError
from monet.planner.construction.first_plans import smallest_budget
from monet.planner.problem import Problem
from monet.planner.search import Solving, plan_problem, state, worker
from monet.planner.search.search import Search
from monet.planner.solution import Solution
from monet.planner.solvers.finder import solver
from monet.planner.solvers.model import Answer, Limits, Model, Solve, Tick

LENGTH = 9
LONG_S = 20.0


@dataclass
class Idle:
    """Solves neighbourhoods in the worker's thread, and of the whole knows nothing but ``bound``: it waits. Of the
    checkpoint program, which is solved without a start, it knows nothing at all."""

    neighbourhoods: Solve
    bound: float = 0.0
    waited: bool = False
    threads: set[str] = field(default_factory=set)

    def __call__(self, model: Model, limits: Limits, tick: Tick | None = None) -> Answer:
        self.threads.add(threading.current_thread().name)
        if threading.current_thread().name == "worker":
            return self.neighbourhoods(model, limits, tick)
        assert tick is not None
        if model.start is None:
            return Answer("time_limit", None, float("inf"), float("-inf"))
        if limits.nodes is None:
            until = time.monotonic() + LONG_S
            ended = False
            while time.monotonic() < until and not ended:
                ended = bool(tick(None, self.bound))
                time.sleep(0.01)
            self.waited = not ended
        assert model.start is not None
        return Answer("time_limit", model.start, float(model.arrays.cost @ model.start), self.bound)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(worker, "AFTER_S", 0.0)
    yield
    assert all(thread.name != "worker" for thread in threading.enumerate())


@pytest.fixture(scope="module")
def problem() -> Problem:
    return chain(LENGTH)


@pytest.fixture(scope="module")
def known(problem: Problem) -> Solution:
    """The best plan."""
    found = plan_problem(problem, budget(problem), Solving(gap=0.0, cores=1))
    assert found.status == "optimal" and found.bound_scope == "full"
    return found


def budget(problem: Problem) -> int:
    known = smallest_budget(problem)
    assert known is not None
    return known[0] + 8


def idle(monkeypatch: pytest.MonkeyPatch, neighbourhoods: Solve | None = None, bound: float = 0.0) -> Idle:
    made = Idle(neighbourhoods or solver("HIGHS"), bound)
    monkeypatch.setattr(state, "find_solver", lambda name: made)
    return made


def test_its_plan_ends_the_solve_of_the_whole(
    problem: Problem, known: Solution, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = idle(monkeypatch, bound=known.objective_s * (1 - 1e-9))
    found = plan_problem(problem, budget(problem), Solving(gap=1e-6, cores=2))
    assert found.status == "optimal" and not made.waited and "worker" in made.threads
    assert found.objective_s == pytest.approx(known.objective_s, rel=1e-9)


def test_a_plan_that_is_enough_ends_it_too(problem: Problem, known: Solution, monkeypatch: pytest.MonkeyPatch) -> None:
    made = idle(monkeypatch)
    enough_s = known.objective_s * 1.001
    found = plan_problem(problem, budget(problem), Solving(cores=2), enough_s=enough_s)
    assert found.status == "good_enough" and found.objective_s <= enough_s and not made.waited


@pytest.mark.parametrize(("name", "cores"), [("HIGHS", 1), ("GUROBI", 2)])
def test_there_is_none_without_a_core(
    problem: Problem, known: Solution, monkeypatch: pytest.MonkeyPatch, name: str, cores: int
) -> None:
    made = idle(monkeypatch, bound=known.objective_s)

    def stop(incumbent: float | None, bound: float | None, gap: float | None, elapsed_s: float) -> None:
        if elapsed_s > 0.5:
            raise KeyboardInterrupt

    found = plan_problem(problem, budget(problem), Solving(gap=1e-6, solver=name, cores=cores), progress=stop)
    assert found.status == "interrupted" and found.objective_s > known.objective_s
    assert "worker" not in made.threads


def test_its_error_is_raised(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(model: Model, limits: Limits, tick: Tick | None = None) -> Answer:
        raise SolverError("out of order")

    idle(monkeypatch, broken)
    monkeypatch.setattr(f"{__name__}.LONG_S", 0.5)
    with pytest.raises(SolverError, match="out of order"):
        plan_problem(problem, budget(problem), Solving(cores=2))


def test_ctrl_c_stops_both(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = threading.Event()

    def endless(model: Model, limits: Limits, tick: Tick | None = None) -> Answer:
        begun.set()
        assert tick is not None
        while not tick(None, None):
            time.sleep(0.01)
        return Answer("stopped", None, float("inf"), float("-inf"))

    made = idle(monkeypatch, endless)
    found = plan_problem(problem, budget(problem), Solving(cores=2), progress=_interrupt_after(begun))
    assert found.status == "interrupted" and not made.waited


@pytest.mark.slow
def test_a_proof_has_one_too(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    """The windowed program is given up at once; while the full one is bounded, the plan gets better."""
    least = plan_problem(problem, budget(problem), Solving(window=6, gap=0.0, cores=1))
    made = idle(monkeypatch, bound=least.objective_s * (1 - 1e-9))
    monkeypatch.setattr(Search, "run", lambda search: "time_limit")
    found = plan_problem(problem, budget(problem), Solving(window=6, gap=1e-6, cores=2, prove=True))
    assert found.bound_scope == "full" and found.status == "optimal" and not made.waited
    assert found.objective_s <= least.objective_s * (1 + 1e-6)


def _interrupt_after(begun: threading.Event) -> Callable[[float | None, float | None, float | None, float], None]:
    def progress(incumbent: float | None, bound: float | None, gap: float | None, elapsed_s: float) -> None:
        if begun.is_set():
            raise KeyboardInterrupt

    return progress

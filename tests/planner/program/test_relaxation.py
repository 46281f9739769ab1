"""Bounds are bounds: the full program and its relaxation against every plan there is."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plan_front import front, optimum, tight_problems, two_orders
from planner_problems import best_by_exhaustion, chain, problems
from random_examples import examples

from monet.planner.construction.first_plans import smallest_budget
from monet.planner.problem import (
    BackwardImplementation,
    BackwardOperator,
    ForwardImplementation,
    ForwardOperator,
    Problem,
    Tensor,
)
from monet.planner.program.constraints import build_program
from monet.planner.program.index import index_of
from monet.planner.program.memory_rows import add_memory_rows
from monet.planner.program.peaks import after_peaks
from monet.planner.program.readback import earlier, read_point, write_point
from monet.planner.program.windows import windows
from monet.planner.replay import replay
from monet.planner.runs import without_useless
from monet.planner.search import Solving, plan_problem
from monet.planner.search.scope import scope_of
from monet.planner.solution import Run, Runs, Stage
from monet.planner.solvers.model import Model

options = settings(deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))


def relaxed(problem: Problem, budget_bytes: int, window: int) -> float:
    return optimum(build_program(problem, budget_bytes, window, relaxed=True))


def full(problem: Problem, budget_bytes: int) -> float:
    return optimum(build_program(problem, budget_bytes, None))


def everywhere(problem: Problem) -> list[bool]:
    return [True] * len(problem.backward)


@settings(options, max_examples=examples(150))
@given(problem=st.one_of(problems(), problems(pinned=True), tight_problems(), tight_problems(pinned=True)))
@pytest.mark.slow
def test_no_plan_is_cheaper_than_the_relaxation(problem: Problem) -> None:
    for point in front(problem, everywhere(problem)) or []:
        for window in (1, 2, 3):
            assert relaxed(problem, point.peak_bytes, window) <= point.objective_s * (1 + 1e-7)


@settings(options, max_examples=examples(80))
@given(problem=problems(operators=6, pinned=True), extra=st.integers(-2, 12))
def test_the_relaxation_is_never_above_the_full_program(problem: Problem, extra: int) -> None:
    known = smallest_budget(problem)
    if known is None:
        return
    best = full(problem, known[0] + extra)
    for window in (1, 2):
        assert relaxed(problem, known[0] + extra, window) <= best * (1 + 1e-6)


def test_the_relaxation_bounds_something() -> None:
    # It would be at most every plan if it were zero, too.
    problem = chain(8)
    known = smallest_budget(problem)
    assert known is not None
    budgets = [known[0], known[0] + 6, known[0] + 12]
    free = full(problem, known[0] * 10)
    for budget in budgets:
        best, bounds = full(problem, budget), [relaxed(problem, budget, window) for window in (1, 2, 4, 8)]
        assert free <= bounds[0] * (1 + 1e-9)
        assert all(narrow <= wide * (1 + 1e-9) for narrow, wide in itertools.pairwise(bounds))
        assert bounds[-1] == pytest.approx(best)
    assert relaxed(problem, known[0], 4) > free * 1.05
    assert relaxed(problem, problem.fixed_bytes + 1, 4) == math.inf


@settings(options, max_examples=examples(100))
@given(problem=st.one_of(problems(), tight_problems()))
def test_the_full_program_is_exhaustion_over_all_stages(problem: Problem) -> None:
    for point in front(problem, everywhere(problem)) or []:
        assert full(problem, point.peak_bytes) == pytest.approx(point.objective_s, rel=1e-7)


@settings(options, max_examples=examples(60))
@given(problem=st.one_of(problems(operators=5), tight_problems()), window=st.integers(1, 3), extra=st.integers(0, 12))
def test_a_plan_is_a_point_of_the_relaxation_at_its_own_cost(problem: Problem, window: int, extra: int) -> None:
    known = smallest_budget(problem)
    if known is None:
        return
    budget = known[0] + extra
    plan = plan_problem(problem, budget, Solving(window=window, gap=0.0), start=known[1].runs)
    program = build_program(problem, budget, window, relaxed=True)
    add_memory_rows(program)
    x = write_point(program, Runs(plan.runs.forward, plan.runs.stages))
    outside = earlier(program.windows, Runs(plan.runs.forward, plan.runs.stages))
    # Only a plan that recomputes before a window has no columns of its own there.
    assert (x is None) == bool(outside)
    if x is not None:
        arrays = program.rows.arrays()
        assert float(arrays.cost @ x) == pytest.approx(plan.objective_s)
        assert Model(arrays, x * 0, x * 0 + 1).violation(x) <= 1e-6


def test_two_orders_of_recomputation_need_a_stage_that_reads_nothing() -> None:
    problem = two_orders()
    best = best_by_exhaustion(problem, 20, everywhere(problem))
    assert best is not None
    assert best == pytest.approx(8e-3)
    assert best_by_exhaustion(problem, 20, [False, False, False, True]) == math.inf
    assert full(problem, 20) == pytest.approx(best)
    assert full(problem, 19) == math.inf
    for window in (1, 2, 3, 4):
        assert relaxed(problem, 20, window) <= best * (1 + 1e-9)
    # The windowed program leaves that stage out, and its name says that it is not the full one.
    windowed = build_program(problem, 20, 3)
    assert windowed.scope == "window 3"
    assert optimum(windowed) == math.inf


def test_scopes_are_named() -> None:
    problem = chain(60)
    assert build_program(problem, 100, None).scope == "full"
    assert build_program(problem, 100, 4).scope == "window 4"
    assert build_program(problem, 100, 4, after_peaks=frozenset({3, 9})).scope == "window 4 + 2 stages"
    also_at = {"t1": frozenset({0, 1}), "t2": frozenset({0})}
    assert build_program(problem, 100, 4, also_at).scope == "window 4 + 3 known reruns"
    assert build_program(problem, 100, 4, relaxed=True).scope == "full"
    index = index_of(problem)
    assert scope_of(index, 60).window is None and scope_of(index, 59).window == 59
    assert scope_of(index_of(chain(40)), None).window is None and scope_of(index_of(chain(41)), None).window == 16


# Stages after peaks, and stages that a start needs.


def peaky(workspaces: list[tuple[int, int, float]]) -> Problem:
    """A chain; stage t has a fast implementation with the first workspace, and a lean one that takes longer."""
    count = len(workspaces)
    forward = tuple(
        ForwardOperator(
            f"op{i}", (f"t{i - 1}",) if i else (), (f"t{i}",), (ForwardImplementation("only", 1e-3 + i * 1e-4),)
        )
        for i in range(count)
    )
    backward = tuple(
        BackwardOperator(
            f"b{t}",
            (
                BackwardImplementation("fast", 1e-3, (f"t{count - 1 - t}",), fast),
                BackwardImplementation("lean", 1e-3 + extra_s, (f"t{count - 1 - t}",), lean),
            ),
            2,
            3,
        )
        for t, (fast, lean, extra_s) in enumerate(workspaces)
    )
    return Problem("peaky", tuple(Tensor(f"t{i}", 5) for i in range(count)), forward, (), backward, 0)


def test_stages_after_peaks_follow_the_largest_trades_of_time_for_memory() -> None:
    calm = (0, 0, 0.0)
    # (extra bytes + 3 of gradients) x extra seconds: stage 1: 43 x 5 ms, stage 3: 13 x 20 ms, stage 5: 103 x 1 ms.
    problem = peaky([calm, (40, 0, 5e-3), calm, (10, 0, 20e-3), calm, (100, 0, 1e-3), calm, calm])
    index = windows(problem, None)
    assert after_peaks(index) == {2, 4}
    assert after_peaks(index, 1) == {4}
    assert after_peaks(index, 3) == {2, 4, 6}
    assert after_peaks(index, 0) == frozenset()
    assert after_peaks(windows(peaky([calm] * 4), None)) == frozenset()
    # A peak at the last stage has none after it, and two peaks in a row may share one.
    assert after_peaks(windows(peaky([calm, calm, (40, 0, 5e-3)]), None)) == frozenset()
    assert after_peaks(windows(peaky([calm, (40, 0, 5e-3), (40, 0, 5e-3), calm]), None)) == {2, 3}


def test_a_stage_after_a_peak_makes_a_plan_possible_that_the_window_forbids() -> None:
    problem = with_a_peak()
    # Nothing survives stage 0. At stage 1 there is room for all, at stage 2 again only for what is then needed.
    narrow = optimum(build_program(problem, BUDGET, 1))
    wide = optimum(build_program(problem, BUDGET, 1, after_peaks=frozenset({1})))
    assert wide < narrow
    assert (
        wide
        == pytest.approx(full(problem, BUDGET))
        == pytest.approx(best_by_exhaustion(problem, BUDGET, everywhere(problem)))
    )


BUDGET = 24


def with_a_peak() -> Problem:
    """``z`` is made from the large ``a``; stage 0 leaves room for ``a`` alone, and stage 2 for little besides ``a``."""
    return Problem(
        "peak",
        (Tensor("a", 10), Tensor("z", 4)),
        (
            ForwardOperator("make a", (), ("a",), (ForwardImplementation("only", 9e-3),)),
            ForwardOperator("make z", ("a",), ("z",), (ForwardImplementation("only", 1e-3),)),
        ),
        (),
        (
            BackwardOperator("b0", (BackwardImplementation("only", 1e-3, (), 12),), 2, 2),
            BackwardOperator("b1", (BackwardImplementation("only", 1e-3, ("a",)),), 2, 2),
            BackwardOperator("b2", (BackwardImplementation("only", 1e-3, (), 14),), 2, 2),
            BackwardOperator("b3", (BackwardImplementation("only", 1e-3, ("z",)),), 2, 2),
        ),
        0,
    )


@pytest.mark.parametrize("window", [1, 2])
@pytest.mark.parametrize(("also_at", "stages"), [(True, ()), (False, (1,)), (False, (0, 1, 2))])
def test_after_peaks_and_also_at_add_their_stages_only(window: int, also_at: bool, stages: tuple[int, ...]) -> None:
    problem = chain(6)
    added = {"t0": frozenset({2})} if also_at else {}
    plain = windows(problem, window)
    more = windows(problem, window, added, frozenset(stages))
    assert more.after_peaks == frozenset(stages)
    for i, (before, after) in enumerate(zip(plain.stages_again, more.stages_again, strict=True)):
        name = problem.forward[i].outputs[0]
        if not plain.runs_again[i]:
            assert not after
            continue
        extra = {t for t in (*stages, *added.get(name, ())) if t <= plain.last[name]}
        assert after == before | extra
        assert more.start[name] == min(plain.start[name], *extra, plain.start[name])


@settings(options, max_examples=examples(100))
@given(problem=st.one_of(problems(), tight_problems()))
def test_plans_that_recompute_anywhere_are_points_of_a_program_that_offers_it(problem: Problem) -> None:
    for point in front(problem, everywhere(problem)) or []:
        runs = without_useless(problem, point.runs)
        cost = replay(problem, runs)
        program = build_program(problem, cost.peak_bytes, 1, earlier(windows(problem, 1), runs))
        add_memory_rows(program)
        x = write_point(program, runs)
        if (
            any(  # what a better implementation replaces has no column
                run.implementation not in {q.name for q in offered[int(run.operator[2:])]}
                for made, offered in (
                    (runs.forward, program.windows.runs_forward),
                    (tuple(run for stage in runs.stages for run in stage.recompute), program.windows.runs_again),
                )
                for run in made
            )
            or any(
                stage.implementation not in {q.name for q in program.windows.runs_backward[t]}
                for t, stage in enumerate(runs.stages)
            )
        ):
            continue
        assert x is not None
        arrays = program.rows.arrays()
        assert float(arrays.cost @ x) == pytest.approx(cost.objective_s)
        assert read_point(program, x) == runs


def test_a_start_that_recomputes_at_odd_stages_is_kept() -> None:
    problem = two_orders()
    odd = Runs(
        (Run("make a", "only"), Run("make b", "only")),
        (
            Stage((), "b0", "only"),
            Stage((), "b1", "only"),
            Stage((Run("make b", "only"),), "b2", "only"),
            Stage((Run("make a", "only"),), "b3", "only"),
        ),
    )
    cost = replay(problem, odd)
    assert cost.peak_bytes == 20
    assert cost.objective_s == pytest.approx(8e-3)
    runs = Runs(odd.forward, odd.stages)
    # The window of one stage, and the one that covers the stage without offering it.
    for window in (1, 3):
        also_at = earlier(windows(problem, window), runs)
        assert 2 in also_at["b"]
        program = build_program(problem, 20, window, also_at)
        add_memory_rows(program)
        x = write_point(program, runs)
        assert x is not None
        assert Model(program.rows.arrays(), np.zeros(len(x)), np.ones(len(x))).violation(x) == 0.0
        assert plan_problem(problem, 20, Solving(window=window, gap=0.0), start=odd).objective_s == pytest.approx(8e-3)


def test_windows_widen_to_the_full_program() -> None:
    problem = chain(7)
    known = smallest_budget(problem)
    assert known is not None
    costs = [optimum(build_program(problem, known[0] + 3, window)) for window in (1, 3, 5, 7, None)]
    for small, large in itertools.pairwise(costs):
        assert large <= small * (1 + 1e-9)

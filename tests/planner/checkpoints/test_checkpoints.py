"""The checkpoint program: its bound is one on every plan, and plans from its points are plans."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from plan_front import front, tight_problems
from planner_problems import best_by_exhaustion, chain, problems, repeated, repeated_problems
from random_examples import examples

from monet.errors import InfeasibleBudget, InvalidPlan
from monet.planner.checkpoints.columns import CheckpointProgram, Checkpoints
from monet.planner.checkpoints.in_place import in_place
from monet.planner.checkpoints.plans import plan_of
from monet.planner.checkpoints.program import checkpoint_program
from monet.planner.checkpoints.repair import repaired
from monet.planner.construction.first_plans import fastest_plan
from monet.planner.problem import Problem
from monet.planner.program.index import index_of
from monet.planner.replay import replay
from monet.planner.search import Solving, plan_problem
from monet.planner.search.checkpoints import CheckpointSearch
from monet.planner.search.incumbent import Deadline, Incumbent
from monet.planner.solution import Run, Runs, Stage
from monet.planner.solvers.finder import solver
from monet.planner.solvers.model import Answer, Limits, Model

quick = settings(
    max_examples=examples(100), deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)
positions = st.sets(st.integers(0, 5), max_size=3)


def program_of(problem: Problem, budget_bytes: int, stages: set[int], forward: set[int]) -> CheckpointProgram:
    """The program with the checkpoints that there are."""
    checkpoints = Checkpoints(
        tuple(sorted(stage for stage in stages if stage < len(problem.backward))),
        tuple(sorted(i for i in forward if i < len(problem.forward))),
    )
    return checkpoint_program(index_of(problem), budget_bytes, checkpoints)


def solved(program: CheckpointProgram, *, integer: bool) -> Answer:
    """To optimality; infinity where no point fits. In seconds of a whole plan."""
    arrays = program.rows.arrays()
    arrays = replace(arrays, integer=np.full(len(arrays.cost), integer))
    model = Model(arrays, np.zeros(len(arrays.cost)), np.ones(len(arrays.cost)))
    answer = solver("HIGHS")(model, Limits(60.0, 0.0), None)
    assert answer.status in ("optimal", "infeasible")
    return replace(answer, bound=program.base_s + answer.bound, objective=program.base_s + answer.objective)


@quick
@given(problem=problems(pinned=True), extra=st.integers(8, 45), stages=positions, forward=positions)
@pytest.mark.slow
def test_no_plan_takes_less_than_the_bound(problem: Problem, extra: int, stages: set[int], forward: set[int]) -> None:
    budget = problem.fixed_bytes + extra
    best = best_by_exhaustion(problem, budget, [True] * len(problem.backward))
    assume(best is not None)
    assert best is not None
    program = program_of(problem, budget, stages, forward)
    relaxed, whole = solved(program, integer=False), solved(program, integer=True)
    assert relaxed.bound <= whole.bound * (1 + 1e-9)
    assert whole.bound <= best * (1 + 1e-9)


@quick
@given(problem=st.one_of(problems(), tight_problems()), stages=positions, forward=positions)
def test_the_bound_holds_under_the_tightest_budgets(problem: Problem, stages: set[int], forward: set[int]) -> None:
    """Each plan that none beats in both peak and time, under a budget of its very peak."""
    for point in front(problem, [True] * len(problem.backward), 3000) or []:
        bound = solved(program_of(problem, point.peak_bytes, stages, forward), integer=True).bound
        assert bound <= point.objective_s * (1 + 1e-9)


@quick
@given(problem=problems(operators=6, pinned=True), extra=st.integers(8, 60), stages=positions, more=st.integers(0, 5))
def test_a_moment_more_never_makes_the_bound_weaker(problem: Problem, extra: int, stages: set[int], more: int) -> None:
    budget = problem.fixed_bytes + extra
    fewer, all_of_them = (
        solved(program_of(problem, budget, chosen, set()), integer=False) for chosen in (stages, stages | {more})
    )
    assert all_of_them.bound >= fewer.bound * (1 - 1e-9)


@quick
@given(problem=problems(operators=6, pinned=True), extra=st.integers(8, 60), stages=positions)
def test_points_give_plans(problem: Problem, extra: int, stages: set[int]) -> None:
    program = program_of(problem, problem.fixed_bytes + extra, stages, set())
    answer = solved(program, integer=True)
    assume(answer.x is not None)
    assert answer.x is not None
    runs = plan_of(program, answer.x)
    assume(runs is not None)
    assert runs is not None
    cost = replay(problem, runs)
    assert cost.objective_s >= answer.bound * (1 - 1e-9)


def test_without_a_limit_the_plan_is_the_fastest() -> None:
    problem = chain(9)
    program = checkpoint_program(index_of(problem), 10**6)
    answer = solved(program, integer=True)
    assert answer.x is not None
    runs, fastest = plan_of(program, answer.x), fastest_plan(problem)
    assert runs is not None
    assert fastest is not None
    assert replay(problem, runs).objective_s == pytest.approx(fastest.objective_s)
    assert replay(problem, runs).objective_s == pytest.approx(answer.bound)


@quick
@given(problem=problems(operators=6, pinned=True), extra=st.integers(8, 60))
def test_what_is_overwritten_is_not_read_later(problem: Problem, extra: int) -> None:
    fastest = fastest_plan(problem)
    assume(fastest is not None)
    assert fastest is not None
    index = index_of(problem)
    before = replay(problem, fastest.runs)
    assert replay(problem, in_place(index, fastest.runs)).objective_s <= before.objective_s * (1 + 1e-9)
    runs = repaired(index, fastest.runs, problem.fixed_bytes + extra)
    assume(runs is not None)
    assert runs is not None
    assert replay(problem, runs).peak_bytes <= problem.fixed_bytes + extra


def test_a_run_that_must_destroy_what_is_read_later_is_left_to_the_replay() -> None:
    problem = chain(3)
    first = problem.forward[1]
    only = replace(first.implementations[0], overwrites=first.inputs[0])
    forward = tuple(replace(o, implementations=(only,)) if o is first else o for o in problem.forward)
    problem = replace(problem, forward=forward)
    runs = Runs(
        tuple(Run(o.id, o.implementations[0].name, ()) for o in problem.forward),
        tuple(Stage((), o.id, o.implementations[0].name) for o in problem.backward),
    )
    same = in_place(index_of(problem), runs)
    assert same.forward == runs.forward
    with pytest.raises(InvalidPlan):
        replay(problem, same)


@quick
@given(problem=st.one_of(problems(operators=6, pinned=True), tight_problems()), data=st.data())
def test_a_repaired_plan_fits(problem: Problem, data: st.DataObject) -> None:
    """Each undominated plan, made to fit the peak of a smaller one."""
    points = front(problem, [True] * len(problem.backward), 3000) or []
    assume(points)
    index, fastest = index_of(problem), fastest_plan(problem)
    budget_bytes = data.draw(st.sampled_from(points)).peak_bytes
    assume(fastest is not None)
    assert fastest is not None
    runs = repaired(index, fastest.runs, budget_bytes)
    assert runs is None or replay(problem, runs).peak_bytes <= budget_bytes


def search(problem: Problem, budget_bytes: int, gap: float = 0.0) -> CheckpointSearch:
    best = Incumbent.fastest_within(problem, budget_bytes)
    found = CheckpointSearch(index_of(problem), budget_bytes, solver("HIGHS"), best, Deadline(60.0), gap)
    found.run(60.0)
    return found


@pytest.mark.parametrize(("blocks", "gap"), [(8, 0.05), (40, 0.03)])
def test_deep_networks_are_planned_and_proven(blocks: int, gap: float) -> None:
    """The fewer the blocks, the more a single one's memory matters, which is not counted between checkpoints."""
    problem = repeated(blocks)
    fastest = fastest_plan(problem)
    assert fastest is not None
    for share in (0.8, 0.5, 0.4):
        budget = round(fastest.peak_bytes * share)
        found = search(problem, budget, gap)
        assert not found.infeasible
        assert found.incumbent.cost is not None
        assert found.incumbent.cost.peak_bytes <= budget
        assert found.is_close(), (share, found.incumbent.value, found.bound)


@settings(quick, max_examples=examples(40))
@given(problem=repeated_problems(), share=st.floats(0.4, 1.0))
def test_repeated_networks_are_bounded_by_the_full_program(problem: Problem, share: float) -> None:
    fastest = fastest_plan(problem)
    assert fastest is not None
    budget = round(fastest.peak_bytes * share)
    found = search(problem, budget)
    try:
        full = plan_problem(problem, budget, Solving(window=len(problem.backward), gap=0.0))
    except InfeasibleBudget:
        assert found.incumbent.runs is None
        return
    assert not found.infeasible
    assert found.bound <= full.objective_s * (1 + 1e-9)
    assert found.incumbent.value >= full.objective_s * (1 - 1e-9)
    assert replay(problem, full.runs).peak_bytes <= budget


@settings(quick, max_examples=examples(30))
@given(problem=repeated_problems(), shares=st.lists(st.floats(0.5, 1.1), min_size=2, max_size=4))
def test_more_memory_is_never_slower(problem: Problem, shares: list[float]) -> None:
    fastest = fastest_plan(problem)
    assert fastest is not None
    known: Runs | None = None
    seconds = float("inf")
    for share in sorted(shares):
        try:
            plan = plan_problem(problem, round(fastest.peak_bytes * share), Solving(gap=0.05), start=known)
        except InfeasibleBudget:
            assert known is None
            continue
        assert plan.objective_s <= seconds
        known, seconds = plan.runs, plan.objective_s


def test_a_budget_that_nothing_fits_is_proven_too_small() -> None:
    problem = repeated(12)
    found = search(problem, problem.fixed_bytes + 60)
    assert found.infeasible
    assert found.incumbent.runs is None


def test_plans_that_do_not_fit_are_not_offered() -> None:
    problem = repeated(12)
    fastest = fastest_plan(problem)
    assert fastest is not None
    found = search(problem, fastest.peak_bytes // 2)
    assert any(cost.peak_bytes > found.budget_bytes for _, cost in found.seen)
    assert found.incumbent.cost is not None
    assert found.incumbent.cost.peak_bytes <= found.budget_bytes
    fitting = [cost.objective_s for _, cost in found.seen if cost.peak_bytes <= found.budget_bytes]
    assert min(fitting) == found.incumbent.value
    assert found.incumbent.value >= found.bound * (1 - 1e-9)


def test_a_plan_that_comes_again_gets_checkpoints_however_near() -> None:
    """What is set aside at a checkpoint changes nothing where the plan exceeds the budget beside it."""
    problem = chain(400)
    plan = fastest_plan(problem)
    assert plan is not None
    best = Incumbent.fastest_within(problem, plan.peak_bytes)
    search = CheckpointSearch(index_of(problem), plan.peak_bytes, solver("HIGHS"), best, Deadline(60.0), 0.01)
    cost = replay(problem, plan.runs)
    moment = next(moment for moment in cost.moments if moment.stage == 200)
    over = replace(cost, moments=(replace(moment, bytes=plan.peak_bytes + 1),))
    beside = Checkpoints((197, 198, 199, 201, 202, 203))
    assert search._with_worst(beside, over, again=False) == beside
    assert search._with_worst(beside, over, again=True) == Checkpoints((197, 198, 199, 200, 201, 202, 203))

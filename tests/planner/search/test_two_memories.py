"""Plans with a second memory: against every plan of the class, at the ends of the bandwidth, and by replay."""

from __future__ import annotations

import _thread
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from moving_plans import chain, every_plan, least, moved, second, without_waiting
from planner_problems import problems
from random_examples import examples
from scipy.sparse import csr_array

from monet.errors import ConfigError, InfeasibleBudget, InvalidPlan
from monet.planner.checkpoints.columns import Checkpoints
from monet.planner.checkpoints.program import checkpoint_program
from monet.planner.construction.copies import moving, stage_reads, with_copies
from monet.planner.problem import (
    STATIC,
    SYNCHRONOUS,
    BackwardImplementation,
    BackwardOperator,
    ForwardImplementation,
    ForwardOperator,
    Problem,
    Tensor,
)
from monet.planner.program.constraints import build_program
from monet.planner.program.given import given_moves, with_given
from monet.planner.program.index import index_of
from monet.planner.program.memory_rows import add_memory_rows
from monet.planner.program.moves import MoveOffers
from monet.planner.program.readback import write_point
from monet.planner.program.windows import NO_STAGES
from monet.planner.replay import replay
from monet.planner.schedules import MOVING, plan_variant
from monet.planner.search import Solving, plan_problem, smallest_plan
from monet.planner.search.checkpoints import CheckpointSearch
from monet.planner.search.formulation import Formulation
from monet.planner.search.incumbent import Deadline, Incumbent
from monet.planner.search.neighbourhoods import NODES, improve
from monet.planner.search.scope import Scope, build
from monet.planner.search.state import PolicyOf, SearchState
from monet.planner.solution import Runs
from monet.planner.solvers.finder import solver
from monet.planner.solvers.model import Answer, Limits, Model, Status

QUICK = Solving(time_limit_s=4.0, gap=1e-6, cores=1)


def bound_s(problem: Problem, budget_bytes: int, stages: tuple[int, ...], forward: tuple[int, ...]) -> float:
    """Of the integer checkpoint program."""
    program = checkpoint_program(index_of(problem), budget_bytes, Checkpoints(stages, forward))
    arrays = program.rows.arrays()
    model = Model(arrays, np.zeros(len(arrays.cost)), np.ones(len(arrays.cost)))
    return program.base_s + solver("HIGHS")(model, Limits(60.0, 0.0), None).bound


def read_after_large_ones(rate: float) -> Problem:
    """Two tensors, each read after a backward operator beside which neither fits in 20 bytes."""
    names = ("a", "b")
    forward = tuple(
        ForwardOperator(f"op{name}", (), (name,), (ForwardImplementation("plain", 0.01),), recomputable=False)
        for name in names
    )
    reads_and_bytes: tuple[tuple[tuple[str, ...], int], ...] = (((), 20), (("b",), 0), ((), 20), (("a",), 0))
    backward = tuple(
        BackwardOperator(f"b{n}", (BackwardImplementation("plain", 0.01, reads),), size, size)
        for n, (reads, size) in enumerate(reads_and_bytes)
    )
    return Problem("large", tuple(Tensor(name, 10) for name in names), forward, (), backward, 0, second(rate))


checkpoints = st.sets(st.integers(0, 5), max_size=4)


class TestAgainstEveryPlan:
    @settings(
        max_examples=examples(60),
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(problems(operators=2, pinned=True), st.integers(60, 2000), st.integers(2, 30), checkpoints, checkpoints)
    @pytest.mark.slow
    def test_no_plan_beats_the_bound(
        self, problem: Problem, rate: int, extra: int, stages: set[int], forward: set[int]
    ) -> None:
        """Of all kinds: kept, made again, moved, each at any time; memory may be counted at other checkpoints, too."""
        counted = (
            tuple(sorted(stage for stage in stages if stage < len(problem.backward))),
            tuple(sorted(i for i in forward if i < len(problem.forward))),
        )
        whole = replace(problem, second=second(float(rate)))
        budget = problem.fixed_bytes + extra
        truth = least(whole, budget)
        assume(truth is not None and truth < math.inf)
        assert truth is not None
        assert bound_s(whole, budget, *counted) <= truth * (1 + 1e-7)

    @pytest.mark.parametrize("rate", [1000.0, 3000.0])
    def test_what_is_waited_for_after_each_moment_adds_up(self, rate: float) -> None:
        """What a moment has no room for comes back after it, and is waited for there."""
        problem = read_after_large_ones(rate)
        truth = least(problem, 20, 10**6)
        assert truth is not None
        assert bound_s(problem, 20, (), ()) < truth * 0.95
        assert bound_s(problem, 20, (0, 2), ()) == pytest.approx(truth)

    @pytest.mark.parametrize("rate", [1000.0, 3000.0])
    def test_proof_goes_on_with_the_moments_that_its_plan_breaks(self, rate: float) -> None:
        problem = read_after_large_ones(rate)
        truth = least(problem, 20, 10**6)
        best = Incumbent.fastest_within(problem, 20)
        search = CheckpointSearch(index_of(problem), 20, solver("HIGHS"), best, Deadline(60.0), 0.0)
        search.prove(60.0)
        assert search.bound == pytest.approx(truth)

    @pytest.mark.parametrize("rate", [300.0, 1000.0, 3000.0, 10000.0])
    @pytest.mark.parametrize("extra", [20, 29])
    def test_bound_of_a_chain(self, rate: float, extra: int) -> None:
        """Nothing can be made again, so what does not fit is moved: the bound is no more than the least, and near."""
        problem = chain(2, 10)
        problem = replace(problem, forward=tuple(replace(o, recomputable=False) for o in problem.forward))
        large = BackwardOperator("large", (BackwardImplementation("plain", 0.01, ()),), 10, 10)
        whole = replace(problem, backward=(large, *problem.backward), second=second(rate))
        truth = least(whole, extra)
        assert truth is not None
        bound = bound_s(whole, extra, (), ())
        assert bound <= truth * (1 + 1e-7)
        assert bound >= truth * 0.7

    @settings(max_examples=examples(25), deadline=None)
    @given(problems(operators=2), st.integers(20, 2000), st.data())
    def test_bound_and_plan(self, problem: Problem, rate: int, data: st.DataObject) -> None:
        """No plan of the class beats the bound, and the plan found is none of less than the least."""
        whole = replace(problem, second=second(float(rate)))
        peak = plan_variant("pytorch", problem, 10**9).peak_bytes
        budget = data.draw(st.integers(max(1, peak // 2), peak))
        truth = least(whole, budget)
        assume(truth is not None)
        assert truth is not None
        try:
            found = plan_problem(whole, budget, QUICK)
        except InfeasibleBudget as error:
            if "proven" in str(error):
                assert truth == math.inf
            return
        assert found.objective_s == pytest.approx(replay(whole, found.runs).objective_s)
        assert found.peak_bytes <= budget
        if found.proof is not None and found.proof.scope == "full":
            assert found.bound_s <= truth * (1 + 1e-6)
            assert found.bound_s <= found.objective_s * (1 + 1e-9)

    @settings(max_examples=examples(15), deadline=None)
    @given(problems(operators=3), st.data())
    def test_never_slower_than_without(self, problem: Problem, data: st.DataObject) -> None:
        peak = plan_variant("pytorch", problem, 10**9).peak_bytes
        budget = data.draw(st.integers(max(1, peak // 2), peak))
        try:
            plain = plan_problem(problem, budget, QUICK)
        except InfeasibleBudget:
            return
        if plain.status != "optimal":
            return
        whole = replace(problem, second=second(500.0))
        assert plan_problem(whole, budget, QUICK).objective_s <= plain.objective_s * (1 + 1e-6)


class TestSmallestBudget:
    @settings(max_examples=examples(5), deadline=None)
    @given(problems(operators=2), st.integers(20, 2000), st.sampled_from([None, 1.0, 1.3]))
    def test_bound_and_plan(self, problem: Problem, rate: int, slower: float | None) -> None:
        """No plan of the class that is as fast has a smaller peak than the bound, and the plan found is one of them."""
        whole = replace(problem, second=second(float(rate)))
        plans = every_plan(whole)
        assume(plans is not None)
        assert plans is not None
        costs = list(plans)
        assume(costs)
        fastest = min(cost.objective_s for cost in costs)
        most_s = None if slower is None else fastest * slower + 1e-9
        smallest = min(cost.peak_bytes for cost in costs if most_s is None or cost.objective_s <= most_s)
        found = smallest_plan(whole, most_s, QUICK)
        assert found.solution.peak_bytes == replay(whole, found.solution.runs).peak_bytes
        assert most_s is None or found.solution.objective_s <= most_s
        assert found.bound_bytes <= smallest
        assert found.bound_bytes <= found.solution.peak_bytes
        with pytest.raises(InfeasibleBudget, match="allow more overhead"):
            smallest_plan(whole, fastest * 0.99, QUICK)

    @pytest.mark.parametrize("slower", [1.0, 1.2, None])
    def test_a_chain_needs_less_with_moves(self, slower: float | None) -> None:
        problem = chain(8, 100)
        problem = replace(problem, forward=tuple(replace(o, recomputable=False) for o in problem.forward))
        most_s = None if slower is None else plan_variant("pytorch", problem, 10**9).objective_s * slower + 1e-9
        plain = smallest_plan(problem, most_s, QUICK)
        found = smallest_plan(replace(problem, second=second(1e6)), most_s, QUICK)
        assert found.solution.peak_bytes < plain.solution.peak_bytes
        assert found.solution.runs.moved
        assert found.gap < 0.2

    def test_ctrl_c_keeps_the_smallest_plan_so_far(self, default_interrupts: None) -> None:
        problem = replace(chain(40, 100), second=second(1e4))
        most_s = plan_variant("pytorch", problem, 10**9).objective_s * 1.05

        def interrupted(best: float | None, bound: float | None, gap: float | None, elapsed_s: float) -> None:
            _thread.interrupt_main()

        found = smallest_plan(problem, most_s, Solving(time_limit_s=60.0, gap=0.0), progress=interrupted)
        assert found.solution.status == "interrupted" and found.solution.objective_s <= most_s
        assert found.bound_bytes <= found.solution.peak_bytes == replay(problem, found.solution.runs).peak_bytes

    def test_ctrl_c_in_a_search_inside_ends_all_of_them(self, monkeypatch: pytest.MonkeyPatch) -> None:
        asked = interrupted_without_moves(monkeypatch)
        problem = replace(chain(20, 100), second=second(1e4))
        most_s = plan_variant("pytorch", problem, 10**9).objective_s * 1.05
        found = smallest_plan(problem, most_s, Solving(time_limit_s=5.0, gap=0.0))
        assert asked == [replace(problem, second=None)]
        assert found.solution.status == "interrupted"


def interrupted_without_moves(monkeypatch: pytest.MonkeyPatch) -> list[Problem]:
    """Ctrl-C comes in each search without a second memory; their problems."""
    asked: list[Problem] = []
    follow = SearchState.follow

    def interrupted(state: SearchState, policy: PolicyOf) -> None:
        if state.incumbent.problem.second is None:
            asked.append(state.incumbent.problem)
            raise KeyboardInterrupt
        follow(state, policy)

    monkeypatch.setattr(SearchState, "follow", interrupted)
    return asked


def test_ctrl_c_without_moves_ends_the_search_with_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = interrupted_without_moves(monkeypatch)
    problem = replace(chain(20, 100), second=second(2e2))
    found = plan_problem(problem, plan_variant("pytorch", problem, 10**9).peak_bytes * 2 // 3, Solving(5.0, gap=0.0))
    assert asked == [replace(problem, second=None)]
    assert found.status == "interrupted"


class TestEndsOfTheBandwidth:
    @settings(max_examples=examples(15), deadline=None)
    @given(problems(operators=3), st.data())
    def test_no_bandwidth_moves_nothing(self, problem: Problem, data: st.DataObject) -> None:
        peak = plan_variant("pytorch", problem, 10**9).peak_bytes
        budget = data.draw(st.integers(max(1, peak // 2), peak))
        assert not index_of(replace(problem, second=second(1e-9))).movable
        try:
            plain = plan_problem(problem, budget, QUICK)
        except InfeasibleBudget:
            with pytest.raises(InfeasibleBudget):
                plan_problem(replace(problem, second=second(1e-9)), budget, QUICK)
            return
        found = plan_problem(replace(problem, second=second(1e-9)), budget, QUICK)
        assert not found.runs.moved
        assert found.objective_s == pytest.approx(plain.objective_s)

    def test_chain_moves_what_does_not_fit(self) -> None:
        """A chain whose activations are each read once, late: where the channel hides them it takes eager's time."""
        problem = chain(8, 100)
        eager = plan_variant("pytorch", problem, 10**9)
        budget = eager.peak_bytes - 400
        found = plan_problem(replace(problem, second=second(1e6)), budget, QUICK)
        assert found.objective_s == pytest.approx(eager.objective_s, rel=1e-3)
        assert found.runs.moved

    def test_synchronous_costs_its_copies(self) -> None:
        problem = chain(8, 100)
        rate = 1e5
        eager = plan_variant("pytorch", problem, 10**9)
        found = plan_variant("synchronous", replace(problem, second=second(rate)), eager.peak_bytes - 100, QUICK)
        moved = len(found.runs.moved)
        assert moved >= 1
        assert found.objective_s == pytest.approx(eager.objective_s + moved * 2 * 100 / rate)

    def test_static_reads_in_place(self) -> None:
        """Its tensor takes no fast memory; each operator that reads or makes it pays."""
        problem = chain(4, 100)
        eager = plan_variant("pytorch", problem, 10**9)
        whole = replace(problem, second=second(1e5, mode=STATIC))
        found = plan_variant("static", whole, eager.peak_bytes - 100, QUICK)
        traffic = replay(whole, found.runs).traffic
        assert traffic is not None and traffic.slow_operand_bytes > 0
        assert traffic.fast_operand_share < 1
        assert found.objective_s == pytest.approx(eager.objective_s + traffic.waited_s)

    def test_limit_holds(self) -> None:
        problem = chain(8, 100)
        whole = replace(problem, second=second(1e6, limit_bytes=250))
        eager = plan_variant("pytorch", problem, 10**9)
        found = plan_problem(whole, eager.peak_bytes - 200, QUICK)
        assert len(found.runs.moved) <= 2

    def test_variants_need_a_second_memory(self) -> None:
        for name in MOVING:
            with pytest.raises(ConfigError, match="--offload"):
                plan_variant(name, chain(3, 10), 1000, QUICK)


class TestReplay:
    def test_copies_run_beside_operators(self) -> None:
        """Two writes one after the other in an idle channel, a return that is waited for: by hand."""
        problem = replace(chain(3, 100), second=second(1e4))  # a copy takes 10 ms, an operator 10 ms
        runs = moved(problem, {"t0": (2, 0, 2)})
        cost = replay(problem, runs)
        assert cost.traffic is not None
        # Written at 10 ms until 20 ms; read from 30 ms on until 40 ms, and needed at 50 ms.
        assert cost.objective_s == pytest.approx(0.060)
        assert cost.traffic.waited_s == pytest.approx(0.0)
        late = replay(problem, moved(problem, {"t0": (1, 2, 2)}))
        assert late.objective_s == pytest.approx(0.070)  # issued where it is needed

    def test_synchronous_waits_at_once(self) -> None:
        problem = replace(chain(3, 100), second=second(1e4, mode=SYNCHRONOUS))
        assert replay(problem, moved(problem, {"t0": (1, 0, 2)})).objective_s == pytest.approx(0.080)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda r: _forward(r, 1, releases=("t0",)), "is not being moved|not in memory"),
            (lambda r: _stage(r, 0, issues=()), "whose return was not issued"),
            (lambda r: _stage(r, 2, returns=()), "has not been made|nothing waits"),
            (lambda r: _forward(r, 2, releases=()), "is not released"),
            (lambda r: _forward(r, 0, writes=()), "is not being moved"),
            (lambda r: _forward(r, 1, writes=("t0",)), "not in memory to be moved"),
        ],
    )
    def test_refuses(self, change: object, message: str) -> None:
        problem = replace(chain(3, 100), second=second(1e4))
        with pytest.raises(InvalidPlan, match=message):
            replay(problem, change(moved(problem, {"t0": (2, 0, 2)})))  # type: ignore[operator]

    def test_refuses_a_return_that_nothing_waits_for(self) -> None:
        """Of a tensor that was read back before, and is not needed any more."""
        problem = replace(chain(3, 100), second=second(1e4))
        runs = moved(problem, {"t1": (2, 0, 1)})
        replay(problem, runs)
        with pytest.raises(InvalidPlan, match="the return of 't1' was issued, and nothing waits for it"):
            replay(problem, _stage(runs, 2, issues=("t1",)))

    def test_without_a_second_memory(self) -> None:
        problem = chain(3, 100)
        with pytest.raises(InvalidPlan, match="no second memory"):
            replay(problem, moved(replace(problem, second=second(1.0)), {"t0": (2, 0, 2)}))


class TestCopies:
    @settings(max_examples=examples(30), deadline=None)
    @given(problems(operators=4), st.integers(10, 5000), st.data())
    def test_timing_fits_and_helps(self, problem: Problem, rate: int, data: st.DataObject) -> None:
        """Copies timed for a budget stay in it, and cost no more than those that are waited for where they are
        needed."""
        whole = replace(problem, second=second(float(rate)))
        index = index_of(whole)
        runs = plan_variant("pytorch", problem, 10**9).runs
        stages, back = [], set[str]()
        away = {name for name in index.movable if data.draw(st.booleans())}
        for t, stage in enumerate(runs.stages):
            q = next(q for q in problem.backward[t].implementations if q.name == stage.implementation)
            here = tuple(sorted(set(q.reads) & away - back))
            back |= set(here)
            stages.append(replace(stage, issues=here, returns=here))
        plain = Runs(moving(index, runs.forward, away), tuple(stages))
        try:
            least_cost = replay(whole, plain)
        except InvalidPlan:
            return  # an operator that works in place destroys what would be moved
        for spare in (0, 5, 50):
            budget = least_cost.peak_bytes + spare
            cost = replay(whole, with_copies(whole, plain, budget))
            assert cost.peak_bytes <= budget
        assert cost.objective_s <= least_cost.objective_s * (1 + 1e-9)


class TestGiven:
    @settings(max_examples=examples(30), deadline=None)
    @given(problems(operators=4), st.integers(10, 5000), st.data())
    def test_plan_is_a_point(self, problem: Problem, rate: int, data: st.DataObject) -> None:
        """A plan with moves is a feasible point of the exact program in which they are given."""
        peak = plan_variant("pytorch", problem, 10**9).peak_bytes
        budget = data.draw(st.integers(max(1, peak // 2), peak))
        whole = replace(problem, second=second(float(rate)))
        try:
            found = plan_variant("move-only", whole, budget, QUICK)
        except InfeasibleBudget:
            return
        moves = given_moves(whole, found.runs, stage_reads(whole, found.runs))
        rest = with_given(whole, moves)
        program = build_program(rest, budget, None, given=moves)
        add_memory_rows(program)
        x = write_point(program, moves.without(found.runs))
        assert x is not None
        arrays = program.rows.arrays()
        shape = (len(arrays.lower), len(arrays.cost))
        activity = csr_array((arrays.value, arrays.column_index, arrays.row_start), shape=shape) @ x
        assert np.all(activity <= arrays.upper + 1e-6)
        assert np.all(activity >= arrays.lower - 1e-6)
        assert replay(whole, moves.added_to(moves.without(found.runs))).objective_s == found.objective_s


class TestDecided:
    @pytest.mark.parametrize("rate", [1e4, 2e4])
    def test_search_finds_other_moves(self, rate: float) -> None:
        """From a plan that moves what is needed at once, and waits: others are needed later, and none waits."""
        problem = replace(chain(12, 100), second=second(rate))
        eager_s = plan_variant("pytorch", problem, 10**9).objective_s
        start = moved(problem, {"t10": (11, 1, 1), "t9": (11, 2, 2)})
        begun = replay(problem, start)
        assert begun.objective_s > eager_s + 5e-3
        best = Incumbent.fastest_within(problem, begun.peak_bytes - 100)
        assert not best.offer(start)
        best = Incumbent.fastest_within(problem, begun.peak_bytes)
        assert best.offer(start)
        program = build(problem, begun.peak_bytes, Scope(None, NO_STAGES), {}, moves=MoveOffers(start, best.value))
        formulation = Formulation(program, solver("HIGHS"), best, 1e-6)
        model = formulation.around(formulation.model())
        assert model is not None
        improve(
            program,
            model,
            formulation.solve,
            Limits(30.0, 1e-6, NODES),
            formulation.offer,
            None,
            cut=formulation.cut,
        )
        assert best.runs is not None and best.value == pytest.approx(eager_s)
        assert best.runs != start
        assert program.scope == "full + moves"

    @pytest.mark.parametrize("status", ["interrupted", "stopped"])
    def test_a_round_that_is_ended_is_the_last_and_its_point_counts(self, status: Status) -> None:
        problem = chain(12, 100)
        best = Incumbent.fastest_within(problem, 10**9)
        assert best.offer(plan_variant("pytorch", problem, 10**9).runs)
        program = build(problem, 10**9, Scope(None, NO_STAGES), {})
        formulation = Formulation(program, solver("HIGHS"), best, 1e-6)
        begun = formulation.around(formulation.model())
        assert begun is not None
        found: list[Any] = []
        solves = 0

        def solve(model: Model, limits: Limits, tick: Any) -> Answer:
            nonlocal solves
            solves += 1
            assert model.start is not None
            return Answer(status, model.start, float(model.arrays.cost @ model.start) / 2, 0.0)

        def accept(x: Any) -> bool:
            found.append(x)
            return True

        improve(program, begun, solve, Limits(30.0, 1e-6, NODES), accept, None)
        assert len(found) == 1 == solves

    def test_point_that_is_too_fast_is_cut(self) -> None:
        """The program has rows for few intervals to begin with: a point may be faster than its plan, and is then solved
        again with the rows that it breaks."""
        problem = replace(chain(12, 100), second=second(1e4))
        start = moved(problem, {"t0": (11, 11, 11), "t3": (11, 8, 8)})
        best = Incumbent.fastest_within(problem, replay(problem, start).peak_bytes)
        best.offer(start)
        program = build(problem, 10**6, Scope(None, NO_STAGES), {}, moves=MoveOffers(start))
        formulation = Formulation(program, solver("HIGHS"), best, 1e-6)
        x = formulation.point(formulation.model())
        assert x is not None
        assert formulation.cut(x) is None
        hurried = without_waiting(program, x)
        model = formulation.cut(hurried)
        assert model is not None
        assert model.violation(hurried) > 1e-6
        assert model.violation(x) <= 1e-6


def test_what_is_made_late_cannot_be_written_in_time() -> None:
    """The last two of a chain must go before the backward pass, which needs their room at once. All of the forward pass
    would do for their copies, but nothing is left of it when they are made: the bound knows that the step waits."""
    plain = chain(6, 100)
    tensors = tuple(replace(t, bytes=1) if i < 4 else t for i, t in enumerate(plain.tensors))
    forward = tuple(replace(operator, recomputable=False) for operator in plain.forward)
    large = BackwardOperator("large", (BackwardImplementation("plain", 0.01, ()),), 210, 210)
    problem = replace(plain, tensors=tensors, forward=forward, backward=(large, *plain.backward))
    whole = replace(problem, second=replace(second(100 / 0.02), smallest_bytes=50))  # a copy takes two operators
    found = plan_problem(whole, 220, QUICK)
    eager_s = 0.13
    # t4 is made at 50 ms and written until 70, t5 at 60 and until 90: the forward pass ends 30 ms late. Both are read
    # from 100 ms on, when the room is there again, and t5 is needed first.
    assert set(found.runs.moved) == {"t4", "t5"}
    assert found.objective_s >= eager_s + 0.03 - 1e-9
    assert found.bound_s >= eager_s + 0.03 - 1e-6


def _forward(runs: Runs, i: int, **change: tuple[str, ...]) -> Runs:
    forward = list(runs.forward)
    forward[i] = replace(forward[i], **change)  # type: ignore[arg-type]
    return Runs(tuple(forward), runs.stages)


def _stage(runs: Runs, t: int, **change: tuple[str, ...]) -> Runs:
    stages = list(runs.stages)
    stages[t] = replace(stages[t], **change)  # type: ignore[arg-type]
    return Runs(runs.forward, tuple(stages))

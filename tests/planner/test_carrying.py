"""Which parameters and state are carried: no plan takes less than the bound, and no more is carried than need be."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from planner_problems import best_by_exhaustion, chain, problems
from random_examples import examples

from monet.planner.carrying import chosen_state
from monet.planner.checkpoints.columns import Checkpoints
from monet.planner.checkpoints.program import checkpoint_program
from monet.planner.construction.first_plans import fastest_plan
from monet.planner.problem import ASYNCHRONOUS, SYNCHRONOUS, Problem, SecondMemory, StateTensor
from monet.planner.program.index import index_of
from monet.planner.search import Solving
from monet.planner.solvers.finder import solver
from monet.planner.solvers.model import Limits, Model

quick = settings(
    max_examples=examples(60), deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)
RATE = 1000.0
"""Bytes a second: a byte takes as long as an operator of a random problem at least."""
SOLVING = Solving(time_limit_s=60, gap=0.0, cores=1)


@st.composite
def states(draw: st.DrawFn, operators: int = 3) -> tuple[StateTensor, ...]:
    """Up to three tensors that operators of either pass use."""
    positions = st.frozensets(st.integers(0, operators - 1), max_size=2)
    found = []
    for n in range(draw(st.integers(1, 3))):
        size = draw(st.integers(1, 12))
        written = size * draw(st.integers(0, 1))
        found.append(StateTensor(f"s{n}", size, written, draw(positions), draw(positions)))
    return tuple(found)


def with_second(problem: Problem, state: Sequence[StateTensor], mode: str) -> Problem:
    """Whose state is in memory, and of which nothing else is moved."""
    second = SecondMemory(RATE, RATE, mode=mode, smallest_bytes=1 << 30)
    return replace(problem, fixed_bytes=problem.fixed_bytes + sum(s.bytes for s in state), second=second)


def carrying(problem: Problem, carried: Sequence[StateTensor]) -> Problem:
    """The problem with these carried: each operator needs memory for those that it uses."""
    forward = []
    for i, operator in enumerate(problem.forward):
        more = sum(s.bytes for s in carried if i in s.forward)
        runs = [
            replace(q, workspace_bytes=q.workspace_bytes + more, recompute_workspace_bytes=q.recompute_workspace_bytes)
            for q in operator.implementations
        ]
        forward.append(replace(operator, implementations=tuple(runs)))
    backward = []
    for stage, op in enumerate(problem.backward):
        more = sum(s.bytes for s in carried if stage in s.backward)
        backward.append(replace(op, live_during_bytes=op.live_during_bytes + more))
    fixed = problem.fixed_bytes - sum(s.bytes for s in carried)
    return replace(problem, forward=tuple(forward), backward=tuple(backward), fixed_bytes=fixed, second=None)


def copied_s(carried: Sequence[StateTensor]) -> float:
    return sum(s.bytes + s.written_bytes for s in carried) / RATE


@quick
@given(
    problem=problems(pinned=True), state=states(), extra=st.integers(8, 45), synchronous=st.booleans(),
    stages=st.sets(st.integers(0, 1), max_size=2), forward=st.sets(st.integers(0, 1), max_size=2),
)  # fmt: skip
def test_no_plan_takes_less_whatever_it_carries(
    problem: Problem, state: tuple[StateTensor, ...], extra: int, synchronous: bool, stages: set[int], forward: set[int]
) -> None:
    problem = with_second(problem, state, SYNCHRONOUS if synchronous else ASYNCHRONOUS)
    budget = problem.fixed_bytes + extra - sum(s.bytes for s in state)
    best = float("inf")
    for carried in (c for n in range(len(state) + 1) for c in itertools.combinations(state, n)):
        seconds = best_by_exhaustion(carrying(problem, carried), budget, [True] * len(problem.backward))
        assume(seconds is not None)
        assert seconds is not None
        copies_s = copied_s(carried)
        best = min(best, seconds + copies_s if synchronous else max(seconds, copies_s))
    checkpoints = Checkpoints(tuple(sorted(stages)), tuple(sorted(forward)))
    program = checkpoint_program(index_of(problem), budget, checkpoints, state)
    arrays = program.rows.arrays()
    model = Model(arrays, np.zeros(len(arrays.cost)), np.ones(len(arrays.cost)))
    answer = solver("HIGHS")(model, Limits(60.0, 0.0), None)
    assert answer.status in ("optimal", "infeasible")
    if answer.status == "optimal":
        assert program.base_s + answer.bound <= best * (1 + 1e-9)
    else:
        assert best == float("inf")
    assert chosen_state(problem, state, budget, SOLVING).bound_s <= best * (1 + 1e-9)


def test_no_more_is_carried_than_need_be() -> None:
    """Of eight tensors that no operator uses, those whose copies are shortest, which are never written; beside
    operators there is room for one more."""
    state = tuple(StateTensor(f"s{n}", 100, 100 * (n % 2), frozenset(), frozenset()) for n in range(8))
    fastest = fastest_plan(chain(4))
    assert fastest is not None
    for mode, spare in ((SYNCHRONOUS, 0), (ASYNCHRONOUS, 1)):
        problem = with_second(chain(4), state, mode)
        for missing, count in ((170, 2), (370, 4), (570, 6)):
            budget = fastest.peak_bytes + 800 - missing
            chosen = chosen_state(problem, state, budget, SOLVING)
            first = chosen.choices[0] if chosen.choices else frozenset()
            read_only = {name for name in first if int(name[1:]) % 2 == 0}
            assert len(first) == count + spare
            assert len(read_only) == min(4, len(first))
            assert all(len(first) < len(more) for more in chosen.choices[1:])


def test_nothing_is_chosen_where_no_plan_can_fit() -> None:
    state = (StateTensor("s", 100, 100, frozenset(), frozenset()),)
    problem = with_second(chain(4), state, ASYNCHRONOUS)
    assert chosen_state(problem, state, 10, SOLVING).choices == ()

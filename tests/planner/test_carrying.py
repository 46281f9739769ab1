"""Which parameters and state are carried: no plan takes less than the bound, and no more is carried than need be."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from planner_problems import best_by_exhaustion, chain, problems
from random_examples import examples

from monet.planner.carrying import chosen_state
from monet.planner.checkpoints.carried_state import uses
from monet.planner.checkpoints.columns import Checkpoints
from monet.planner.checkpoints.program import checkpoint_program
from monet.planner.construction.first_plans import fastest_plan
from monet.planner.problem import ASYNCHRONOUS, SYNCHRONOUS, Problem, SecondMemory, StateTensor
from monet.planner.program.index import index_of
from monet.planner.search import Solving
from monet.planner.solvers.finder import solver
from monet.planner.solvers.model import Limits, Model

T = TypeVar("T")
quick = settings(
    max_examples=examples(60), deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)
RATE = 1000.0
"""Bytes a second: a byte takes as long as an operator of a random problem at least."""
SOLVING = Solving(time_limit_s=60, gap=0.0, cores=1)


@st.composite
def states(draw: st.DrawFn, operators: int = 3) -> tuple[StateTensor, ...]:
    """A tensor that up to three operators use, of either pass."""
    size = draw(st.integers(1, 12))
    used = draw(st.sets(st.tuples(st.booleans(), st.integers(0, operators - 1)), max_size=3))
    passes = [frozenset(i for backward, i in used if backward == which) for which in (False, True)]
    return (StateTensor("s", size, size * draw(st.integers(0, 1)), *passes),)


def with_second(problem: Problem, state: Sequence[StateTensor], mode: str) -> Problem:
    """Whose state is in memory, and of which nothing else is moved."""
    second = SecondMemory(RATE, RATE, mode=mode, smallest_bytes=1 << 30)
    return replace(problem, fixed_bytes=problem.fixed_bytes + sum(s.bytes for s in state), second=second)


Use = tuple[bool, int]
"""Whether it is in the backward pass, and the operator's position."""
Gap = tuple[StateTensor, Use, Use]
"""Between two uses, one after the other."""
TURNAROUND: Use = (True, -1)


def gaps(carried: Sequence[StateTensor]) -> list[Gap]:
    return [(tensor, *pair) for tensor in carried for pair in itertools.pairwise(uses(tensor))]


def early(carried: Sequence[StateTensor], stays: Sequence[Gap]) -> list[Gap]:
    """What may be read before the backward pass begins, until its first use in it, and does not stay over the
    turnaround."""
    staying = {tensor.id for tensor, before, after in stays if before < TURNAROUND < after}
    return [(s, TURNAROUND, (True, min(s.backward))) for s in carried if s.backward and s.id not in staying]


def carrying(problem: Problem, carried: Sequence[StateTensor], stays: Sequence[Gap]) -> Problem:
    """The problem with these carried: each operator needs memory for those that it uses, or that stay over it."""
    forward = []
    for i, operator in enumerate(problem.forward):
        more = sum(s.bytes for s in carried if i in s.forward)
        more += sum(s.bytes for s, before, after in stays if before < (False, i) < after)
        runs = [
            replace(q, workspace_bytes=q.workspace_bytes + more, recompute_workspace_bytes=q.recompute_workspace_bytes)
            for q in operator.implementations
        ]
        forward.append(replace(operator, implementations=tuple(runs)))
    backward = []
    for stage, op in enumerate(problem.backward):
        more = sum(s.bytes for s in carried if stage in s.backward)
        more += sum(s.bytes for s, before, after in stays if before < (True, stage) < after)
        again = sum(s.bytes for s, before, after in stays if before < (True, stage) <= after)
        during, before_bytes = op.live_during_bytes + more, op.live_before_bytes + again
        backward.append(replace(op, live_during_bytes=during, live_before_bytes=before_bytes))
    fixed = problem.fixed_bytes - sum(s.bytes for s in carried)
    return replace(problem, forward=tuple(forward), backward=tuple(backward), fixed_bytes=fixed, second=None)


def copied_s(carried: Sequence[StateTensor], stays: Sequence[Gap]) -> float:
    """What is read once, and again after each gap over which it does not stay, and written."""
    again = sum(tensor.bytes for tensor, _, _ in gaps(carried)) - sum(tensor.bytes for tensor, _, _ in stays)
    return (sum(s.bytes + s.written_bytes for s in carried) + again) / RATE


def copied_in_backward_s(carried: Sequence[StateTensor], stays: Sequence[Gap], there: Sequence[Gap]) -> float:
    """Of that, what is not there at the turnaround, or is read again after it, and what is written."""
    between = [gap for gap in gaps(carried) if gap[2][0]]  # read in the backward pass, for their end
    begun = [s for s in carried if s.backward and not s.forward]
    read = sum(s.bytes for s, _, _ in between) + sum(s.bytes for s in begun)
    read -= sum(s.bytes for s, _, after in stays if after[0]) + sum(s.bytes for s, _, _ in there)
    return (read + sum(s.written_bytes for s in carried if s.backward)) / RATE


def subsets(of: Sequence[T]) -> Iterator[tuple[T, ...]]:
    return (chosen for n in range(len(of) + 1) for chosen in itertools.combinations(of, n))


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
    most_forward_s = sum(max(q.time_s for q in operator.implementations) for operator in problem.forward)
    most_forward_s += sum(intermediate.time_s for intermediate in problem.intermediates)
    best = float("inf")
    for carried in subsets(state):
        for stays in subsets(gaps(carried)):
            copies_s = copied_s(carried, stays)
            for there in [()] if synchronous else subsets(early(carried, stays)):
                held = carrying(problem, carried, [*stays, *there])
                seconds = best_by_exhaustion(held, budget, [True] * len(problem.backward))
                if seconds is None:
                    continue
                if synchronous:
                    best = min(best, seconds + copies_s)
                else:
                    in_backward_s = copied_in_backward_s(carried, stays, there)
                    best = min(best, max(seconds, copies_s, most_forward_s + in_backward_s))
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
            first = chosen.choices[0].carried if chosen.choices else frozenset()
            read_only = {name for name in first if int(name[1:]) % 2 == 0}
            assert len(first) == count + spare
            assert len(read_only) == min(4, len(first))
            assert all(len(first) < len(more.carried) for more in chosen.choices[1:])


def test_nothing_is_chosen_where_no_plan_can_fit() -> None:
    state = (StateTensor("s", 100, 100, frozenset(), frozenset()),)
    problem = with_second(chain(4), state, ASYNCHRONOUS)
    assert chosen_state(problem, state, 10, SOLVING).choices == ()


@pytest.mark.parametrize("first", range(0, 500, 50))
@pytest.mark.sampled(3)
def test_where_copies_decide_the_choice_is_the_best_of_all(first: int) -> None:
    """State so much larger than all else that it alone decides: with checkpoints everywhere, and columns of 0 or 1, the
    program has the seconds of the best of all ways to carry it."""
    for seed in range(first, first + 50):
        _compare_with_all_ways(seed)


def _compare_with_all_ways(seed: int) -> None:
    rng, unit = random.Random(seed), 10**6
    chained, slower = chain(3), rng.choice([1, 3, 10])
    forward = [
        replace(op, implementations=tuple(replace(q, time_s=slower * q.time_s) for q in op.implementations))
        for op in chained.forward
    ]
    chained = replace(chained, forward=tuple(forward))
    fastest = fastest_plan(chained)
    assert fastest is not None and fastest.peak_bytes < unit
    every = [*((False, i) for i in range(3)), *((True, stage) for stage in range(3))]
    state = []
    for n in range(3):
        used = rng.sample(every[rng.choice([0, 2, 3]) :], rng.randint(0, 3))
        passes = [frozenset(i for backward, i in used if backward == which) for which in (False, True)]
        size = unit * rng.randint(1, 6)
        state.append(StateTensor(f"s{n}", size, size * rng.randint(0, 1), *passes))
    problem = with_second(chained, state, ASYNCHRONOUS)
    assert problem.second is not None
    rate = unit / (0.004 * rng.choice([0.5, 1.0, 2.0]))
    problem = replace(problem, second=replace(problem.second, write_rate=rate, read_rate=rate))
    room = unit * rng.randint(0, sum(s.bytes for s in state) // unit)
    forward_s = sum(operator.implementations[0].time_s for operator in chained.forward)

    best = float("inf")
    for carried in subsets(state):
        resident = sum(s.bytes for s in state) - sum(s.bytes for s in carried)
        for stays in subsets(gaps(carried)):
            for there in subsets(early(carried, stays)):
                over = [*stays, *there]
                held = [
                    sum(s.bytes for s in carried if at in uses(s)) + sum(s.bytes for s, a, b in over if a < at < b)
                    for at in every
                ]
                turned = sum(s.bytes for s, a, b in over if a <= TURNAROUND < b)
                if resident + max(*held, turned) <= room:
                    copies_s = copied_s(carried, stays) * RATE / rate
                    in_backward_s = copied_in_backward_s(carried, stays, there) * RATE / rate
                    best = min(best, max(fastest.objective_s, copies_s, forward_s + in_backward_s))
    budget = fastest.peak_bytes + room
    program = checkpoint_program(index_of(problem), budget, Checkpoints((0, 1, 2), (0, 1, 2)), tuple(state))
    arrays, count = program.rows.arrays(), len(program.rows.costs)
    whole = np.zeros_like(arrays.integer)
    whole[[*program.carried.values(), *program.stays.values(), *program.there.values()]] = True
    model = Model(replace(arrays, integer=whole), np.zeros(count), np.ones(count))
    answer = solver("HIGHS")(model, Limits(60.0, 0.0), None)
    assert (answer.status == "infeasible") == (best == float("inf"))
    if answer.status != "infeasible":
        assert program.base_s + answer.objective == pytest.approx(best, rel=1e-6)

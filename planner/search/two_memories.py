"""Plans that keep, make again or move, where there is a second memory.

program of moments  →  what is moved, kept and made again, and a bound on every plan
                    →  the same without recomputation, and recomputation without moves: no plan is slower
                    →  around good ones, the exact program with their moves, then the one that decides on moves;
                       their copies timed anew, and again
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice

from monet.planner.construction.copies import stage_reads, with_copies
from monet.planner.construction.hidden_moves import with_hidden_moves
from monet.planner.problem import Problem
from monet.planner.program.given import GivenMoves, given_moves, with_given
from monet.planner.program.index import Index, index_of
from monet.planner.program.moves import Interval, MoveOffers
from monet.planner.program.program import Program
from monet.planner.program.windows import NO_STAGES
from monet.planner.search.incumbent import Deadline
from monet.planner.search.moments import MomentSearch
from monet.planner.search.neighbourhoods import NODES
from monet.planner.search.scope import (
    LARGEST,
    LARGEST_WINDOWED,
    Scope,
    build,
    few_stages,
    is_within,
    needed_besides,
    scope_of,
    with_first_uses,
)
from monet.planner.search.state import SearchState
from monet.planner.search.worker import MOST_NODES
from monet.planner.solution import Runs

MOVES_SHARE, MOVES_ALONE_SHARE, WITHOUT_SHARE = 0.3, 0.1, 0.2
"""Of the time limit: for the program of moments, for the same without recomputation, and for plans without moves."""
GIVEN_SHARE, GIVEN_ALONE_SHARE, DECIDING_SHARE = 0.35, 0.5, 0.4
"""Of what is left for a plan: for each program in which its moves are given, where another comes after it and where
none does, and for each that decides on them."""
HIDDEN_SHARE = 0.1
"""Of the time limit: for moves that cost a plan nothing, at most."""
FIRST_STARTS, OTHER_SHARE = 2, 0.3
"""Plans that are improved before the best, where that moves nothing; of the time that is left, how much one of the
others gets after it."""
LEAST_GAIN = 1e-3
"""Relative: by how much a plan must get better around its moves to be improved around those that it has then."""


def search_moves(
    state: SearchState, index: Index, budget_bytes: int, without_moves: Callable[[float], None]
) -> MomentSearch:
    """Offers plans from the program of moments, and bounds every plan.

    ``without_moves`` offers one of another search, in so many seconds.
    """
    deadline, limit_s = state.deadline, state.solving.time_limit_s
    begun_with_a_plan = state.incumbent.runs is not None
    moments = MomentSearch(index, budget_bytes, state.solve, state.incumbent, deadline, state.solving.gap, state.enough)
    try:
        moments.run(MOVES_SHARE * limit_s)
    finally:  # also where Ctrl-C comes between solves
        state.full_bound = moments.bound
    state.built_s = deadline.elapsed_s()
    if moments.infeasible:
        state.status, state.scope = "infeasible", "full"
        return moments
    if state.is_enough() or state.deadline.cancelled:
        return moments
    if index.movable:
        alone = index_of(_without_recomputation(index.problem))
        ends_s = deadline.elapsed_s() + MOVES_ALONE_SHARE * limit_s
        MomentSearch(alone, budget_bytes, state.solve, state.incumbent, _unheard(deadline), state.solving.gap).run(
            ends_s
        )
    if not moments.is_close() and not begun_with_a_plan:  # which is one of its parts', where others have searched
        without_moves(WITHOUT_SHARE * limit_s)
    state.status = "optimal" if moments.is_close() else "time_limit"
    return moments


def _unheard(deadline: Deadline) -> Deadline:
    """The same deadline, for a search whose bound is about other plans."""
    return replace(deadline, progress=None)


def _without_recomputation(problem: Problem) -> Problem:
    return replace(problem, forward=tuple(replace(operator, recomputable=False) for operator in problem.forward))


def improve_around_moves(state: SearchState, moments: MomentSearch, budget_bytes: int, until_s: float) -> None:
    """Improves plans around their moves until ``until_s``: first some that promise most, then the best
    of all, by longer rounds, and the others, in turn. What one plan's neighbourhoods lead to, another's may not."""
    index, rounds = moments.index, _Rounds()

    def improve(start: Runs, share: float, rounds: _Rounds) -> None:
        now_s = state.deadline.elapsed_s()
        _improve(state, start, index, budget_bytes, now_s + share * (until_s - now_s), rounds)

    def is_over() -> bool:
        return state.is_over() or state.deadline.left_s(until_s) <= 0

    others = _starts(state, moments, budget_bytes)
    first = [] if state.incumbent.runs is None or state.incumbent.runs.moved else list(islice(others, FIRST_STARTS))
    for position, start in enumerate(first):
        improve(start, 1 / (len(first) - position + 1), _Rounds())
        if is_over():
            return
    known = float("inf")
    while not is_over():
        other = None if state.incumbent.value < known else next(others, None)
        if other is not None:
            improve(other, OTHER_SHARE, _Rounds())
            continue
        assert state.incumbent.runs is not None
        known = state.incumbent.value
        improve(state.incumbent.runs, 1.0, rounds)
        over = state.deadline.elapsed_s() + rounds.built_s >= until_s
        if over or not rounds.searched or (rounds.nodes >= MOST_NODES and state.incumbent.value >= known):
            return
        rounds.nodes = min(MOST_NODES, rounds.nodes * 2)


def _starts(state: SearchState, moments: MomentSearch, budget_bytes: int) -> Iterator[Runs]:
    """Plans that fit besides the best of all, and move something: the best, where it moves nothing, with moves that
    cost nothing, and the others from the fastest on."""
    best = state.incumbent
    if best.runs is not None and not best.runs.moved:
        yield with_hidden_moves(moments.index, best.runs, budget_bytes, time.monotonic() + _hidden_s(state))
    fitting = [(cost.objective_s, n) for n, (runs, cost) in enumerate(moments.seen) if runs.moved and best.fits(cost)]
    known = 0.0
    for objective_s, n in sorted(fitting):
        if objective_s > known * (1 + LEAST_GAIN):
            known = objective_s
            yield moments.seen[n][0]


@dataclass(slots=True)
class _Rounds:
    """Of programs around one plan after the other: ``intervals``: rows that those that decide on moves needed.
    ``seed``: which neighbourhoods come next. ``nodes``: of a round. ``searched``: whether any program was small enough.
    ``built_s``: how long the last one took to build; none is begun with less time than that left."""

    intervals: frozenset[Interval] = frozenset()
    seed: int = 0
    nodes: int = NODES
    searched: bool = False
    built_s: float = 0.0


def _improve(state: SearchState, start: Runs, index: Index, budget_bytes: int, until_s: float, rounds: _Rounds) -> None:
    """Improves a plan in the exact program in which its moves are given, which is smaller, then in the one that decides
    on them, and again for each better one; one that gets no better with more moves, as far as they cost nothing. Offers
    what it finds."""
    problem, around = state.incumbent.problem, _from(state, start)
    while (runs := around.incumbent.runs) is not None and state.deadline.left_s(until_s) > 0 and not state.is_over():
        known = around.incumbent.value
        for decides in (False,) if problem.in_place else (False, True):
            runs = _improved(state, around, budget_bytes, until_s, rounds, decides=decides)
        rounds.seed += 1
        if around.incumbent.value >= known * (1 - LEAST_GAIN):
            deadline_s = time.monotonic() + min(until_s - state.deadline.elapsed_s(), _hidden_s(state))
            more = with_hidden_moves(index, runs, budget_bytes, deadline_s)
            if len(more.moved) == len(runs.moved):
                return
            around = _from(state, more)


def _improved(
    state: SearchState, around: SearchState, budget_bytes: int, until_s: float, rounds: _Rounds, *, decides: bool
) -> Runs:
    """The best plan of ``around`` after a share of the time in a program around it, with its copies timed anew; one
    that ``decides`` on moves, or one in which they are given."""
    problem, runs = around.incumbent.problem, around.incumbent.runs
    assert runs is not None
    offers = MoveOffers(runs, around.incumbent.value, rounds.intervals) if decides else None
    begun_s = state.deadline.elapsed_s()
    if begun_s + rounds.built_s >= until_s:
        return runs
    program = _program_around(problem, runs, budget_bytes, state.solving.window, offers)
    now_s = state.deadline.elapsed_s()
    rounds.built_s = now_s - begun_s
    if program is None:
        return runs
    rounds.searched = True
    given_share = GIVEN_ALONE_SHARE if problem.in_place else GIVEN_SHARE
    share = given_share if program.moves is None else DECIDING_SHARE
    try:
        around.improve(program, now_s + share * (until_s - now_s), rounds.seed, rounds.nodes)
    finally:
        runs = _taken_over(state, around)
    if program.moves is not None:
        rounds.intervals |= program.moves.intervals
    around.incumbent.offer(with_copies(problem, runs, budget_bytes))
    return _taken_over(state, around)


def _taken_over(state: SearchState, around: SearchState) -> Runs:
    """The best plan of the other state, which this one is offered."""
    runs = around.incumbent.runs
    assert runs is not None
    state.incumbent.offer(runs)
    return runs


def _from(state: SearchState, start: Runs) -> SearchState:
    """The same state from another plan, of which the best of all knows nothing."""
    best = replace(state.incumbent, runs=None, cost=None)
    best.offer(start)
    return replace(state, incumbent=best)


def _hidden_s(state: SearchState) -> float:
    return HIDDEN_SHARE * state.solving.time_limit_s


def _program_around(
    problem: Problem, runs: Runs, budget_bytes: int, window: int | None, moves: MoveOffers | None
) -> Program | None:
    """The exact program that has a plan; None where it is too large. ``moves``: where it decides on moves; without,
    those of the plan are given."""
    given: GivenMoves | None = None
    if moves is None:
        given = given_moves(problem, runs, stage_reads(problem, runs))
        problem, runs = with_given(problem, given), given.without(runs)
    index, scope = index_of(problem), scope_of(problem, window)
    also_at = with_first_uses(index, needed_besides(problem, runs, scope))
    if is_within(index, scope, LARGEST_WINDOWED, also_at):
        return build(problem, budget_bytes, scope, also_at, given, moves)
    few = few_stages(index, [runs], LARGEST)
    if few is None:
        return None
    return build(problem, budget_bytes, Scope(1, NO_STAGES), with_first_uses(index, few), given, moves)

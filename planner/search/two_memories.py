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
from monet.planner.search.best import Clock
from monet.planner.search.companion import MOST_NODES
from monet.planner.search.hunt import Hunt
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


def search_moves(hunt: Hunt, index: Index, budget_bytes: int, without_moves: Callable[[float], None]) -> MomentSearch:
    """Offers plans from the program of moments, and bounds every plan.

    ``without_moves`` offers one of another search, in so many seconds.
    """
    clock, limit_s = hunt.clock, hunt.solving.time_limit_s
    begun_with_a_plan = hunt.best.runs is not None
    moments = MomentSearch(index, budget_bytes, hunt.solve, hunt.best, clock, hunt.solving.gap, hunt.enough)
    moments.run(MOVES_SHARE * limit_s)
    hunt.known = moments.bound
    hunt.built_s = clock.elapsed_s()
    if moments.infeasible:
        hunt.status, hunt.scope = "infeasible", "full"
        return moments
    if hunt.is_enough() or hunt.clock.cancelled:
        return moments
    if index.movable:
        alone = index_of(_without_recomputation(index.problem))
        ends_s = clock.elapsed_s() + MOVES_ALONE_SHARE * limit_s
        MomentSearch(alone, budget_bytes, hunt.solve, hunt.best, _unheard(clock), hunt.solving.gap).run(ends_s)
    if not moments.is_close() and not begun_with_a_plan:  # which is one of its parts', where others have searched
        without_moves(WITHOUT_SHARE * limit_s)
    hunt.status = "optimal" if moments.is_close() else "time_limit"
    return moments


def _unheard(clock: Clock) -> Clock:
    """The same clock, for a search whose bound is about other plans."""
    return replace(clock, progress=None)


def _without_recomputation(problem: Problem) -> Problem:
    return replace(problem, forward=tuple(replace(operator, recomputable=False) for operator in problem.forward))


def improve_around_moves(hunt: Hunt, moments: MomentSearch, budget_bytes: int, until_s: float) -> None:
    """Improves plans around their moves until the clock shows ``until_s``: first some that promise most, then the best
    of all, by longer rounds, and the others, in turn. What one plan's stretches lead to, another's may not."""
    index, rounds = moments.index, _Rounds()

    def improve(start: Runs, share: float, rounds: _Rounds) -> None:
        now_s = hunt.clock.elapsed_s()
        _improve(hunt, start, index, budget_bytes, now_s + share * (until_s - now_s), rounds)

    def is_over() -> bool:
        return hunt.is_over() or hunt.clock.left_s(until_s) <= 0

    others = _starts(hunt, moments, budget_bytes)
    first = [] if hunt.best.runs is None or hunt.best.runs.moved else list(islice(others, FIRST_STARTS))
    for position, start in enumerate(first):
        improve(start, 1 / (len(first) - position + 1), _Rounds())
        if is_over():
            return
    known = float("inf")
    while not is_over():
        other = None if hunt.best.value < known else next(others, None)
        if other is not None:
            improve(other, OTHER_SHARE, _Rounds())
            continue
        assert hunt.best.runs is not None
        known = hunt.best.value
        improve(hunt.best.runs, 1.0, rounds)
        over = hunt.clock.elapsed_s() + rounds.built_s >= until_s
        if over or not rounds.searched or (rounds.nodes >= MOST_NODES and hunt.best.value >= known):
            return
        rounds.nodes = min(MOST_NODES, rounds.nodes * 2)


def _starts(hunt: Hunt, moments: MomentSearch, budget_bytes: int) -> Iterator[Runs]:
    """Plans that fit besides the best of all, and move something: the best, where it moves nothing, with moves that
    cost nothing, and the others from the fastest on."""
    best = hunt.best
    if best.runs is not None and not best.runs.moved:
        yield with_hidden_moves(moments.index, best.runs, budget_bytes, time.monotonic() + _hidden_s(hunt))
    fitting = [(cost.objective_s, n) for n, (runs, cost) in enumerate(moments.seen) if runs.moved and best.fits(cost)]
    known = 0.0
    for objective_s, n in sorted(fitting):
        if objective_s > known * (1 + LEAST_GAIN):
            known = objective_s
            yield moments.seen[n][0]


@dataclass(slots=True)
class _Rounds:
    """Of programs around one plan after the other: ``intervals``: rows that those that decide on moves needed.
    ``seed``: which stretches come next. ``nodes``: of a round. ``searched``: whether any program was small enough.
    ``built_s``: how long the last one took to build; none is begun with less time than that left."""

    intervals: frozenset[Interval] = frozenset()
    seed: int = 0
    nodes: int = NODES
    searched: bool = False
    built_s: float = 0.0


def _improve(hunt: Hunt, start: Runs, index: Index, budget_bytes: int, until_s: float, rounds: _Rounds) -> None:
    """Improves a plan in the exact program in which its moves are given, which is smaller, then in the one that decides
    on them, and again for each better one; one that gets no better with more moves, as far as they cost nothing. Offers
    what it finds."""
    problem, around = hunt.best.problem, _from(hunt, start)
    while (runs := around.best.runs) is not None and hunt.clock.left_s(until_s) > 0 and not hunt.is_over():
        known = around.best.value
        for decides in (False,) if problem.in_place else (False, True):
            runs = _improved(hunt, around, budget_bytes, until_s, rounds, decides=decides)
        rounds.seed += 1
        if around.best.value >= known * (1 - LEAST_GAIN):
            deadline_s = time.monotonic() + min(until_s - hunt.clock.elapsed_s(), _hidden_s(hunt))
            more = with_hidden_moves(index, runs, budget_bytes, deadline_s)
            if len(more.moved) == len(runs.moved):
                return
            around = _from(hunt, more)


def _improved(hunt: Hunt, around: Hunt, budget_bytes: int, until_s: float, rounds: _Rounds, *, decides: bool) -> Runs:
    """The best plan of ``around`` after a share of the time in a program around it, with its copies timed anew; one
    that ``decides`` on moves, or one in which they are given."""
    problem, runs = around.best.problem, around.best.runs
    assert runs is not None
    offers = MoveOffers(runs, around.best.value, rounds.intervals) if decides else None
    begun_s = hunt.clock.elapsed_s()
    if begun_s + rounds.built_s >= until_s:
        return runs
    program = _program_around(problem, runs, budget_bytes, hunt.solving.window, offers)
    now_s = hunt.clock.elapsed_s()
    rounds.built_s = now_s - begun_s
    if program is None:
        return runs
    rounds.searched = True
    given_share = GIVEN_ALONE_SHARE if problem.in_place else GIVEN_SHARE
    share = given_share if program.moves is None else DECIDING_SHARE
    around.improve(program, now_s + share * (until_s - now_s), rounds.seed, rounds.nodes)
    runs = _taken_over(hunt, around)
    if program.moves is not None:
        rounds.intervals |= program.moves.intervals
    around.best.offer(with_copies(problem, runs, budget_bytes))
    return _taken_over(hunt, around)


def _taken_over(hunt: Hunt, around: Hunt) -> Runs:
    """The best plan of the other hunt, which this one is offered."""
    runs = around.best.runs
    assert runs is not None
    hunt.best.offer(runs)
    return runs


def _from(hunt: Hunt, start: Runs) -> Hunt:
    """The same hunt from another plan, of which the best of all knows nothing."""
    best = replace(hunt.best, runs=None, cost=None)
    best.offer(start)
    return replace(hunt, best=best)


def _hidden_s(hunt: Hunt) -> float:
    return HIDDEN_SHARE * hunt.solving.time_limit_s


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

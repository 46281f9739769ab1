"""Strategies where there is a second memory: plans that keep, make again or move.

The checkpoint program (``relaxation.py``) says what is moved, kept and made again. Around good plans, the exact program
with their moves is improved, then the one that decides on moves; their copies are timed anew, and again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice

from monet.errors import SolverError
from monet.planner.construction.copies import stage_reads, with_copies
from monet.planner.construction.hidden_moves import with_hidden_moves
from monet.planner.problem import Problem
from monet.planner.program.given import GivenMoves, given_moves, with_given
from monet.planner.program.index import index_of
from monet.planner.program.moves import Interval, MoveOffers
from monet.planner.program.program import Program
from monet.planner.program.windows import NO_STAGES
from monet.planner.search.incumbent import Incumbent
from monet.planner.search.neighbourhoods import NODES
from monet.planner.search.scope import (
    LARGEST_WINDOWED,
    Scope,
    build,
    few_stages,
    is_within,
    needed_besides,
    scope_of,
    with_first_uses,
)
from monet.planner.search.state import PolicyOf, SearchState
from monet.planner.search.worker import MOST_NODES
from monet.planner.solution import Runs

log = logging.getLogger(__name__)

FIRST_STARTS = 2
"""Plans that are improved before the best, where that moves nothing."""
LEAST_GAIN = 1e-3
"""Relative: by how much a plan must get better around its moves to be improved around those that it has then."""


@dataclass(frozen=True, slots=True)
class WithoutMoves:
    """A whole search without the second memory, so that no plan is slower than recomputation alone; none where the
    search began with a plan, which has what such a search found before.

    ``share``: of the time limit; ``by``: what that search follows.
    """

    share: float
    by: PolicyOf

    def run(self, state: SearchState) -> None:
        if state.started:
            return
        best = Incumbent.fastest_within(replace(state.incumbent.problem, second=None), state.budget_bytes)
        try:
            state.inner(best, state.limit, self.share * state.limit_s).follow_until_ctrl_c(self.by)
        except SolverError as error:  # what moves find is not lost with it
            log.warning("plans without moves are not looked for: %s", error)
        if best.runs is not None:
            state.incumbent.offer(best.runs)


@dataclass(frozen=True, slots=True)
class AroundMoves:
    """Improves plans around their moves: first some that promise most, then the best of all, by longer rounds, and the
    others, in turn. What one plan's neighbourhoods lead to, another's may not.

    ``given``, ``given_alone``, ``deciding``: of what is left for a plan: for each program in which its moves are given,
    where another comes after it and where none does, and for each that decides on them. ``hidden``: of the time limit:
    for moves that cost a plan nothing, at most. ``other``: of the time that is left: what one of the others gets.
    """

    given: float
    given_alone: float
    deciding: float
    hidden: float
    other: float

    def run(self, state: SearchState) -> None:
        if state.incumbent.runs is None:
            return
        rounds, until_s = _Rounds(), state.limit_s
        others = self._starts(state)
        first = [] if state.incumbent.runs.moved else list(islice(others, FIRST_STARTS))
        for position, start in enumerate(first):
            self._improve_in(state, start, 1 / (len(first) - position + 1), _Rounds())
            if state.is_over():
                return
        known = float("inf")
        while not state.is_over() and state.deadline.left_s() > 0:
            other = None if state.incumbent.value < known else next(others, None)
            if other is not None:
                self._improve_in(state, other, self.other, _Rounds())
                continue
            assert state.incumbent.runs is not None
            known = state.incumbent.value
            self._improve_in(state, state.incumbent.runs, 1.0, rounds)
            over = state.deadline.elapsed_s() + rounds.built_s >= until_s
            if over or not rounds.searched or (rounds.nodes >= MOST_NODES and state.incumbent.value >= known):
                return
            rounds.nodes = min(MOST_NODES, rounds.nodes * 2)

    def _improve_in(self, state: SearchState, start: Runs, share: float, rounds: _Rounds) -> None:
        """Improves a plan for a share of the time that is left."""
        now_s = state.deadline.elapsed_s()
        self._improve(state, start, now_s + share * (state.limit_s - now_s), rounds)

    def _starts(self, state: SearchState) -> Iterator[Runs]:
        """Plans that fit besides the best of all, and move something: the best, where it moves nothing, with moves that
        cost nothing, and the others from the fastest on."""
        best = state.incumbent
        if best.runs is not None and not best.runs.moved:
            yield with_hidden_moves(state.index, best.runs, state.budget_bytes, self._hidden_until_s(state))
        seen = [] if state.checkpoints is None else state.checkpoints.seen
        fitting = [(cost.objective_s, n) for n, (runs, cost) in enumerate(seen) if runs.moved and best.fits(cost)]
        known = 0.0
        for objective_s, n in sorted(fitting):
            if objective_s > known * (1 + LEAST_GAIN):
                known = objective_s
                yield seen[n][0]

    def _improve(self, state: SearchState, start: Runs, until_s: float, rounds: _Rounds) -> None:
        """Improves a plan in the exact program in which its moves are given, which is smaller, then in the one that
        decides on them, and again for each better one; one that gets no better with more moves, as far as they cost
        nothing. Offers what it finds."""
        problem, around = state.incumbent.problem, _from(state, start)
        while (
            (runs := around.incumbent.runs) is not None and state.deadline.left_s(until_s) > 0 and not state.is_over()
        ):
            known = around.incumbent.value
            for decides in (False,) if problem.in_place else (False, True):
                runs = self._improved(state, around, until_s, rounds, decides=decides)
            rounds.seed += 1
            if around.incumbent.value >= known * (1 - LEAST_GAIN):
                left_s = until_s - state.deadline.elapsed_s()
                deadline_s = min(time.monotonic() + left_s, self._hidden_until_s(state))
                more = with_hidden_moves(state.index, runs, state.budget_bytes, deadline_s)
                if len(more.moved) == len(runs.moved):
                    return
                around = _from(state, more)

    def _improved(
        self, state: SearchState, around: SearchState, until_s: float, rounds: _Rounds, *, decides: bool
    ) -> Runs:
        """The best plan of ``around`` after a share of the time in a program around it, with its copies timed anew; one
        that ``decides`` on moves, or one in which they are given."""
        problem, runs = around.incumbent.problem, around.incumbent.runs
        assert runs is not None
        offers = MoveOffers(runs, around.incumbent.value, rounds.intervals) if decides else None
        begun_s = state.deadline.elapsed_s()
        if begun_s + rounds.built_s >= until_s:
            return runs
        program = _program_around(problem, runs, state.budget_bytes, state.solving.window, offers)
        now_s = state.deadline.elapsed_s()
        rounds.built_s = now_s - begun_s
        if program is None:
            return runs
        rounds.searched = True
        given = self.given_alone if problem.in_place else self.given
        share = given if program.moves is None else self.deciding
        try:
            around.improve(program, now_s + share * (until_s - now_s), rounds.seed, rounds.nodes)
        finally:
            runs = _taken_over(state, around)
        if program.moves is not None:
            rounds.intervals |= program.moves.intervals
        around.incumbent.offer(with_copies(problem, runs, state.budget_bytes))
        return _taken_over(state, around)

    def _hidden_until_s(self, state: SearchState) -> float:
        return time.monotonic() + self.hidden * state.limit_s


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


def _program_around(
    problem: Problem, runs: Runs, budget_bytes: int, window: int | None, moves: MoveOffers | None
) -> Program | None:
    """The exact program that has a plan; None where it is too large. ``moves``: where it decides on moves; without,
    those of the plan are given."""
    given: GivenMoves | None = None
    if moves is None:
        given = given_moves(problem, runs, stage_reads(problem, runs))
        problem, runs = with_given(problem, given), given.without(runs)
    index = index_of(problem)
    scope = scope_of(index, window)
    also_at = with_first_uses(index, needed_besides(problem, runs, scope))
    if is_within(index, scope, LARGEST_WINDOWED, also_at):
        return build(problem, budget_bytes, scope, also_at, given, moves)
    few = few_stages(index, runs)
    if few is None:
        return None
    return build(problem, budget_bytes, Scope(1, NO_STAGES), with_first_uses(index, few), given, moves)

"""Strategies on exact programs: neighbourhoods of the best plan are improved first, then the whole is solved."""

from __future__ import annotations

from dataclasses import dataclass

from monet.planner.program.windows import NO_STAGES
from monet.planner.search.proof import bound_full_program
from monet.planner.search.scope import Scope, build, needed_besides
from monet.planner.search.state import SearchState

PRESOLVE_S = 4e-5
"""Of a nonzero of a program with windows: HiGHS's presolve of BERT, GPT-2 and ShuffleNet (280,000 to 380,000 of them)
takes 10 to 15 s."""


@dataclass(frozen=True, slots=True)
class Windows:
    """The windowed program, or on a small network the full one.

    ``first``, ``alone``: shares of the time limit for neighbourhoods, ``alone`` where no worker goes on with them.
    ``small``: how much of it goes to those in the program without the stages after the peaks, where there are such:
    what is easy to find there is hard to find in the larger one. ``turn``: from this share of the time limit on, the
    solve gives way to a bound on every plan, unless the plan is near one by then. ``presolves``: where less time is
    left for that solve than so many times what its presolve takes, there is none, and its time goes to the strategies
    after it.
    """

    small: float
    first: float
    alone: float
    turn: float
    presolves: float

    def run(self, state: SearchState) -> None:
        problem, scope = state.incumbent.problem, state.windows
        first_s, small_s = state.until_s(self.first if state.worker else self.alone), state.until_s(self.small)
        if scope.after_peaks:
            plain = Scope(scope.window, NO_STAGES)
            small = build(problem, state.budget_bytes, plain, needed_besides(problem, state.incumbent.runs, plain))
            state.improve(small, small_s)
            if state.is_over():
                return
        program = build(problem, state.budget_bytes, scope, needed_besides(problem, state.incumbent.runs, scope))
        gives_way = program.scope != "full" and state.incumbent.runs is not None
        turn_s = self.turn * state.limit_s if gives_way else float("inf")
        least_s = self.presolves * PRESOLVE_S * len(program.rows.values)
        state.planned = state.run(program, first_s, turn_s, least_s)


@dataclass(frozen=True, slots=True)
class FullProgram:
    """Bounds the full program by relaxations of it, in as much time again: where the person asks for that
    (``Solving.prove``) and a windowed program was solved. ``first``: as for ``bound_full_program``."""

    first: float

    def run(self, state: SearchState) -> None:
        if not state.solving.prove or state.planned is None or state.incumbent.runs is None or state.scope == "full":
            return
        bound, state.status = bound_full_program(state.planned, state.budget_bytes, state.limit_s, self.first)
        state.full_bound = max(state.full_bound, bound)

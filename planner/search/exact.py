"""Strategies on exact programs: windowed ones, and on deep networks one with few stages around the plans seen so far.

In each, neighbourhoods of the best plan are improved first, then the whole program is solved.
"""

from __future__ import annotations

from dataclasses import dataclass

from monet.planner.program.aggregation import add_aggregation
from monet.planner.program.windows import NO_STAGES
from monet.planner.search.proof import bound_full_program
from monet.planner.search.scope import LARGEST, Scope, build, few_stages, needed_besides
from monet.planner.search.state import SearchState


@dataclass(frozen=True, slots=True)
class Windows:
    """The windowed program, or on a small network the full one.

    ``first``, ``alone``: shares of the time limit for neighbourhoods, ``alone`` where no worker goes on with them.
    ``small``: how much of it goes to those in the program without the stages after the peaks, where there are such:
    what is easy to find there is hard to find in the larger one. ``turn``: from this share of the time limit on, the
    solve gives way to a bound on every plan, unless the plan is near one by then.
    """

    small: float
    first: float
    alone: float
    turn: float

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
        state.planned = state.run(program, first_s, turn_s=turn_s)


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


@dataclass(frozen=True, slots=True)
class FewStages:
    """The exact program that offers recomputation in the last stage before a use, and where plans seen so far have it.

    ``first``, ``alone``: as for ``Windows``. ``until``: until which share of the time limit the whole is solved.
    ``gap``: of the gap: how near to its own bound that solve ends. That bound is about few plans, so the search goes on
    until the plan is near a bound on all of them, or there is nothing left to find.
    """

    first: float
    alone: float
    until: float
    gap: float

    def run(self, state: SearchState) -> None:
        best, budget_bytes = state.incumbent, state.budget_bytes
        if best.runs is None or state.checkpoints is None:
            return
        seen = sorted(state.checkpoints.seen, key=lambda made: max(0, made[1].peak_bytes - budget_bytes))
        also_at = few_stages(state.index, [best.runs, *(runs for runs, _ in seen)], LARGEST)
        if also_at is None:
            return
        program = build(best.problem, budget_bytes, Scope(1, NO_STAGES), also_at)
        add_aggregation(program)
        first_s = state.until_s(self.first if state.worker else self.alone)
        bound, scope = state.program_bound, state.scope
        state.planned = state.run(program, first_s, self.until * state.limit_s, self.gap * state.solving.gap)
        # What is proven of this program alone is nothing that anybody asked for.
        state.program_bound, state.scope = bound, scope
        if state.status == "optimal" and not state.is_close():
            state.status = "time_limit"

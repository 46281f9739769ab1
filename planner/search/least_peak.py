"""Strategies for the smallest budget: the program of ``program.py`` with the peak as a column.

Every memory row is at most ``peak``, which is what is minimised. A bound on the plan's time is one row more.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from monet.planner.construction.first_plans import smallest_budget
from monet.planner.memory_floor import floor_bytes
from monet.planner.problem import Problem
from monet.planner.program.constraints import build_program
from monet.planner.program.memory_rows import add_memory_rows
from monet.planner.program.program import Program
from monet.planner.search.scope import needed_besides
from monet.planner.search.state import PolicyOf, SearchState
from monet.planner.solvers.rows import Sum


@dataclass(frozen=True, slots=True)
class Thriftiest:
    """The thriftiest plan known, by greedy eviction, whatever time it takes. ``share``: of the time limit."""

    share: float

    def run(self, state: SearchState) -> None:
        problem = state.incumbent.problem
        state.program_bound = float(floor_bytes(problem))
        known = smallest_budget(problem, time.monotonic() + self.share * state.limit_s)
        if known is not None:
            state.smallest = known
            state.incumbent.offer(known[1].runs)


@dataclass(frozen=True, slots=True)
class Descent:
    """Under a limit of seconds that the thriftiest plan exceeds: budgets halved between what is too slow and what is
    fast enough, since the search for seconds under a budget finds better plans than the one for bytes.

    ``until``: of the time limit; ``step``: of it for each budget. ``by``: what each of them follows.
    """

    until: float
    step: float
    by: PolicyOf

    def run(self, state: SearchState) -> None:
        best, problem, known = state.incumbent, state.incumbent.problem, state.smallest
        if known is None or state.limit == float("inf") or best.value <= known[0]:
            return
        low, high, gap = known[0], keep_everything_bytes(problem), state.solving.gap
        until_s = self.until * state.limit_s
        while state.deadline.left_s(until_s) > 0 and high - low > max(1.0, gap * high):
            middle = (low + high) // 2
            tried = state.tried(middle, self.step * state.limit_s, self.by)
            runs = tried.incumbent.runs
            if runs is not None and best.offer(runs):
                high = int(best.value)
                continue
            low = middle
            if tried.is_proven_slower(state.limit):
                state.program_bound = max(state.program_bound, float(middle))


@dataclass(frozen=True, slots=True)
class LeastPeak:
    """The program of least peak. ``first``, ``alone``: until which share of the time limit neighbourhoods are improved
    first, ``alone`` where no worker goes on with them."""

    first: float
    alone: float

    def run(self, state: SearchState) -> None:
        program = least_peak_program(state)
        state.built_s = state.deadline.elapsed_s()
        state.run(program, (self.first if state.worker else self.alone) * state.limit_s)


def keep_everything_bytes(problem: Problem) -> int:
    """An upper bound on the peak of any plan: every tensor and every workspace at once."""
    tensors = sum(tensor.bytes for tensor in problem.tensors) + sum(v.bytes for v in problem.intermediates)
    workspaces = [
        max((q.workspace_bytes, q.recompute_workspace_bytes or 0)) for o in problem.forward for q in o.implementations
    ]
    workspaces += [q.workspace_bytes for o in problem.backward for q in o.implementations]
    gradients = max((operator.live_during_bytes for operator in problem.backward), default=0)
    return problem.fixed_bytes + tensors * 2 + gradients + max(workspaces, default=0)


def least_peak_program(state: SearchState) -> Program:
    """The program of least peak, in shares of the best plan's peak; without a plan, of everything kept at once."""
    incumbent, problem = state.incumbent, state.incumbent.problem
    scope = state.windows
    most_bytes = incumbent.cost.peak_bytes if incumbent.cost is not None else keep_everything_bytes(problem)
    program = build_program(
        problem, most_bytes, scope.window, needed_besides(problem, incumbent.runs, scope), scope.after_peaks
    )
    rows = program.rows
    if state.limit != float("inf"):
        rows.at_most(Sum(0.0, {column: cost for column, cost in enumerate(rows.costs) if cost}), state.limit)
    rows.costs = [0.0] * len(rows.costs)
    program.peak = rows.share()
    rows.costs[program.peak] = float(most_bytes)
    add_memory_rows(program)
    return program

"""Plan a problem: from a ``Problem`` and a budget to a verified ``Solution``.

    construct a plan  →  build the program around it  →  improve stretches  →  solve all of it  →  replay

The search can be stopped at any time: every better point is kept as soon as it is found, and what is
returned has always been replayed.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, replace

import numpy as np

from monet.errors import InfeasibleBudget, InvalidPlan, SolverError
from monet.planner.incumbents import construct, smallest_budget
from monet.planner.memory_rows import add_memory_rows
from monet.planner.neighbourhoods import improve
from monet.planner.problem import Problem
from monet.planner.program import Program, build_program
from monet.planner.readback import Runs, earlier, read_point, without_useless, write_point
from monet.planner.replay import Replay, replay
from monet.planner.rows import Floats
from monet.planner.solution import Solution
from monet.planner.solvers import Answer, Limits, Model, Progress, Solve
from monet.planner.solvers import solver as find_solver
from monet.planner.windows import windows

log = logging.getLogger(__name__)

IMPROVE_SHARE = 0.5
"""Share of the time limit that improving stretches may take; the rest goes to the whole program."""


@dataclass(slots=True)
class _Best:
    """The best replayed plan so far."""

    problem: Problem
    budget_bytes: int
    runs: Runs | None = None
    cost: Replay | None = None

    def offer(self, runs: Runs) -> bool:
        """Takes ``runs`` if they are valid, fit and are cheaper; returns whether they are valid and fit."""
        cost = replay(self.problem, runs.solution())
        if cost.peak_bytes > self.budget_bytes:
            return False
        if self.cost is None or cost.objective_s < self.cost.objective_s:
            self.runs, self.cost = runs, cost
        return True


def plan_problem(
    problem: Problem,
    budget_bytes: int,
    *,
    window: int | None = 16,
    time_limit_s: float = 120.0,
    gap: float = 0.01,
    solver: str = "HIGHS",
    progress: Progress | None = None,
    start: Solution | None = None,
) -> Solution:
    """The fastest plan found whose every moment fits in ``budget_bytes``, fixed bytes included.

    ``window``: recomputation is considered in so many stages before each tensor's last use; None is
    the full program. ``gap``: relative; stop when the plan is proven within it. ``start``: a plan to
    begin with; ignored if it does not fit. ``progress`` is called from this thread, about 20 times a
    second during solves. Equal inputs give equal plans when no solve, round or phase ends by its time limit.

    Ctrl-C returns the best plan so far, with status ``interrupted``, or is raised if there is none.

    Raises:
        InfeasibleBudget: no plan fits, or none was found in time and the smallest budget known is larger.
        SolverError: the solver is missing, fails, or returns something that is not a plan.
    """
    solve = find_solver(solver)
    begun = time.monotonic()
    best = _Best(problem, budget_bytes)
    bound_ms, status, scope = 0.0, "interrupted", "none"
    built = begun
    try:
        also = _first_plans(best, start, window)
        program = build_program(problem, budget_bytes, window, also)
        add_memory_rows(program)
        scope = program.scope
        built = time.monotonic()
        search = _Search(program, solve, best, progress, begun, time_limit_s, gap)
        status = search.run()
        bound_ms = search.bound_ms
    except KeyboardInterrupt:
        if best.runs is None:
            raise
        status = "interrupted"
    if best.runs is None or best.cost is None:
        raise _infeasible(problem, budget_bytes, status, time_limit_s)
    return replace(
        best.runs.solution(),
        objective_s=best.cost.objective_s,
        bound_s=max(0.0, min(bound_ms / 1e3, best.cost.objective_s)),
        bound_scope=scope,
        peak_bytes=best.cost.peak_bytes,
        status=status,
        build_s=built - begun,
        solve_s=time.monotonic() - built,
    )


def _first_plans(best: _Best, start: Solution | None, window: int | None) -> dict[str, int]:
    """Offers the caller's start and a constructed plan; returns the earlier windows that the better needs."""
    if start is not None:
        try:
            runs = without_useless(best.problem, Runs(start.forward, start.stages))
            if not best.offer(runs):
                log.warning("the given start does not fit %d bytes and is ignored", best.budget_bytes)
        except (InvalidPlan, KeyError) as error:
            log.warning("the given start is no plan of this problem and is ignored: %s", error)
    made = construct(windows(best.problem, None), best.budget_bytes)
    if made is not None:
        best.offer(made)
    if best.runs is None and (known := smallest_budget(best.problem)) is not None:
        best.offer(Runs(known[1].forward, known[1].stages))
    if best.runs is None:
        return {}
    index = windows(best.problem, window)
    also = earlier(index, best.runs)
    added = sum(index.start[name] - stage for name, stage in also.items())
    plain = sum(last + 1 - index.start[name] for name, last in index.last.items())
    # A thrifty plan recomputes everything everywhere: room for it would undo the windows.
    return also if added <= plain else {}


@dataclass(slots=True)
class _Search:
    """One solve of one program, in phases that share the time limit, the best plan and the bound."""

    program: Program
    solve: Solve
    best: _Best
    progress: Progress | None
    begun: float
    time_limit_s: float
    gap: float
    bound_ms: float = 0.0

    def run(self) -> str:
        """Improves stretches, then solves the whole; returns the status of the search."""
        arrays = self.program.rows.arrays()
        model = Model(arrays, np.zeros(len(arrays.cost)), np.ones(len(arrays.cost)))
        x = self._start(model)
        if x is not None:
            limits = Limits(self._left() * IMPROVE_SHARE, self.gap)
            x = improve(self.program, model, self.solve, x, limits, self._found, self._tick)
        answer = self.solve(replace(model, start=x), Limits(self._left(), self.gap), self._tick_whole)
        self.bound_ms = max(self.bound_ms, answer.bound) if np.isfinite(answer.bound) else self.bound_ms
        self._found(answer)
        if answer.status == "infeasible" and self.best.runs is not None:
            # The window's over-estimates exclude even the plan in hand: nothing is proven about others.
            return "time_limit"
        if answer.x is not None and self.best.runs is None:
            raise SolverError(
                f"internal error: the solver's point needs more than the budget of {self.best.budget_bytes} bytes"
            )
        return answer.status

    def _start(self, model: Model) -> Floats | None:
        """The best plan as a point of the program, if it is one."""
        if self.best.runs is None:
            return None
        x = write_point(self.program, self.best.runs)
        return x if x is not None and model.violation(x) <= 1e-6 else None

    def _found(self, answer: Answer) -> None:
        """Replays a solver's point; a point over the budget by the solver's tolerance is dropped."""
        if answer.x is not None and not self.best.offer(read_point(self.program, answer.x)):
            log.warning("a point of the solver exceeds the budget when replayed and is dropped")

    def _left(self) -> float:
        return max(0.0, self.time_limit_s - (time.monotonic() - self.begun))

    def _tick(self, incumbent_ms: float | None, bound_ms: float | None) -> None:
        """Progress during a round: its bound is not a bound on the whole."""
        self._report(incumbent_ms)

    def _tick_whole(self, incumbent_ms: float | None, bound_ms: float | None) -> None:
        self.bound_ms = max(self.bound_ms, bound_ms or 0.0)
        self._report(incumbent_ms)

    def _report(self, incumbent_ms: float | None) -> None:
        if self.progress is None:
            return
        known = [] if self.best.cost is None else [self.best.cost.objective_s]
        known += [] if incumbent_ms is None else [incumbent_ms / 1e3]
        incumbent_s = min(known, default=None)
        bound_s = self.bound_ms / 1e3 if self.bound_ms > 0 else None
        gap = None if not incumbent_s or bound_s is None else max(0.0, (incumbent_s - bound_s) / incumbent_s)
        self.progress(incumbent_s, bound_s, gap, time.monotonic() - self.begun)


def _infeasible(
    problem: Problem, budget_bytes: int, status: str, time_limit_s: float
) -> InfeasibleBudget | SolverError:
    known = smallest_budget(problem)
    if known is None:
        return InfeasibleBudget(
            f"No plan fits in {_human(budget_bytes)}, and no plan of {problem.name} is known at all: something the "
            "backward pass needs can neither be kept nor made again."
        )
    smallest = known[0]
    if status == "infeasible":
        what = f"No plan of {problem.name} fits in {_human(budget_bytes)}."
    else:
        what = f"No plan of {problem.name} that fits in {_human(budget_bytes)} was found in {time_limit_s:g} s."
    return InfeasibleBudget(
        f"{what} The smallest budget known to work is {_human(smallest)} ({_human(problem.fixed_bytes)} of it fixed). "
        "Try that budget or more, a smaller batch, a larger window, or a longer time limit.",
        smallest,
    )


def _human(count: int) -> str:
    """Bytes as MiB, and exactly."""
    return f"{count / 2**20:,.1f} MiB ({count:,} bytes)"

"""Plan a problem: from a ``Problem`` and a budget to a verified ``Solution``.

    construct a plan  →  build the program around it  →  improve stretches  →  solve all of it  →  replay

The search can be stopped at any time: every better point is kept as soon as it is found, and what is
returned has always been replayed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from monet.errors import InfeasibleBudget, InvalidPlan, SolverError
from monet.planner.companion import has_room
from monet.planner.floor import floor_bytes
from monet.planner.incumbents import construct, smallest_budget
from monet.planner.memory_rows import add_memory_rows
from monet.planner.peaks import after_peaks
from monet.planner.problem import Problem
from monet.planner.program import Program, build_program
from monet.planner.readback import Runs, earlier, without_useless
from monet.planner.search import Best, Clock, GoodEnough, Search
from monet.planner.solution import Solution
from monet.planner.solvers import Progress
from monet.planner.solvers import solver as find_solver
from monet.planner.windows import windows

log = logging.getLogger(__name__)

FULL_STAGES = 40
"""Up to so many backward operators the full program is planned; above, a windowed one."""
WINDOW = 16
CONSTRUCTION_SHARE = 0.25
"""Of the time limit: how long plans are constructed, at most."""
FIRST_SHARE, ALONE_SHARE = 0.08, 0.25
"""Until which share of the time limit stretches are improved first; ``ALONE`` where there is no companion."""
PROOF_WINDOW = 16
"""The first window inside the relaxation that bounds the full program; wider is tighter and slower."""
PROOF_SMALL, PROOF_FIRST_SHARE = 10_000, 0.6
"""Up to so many forward by backward operators the full program itself is solved, after this share of the time."""


@dataclass(frozen=True, slots=True)
class Scope:
    """Which program is planned: ``window`` as for ``windows``, and the stages that are offered everywhere."""

    window: int | None
    everywhere: frozenset[int]


def scope_of(problem: Problem, window: int | None) -> Scope:
    """``window``: as a person gives it; None chooses by size, and one that spans all stages is the full program."""
    stages = len(problem.backward)
    if window is None:
        window = stages if stages <= FULL_STAGES else WINDOW
    if window >= stages:
        return Scope(None, frozenset())
    return Scope(window, after_peaks(windows(problem, None)))


def plan_problem(
    problem: Problem,
    budget_bytes: int,
    *,
    window: int | None = None,
    time_limit_s: float = 120.0,
    gap: float = 0.01,
    solver: str = "HIGHS",
    progress: Progress | None = None,
    start: Solution | None = None,
    prove: bool = False,
    enough_s: float | None = None,
    cores: int | None = None,
) -> Solution:
    """The fastest plan found whose every moment fits in ``budget_bytes``, fixed bytes included.

    ``window``: recomputation is considered in so many stages before each tensor's last use, and right after the
    largest peaks; None chooses by size, and a window that spans all stages is the full program. ``gap``:
    relative; stop when the plan is proven within it. ``start``: a plan to begin with; ignored if it does not
    fit. ``prove``: afterwards, spend up to ``time_limit_s`` once more to bound the full program.
    ``enough_s``: stop at any plan of so many seconds or less, or once there is proven to be none.
    ``cores``: how many may be busy at once; None is all that this process may use. ``progress`` is called from
    this thread, about 20 times a second during solves. Equal inputs give equal plans when no solve, round or phase
    ends by its time limit, and the solve of the whole is over before its companion begins.

    Ctrl-C returns the best plan so far, with status ``interrupted``, or is raised if there is none.

    Raises:
        InfeasibleBudget: no plan fits, or none was found in time and the smallest budget known is larger.
        SolverError: the solver is missing, fails, or returns something that is not a plan.
    """
    solve = find_solver(solver)
    clock = Clock(time_limit_s, progress)
    least = floor_bytes(problem)
    if budget_bytes < least:
        raise _infeasible(
            problem,
            budget_bytes,
            "infeasible",
            f"every plan in the captured order, which needs {_human(least)}",
            time_limit_s,
        )
    best = Best(problem, lambda cost: cost.objective_s, lambda cost: cost.peak_bytes <= budget_bytes)
    enough = float("-inf") if enough_s is None else enough_s
    bound_s, status, name = 0.0, "interrupted", "none"
    built_s, size = clock.elapsed_s(), (0, 0)
    try:
        scope = scope_of(problem, window)
        _first_plans(best, start, budget_bytes, time_limit_s)
        built_s = clock.elapsed_s()
        if best.cost is not None and best.cost.objective_s <= enough:
            raise GoodEnough
        if scope.everywhere:
            # In the smaller program first: what is easy to find there is hard to find in the larger one.
            plain = Scope(scope.window, frozenset())
            small = build(problem, budget_bytes, plain, needed_besides(problem, best.runs, plain))
            Search(small, solve, best, clock, gap, enough).improve(FIRST_SHARE * time_limit_s)
        building = clock.elapsed_s()
        program = build(problem, budget_bytes, scope, needed_besides(problem, best.runs, scope))
        built_s += clock.elapsed_s() - building
        name, size = program.scope, (len(program.rows.costs), len(program.rows.lower))
        companion = has_room(solver, cores)
        search = Search(program, solve, best, clock, gap, enough, companion=companion)
        try:
            search.improve((FIRST_SHARE if companion else ALONE_SHARE) * time_limit_s)
            status = search.run()
        finally:
            bound_s = search.bound
        if prove and best.runs is not None and status != "interrupted" and program.scope != "full":
            full_s, status = bound_full_program(search, budget_bytes, time_limit_s)
            bound_s, name = (full_s, "full") if full_s > 0 else (bound_s, name)
    except GoodEnough:
        status = "good_enough"
    except KeyboardInterrupt:
        if best.runs is None:
            raise
        status = "interrupted"
    if best.runs is None or best.cost is None:
        raise _infeasible(problem, budget_bytes, status, name, time_limit_s)
    return replace(
        best.runs.solution(),
        objective_s=best.cost.objective_s,
        bound_s=max(0.0, min(bound_s, best.cost.objective_s)),
        bound_scope=name,
        peak_bytes=best.cost.peak_bytes,
        status=status,
        build_s=built_s,
        solve_s=clock.elapsed_s() - built_s,
        columns=size[0],
        rows=size[1],
    )


def build(problem: Problem, budget_bytes: int, scope: Scope, also: Mapping[str, frozenset[int]]) -> Program:
    """The program with its memory rows; ``also`` as for ``windows``."""
    program = build_program(problem, budget_bytes, scope.window, also, scope.everywhere)
    add_memory_rows(program)
    return program


def bound_full_program(planned: Search, budget_bytes: int, time_limit_s: float) -> tuple[float, str]:
    """A bound on the full program, in seconds; and ``optimal`` where the best plan is within the gap, else
    ``time_limit`` or ``interrupted``. ``planned``: the search so far; its companion goes on meanwhile.

    From relaxations, each with twice the window of the one before, as long as there is time; where the full program is
    small enough to be solved itself, after the first relaxation.
    """
    problem = planned.best.problem
    begun = Clock(time_limit_s, planned.clock.progress)
    small = len(problem.forward) * len(problem.backward) <= PROOF_SMALL
    window, bound, status = PROOF_WINDOW, 0.0, "time_limit"
    while status == "time_limit" and begun.left_s() > 0:
        share = PROOF_FIRST_SHARE if small and window == PROOF_WINDOW else 1.0
        clock = replace(begun, time_limit_s=share * time_limit_s)
        whole = window >= len(problem.backward) or (small and window > PROOF_WINDOW)
        program = build_program(problem, budget_bytes, None if whole else window, relaxed=not whole)
        add_memory_rows(program)
        search = replace(planned, program=program, clock=clock, bound=bound)
        try:
            status = search.bound_beside(planned, relaxed=not whole)
        except KeyboardInterrupt:
            status = "interrupted"
        bound = search.bound
        if whole:
            break
        window *= 2
    return bound, status


def _first_plans(best: Best, start: Solution | None, budget_bytes: int, time_limit_s: float) -> None:
    """Offers the caller's start and constructed plans."""
    deadline_s = time.monotonic() + CONSTRUCTION_SHARE * time_limit_s
    if start is not None:
        try:
            runs = without_useless(best.problem, Runs(start.forward, start.stages))
            if not best.offer(runs):
                log.warning("the given start does not fit %d bytes and is ignored", budget_bytes)
        except (InvalidPlan, KeyError) as error:
            log.warning("the given start is no plan of this problem and is ignored: %s", error)
    made = construct(windows(best.problem, None), budget_bytes, deadline_s)
    if made is not None:
        best.offer(made)
    deadline_s += CONSTRUCTION_SHARE * time_limit_s
    if best.runs is None and (known := smallest_budget(best.problem, deadline_s)) is not None:
        best.offer(Runs(known[1].forward, known[1].stages))


def needed_besides(problem: Problem, runs: Runs | None, scope: Scope) -> Mapping[str, frozenset[int]]:
    """Stages outside the windows that a program must offer to contain ``runs``; nothing if that is too much."""
    if runs is None:
        return {}
    index = windows(problem, scope.window, None, scope.everywhere)
    also = earlier(index, runs)
    plain = sum(last + 1 - index.start[name] for name, last in index.last.items())
    # A thrifty plan recomputes everything everywhere: room for it would undo the windows.
    return also if sum(map(len, also.values())) <= plain else {}


def _infeasible(
    problem: Problem, budget_bytes: int, status: str, scope: str, time_limit_s: float
) -> InfeasibleBudget | SolverError:
    known = smallest_budget(problem, time.monotonic() + time_limit_s)
    if known is None:
        return InfeasibleBudget(
            f"No plan fits in {_human(budget_bytes)}, and no plan of {problem.name} is known at all: something the "
            "backward pass needs can neither be kept nor made again."
        )
    smallest, plan = known
    size = f"{_human(budget_bytes)}, {_human(problem.fixed_bytes)} of which hold what is there in any plan"
    advice = "that budget or more, or a smaller batch"
    if budget_bytes < problem.fixed_bytes:
        what = (
            f"No plan of {problem.name} fits in {_human(budget_bytes)}: what is there in any plan (parameters, their "
            f"gradients, inputs, outputs) takes {_human(problem.fixed_bytes)}."
        )
        advice = "that budget or more"
    elif status == "infeasible":
        what = f"No plan of {problem.name} fits in {size}: proven for {scope}."
        advice += ", or a larger window" if scope.startswith("window") else ""
    else:
        what = f"No plan of {problem.name} that fits in {size}, was found in {time_limit_s:g} s."
        advice += ", a larger window, or a longer time limit"
    return InfeasibleBudget(what, smallest, advice=advice, smallest_plan=plan)


def _human(count: int) -> str:
    """Bytes as MiB where that says something, and exactly."""
    return f"{count / 2**20:,.1f} MiB ({count:,} bytes)" if count >= 2**20 else f"{count:,} bytes"

"""Plan a problem: one entry from a ``Problem`` and a budget to a verified ``Solution``."""

from __future__ import annotations

import logging
import time
from dataclasses import replace

import numpy as np

from monet.errors import InfeasibleBudget, SolverError
from monet.planner.memory_rows import add_memory_rows
from monet.planner.problem import Problem
from monet.planner.program import build_program
from monet.planner.readback import Runs, read_point, write_point
from monet.planner.replay import replay
from monet.planner.solution import Solution
from monet.planner.solvers import Limits, Model, Progress, solver as find_solver

log = logging.getLogger(__name__)


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
    solve = find_solver(solver)
    begun = time.monotonic()
    program = build_program(problem, budget_bytes, window)
    add_memory_rows(program)
    arrays = program.rows.arrays()
    built = time.monotonic()
    n = len(arrays.cost)
    x0 = write_point(program, Runs(start.forward, start.stages)) if start is not None else None

    def tick(incumbent: float | None, bound: float | None) -> None:
        if progress is not None:
            g = None if not incumbent or bound is None else (incumbent - bound) / incumbent
            progress(
                None if incumbent is None else incumbent / 1e3, None if bound is None else bound / 1e3, g,
                time.monotonic() - begun,
            )

    answer = solve(Model(arrays, np.zeros(n), np.ones(n), x0), Limits(time_limit_s, gap), tick)
    if answer.x is None:
        raise InfeasibleBudget(f"{answer.status}")
    runs = read_point(program, answer.x)
    found = runs.solution()
    cost = replay(problem, found)
    if cost.peak_bytes > budget_bytes:
        raise SolverError(f"internal: {cost.peak_bytes} > {budget_bytes}")
    return replace(
        found,
        objective_s=cost.objective_s,
        bound_s=min(answer.bound / 1e3, cost.objective_s),
        bound_scope=program.scope,
        peak_bytes=cost.peak_bytes,
        status="optimal" if answer.status == "optimal" else "time_limit",
        build_s=built - begun,
        solve_s=time.monotonic() - built,
    )

"""The smallest budget where there is a second memory: budgets halved between what is proven too small and a plan.

The program of moments proves that no plan fits a budget, or that none that fits is fast enough, moves included; the
program of ``smallest.py`` has no moves to minimise over.
"""

from __future__ import annotations

import time
from dataclasses import replace

from monet.planner.construction.first_plans import fastest_plan, smallest_budget
from monet.planner.memory_floor import floor_bytes
from monet.planner.search.fastest import hunted
from monet.planner.search.hunt import Hunt
from monet.planner.solution import Runs

CONSTRUCTION_SHARE, STEP_SHARE = 0.25, 0.06
"""Of the time limit: for constructed plans, and for each budget of the first round, at most; twice that in the next."""


def halve_budgets(hunt: Hunt, limit_s: float, start: Runs | None) -> None:
    """Offers plans of at most ``limit_s`` seconds with less and less memory; the hunt's bound, in bytes, is about every
    plan that is as fast.

    Raises:
        KeyboardInterrupt: on Ctrl-C.
    """
    best, problem, clock = hunt.best, hunt.best.problem, hunt.clock
    hunt.scope, hunt.bound = "full", float(floor_bytes(problem))
    fastest = fastest_plan(problem)
    if fastest is not None and not best.offer(fastest.runs):  # whatever is moved, no plan is faster
        hunt.status = "infeasible"
        return
    if start is not None:
        best.offer(start)
    known = smallest_budget(problem, time.monotonic() + CONSTRUCTION_SHARE * clock.time_limit_s)
    if known is not None:
        best.offer(known[1].runs)
    hunt.built_s = clock.elapsed_s()
    step_s = STEP_SHARE * clock.time_limit_s
    while best.cost is not None and not _is_done(hunt) and clock.left_s() > 0:
        _halve(hunt, limit_s, step_s)
        step_s *= 2
    hunt.status = "optimal" if _is_done(hunt) else "time_limit"


def _is_done(hunt: Hunt) -> bool:
    return hunt.best.value - hunt.bound <= max(1.0, hunt.solving.gap * hunt.best.value)


def _halve(hunt: Hunt, limit_s: float, step_s: float) -> None:
    """Once, from the bound up to the best plan; a budget for which none is found in ``step_s`` counts as too small."""
    best, problem, clock, gap = hunt.best, hunt.best.problem, hunt.clock, hunt.solving.gap
    low = int(hunt.bound)
    while clock.left_s() > 0 and best.value - low > max(1.0, gap * best.value):
        middle = int(low + best.value) // 2
        solving = replace(hunt.solving, time_limit_s=min(step_s, clock.left_s()), prove=False)
        tried = hunted(problem, middle, solving, enough_s=limit_s)
        if tried.best.runs is None or not best.offer(tried.best.runs):
            low = middle
            if tried.status == "infeasible" or tried.known > limit_s:
                hunt.bound = max(hunt.bound, float(middle))
        clock.tell(best, hunt.bound)
        if tried.status == "interrupted":
            raise KeyboardInterrupt

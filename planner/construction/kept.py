"""Plans with one recomputation less: its results stay in memory since the run before.

A search that ends near enough to its bound may leave room for them; ``keep_what_fits`` fills it.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace

from monet.planner.problem import Problem, recompute_cost
from monet.planner.replay import Replay, cost_of_plan, replay
from monet.planner.runs import without_useless
from monet.planner.solution import Runs, Stage

MOST_RUNS = 50_000
"""Runs that are replayed in trials, so that of a long plan only the longest recomputations are tried: half a second to
one with the networks of ``bench_orders.py``."""


def keep_what_fits(
    problem: Problem, runs: Runs, budget_bytes: int, deadline_s: float = math.inf, most_runs: float = MOST_RUNS
) -> Runs:
    """``runs`` without recomputations whose results fit in memory instead, those that take longest first; what is known
    of that at ``deadline_s`` (``time.monotonic``), or after trials of ``most_runs`` runs."""
    seconds = replay(problem, runs).objective_s
    for place in _longest(problem, runs, most_runs):
        if time.monotonic() >= deadline_s:
            break
        tried = _without(problem, runs, place)
        if tried is not None and tried[1].peak_bytes <= budget_bytes and tried[1].objective_s <= seconds:
            runs, seconds = tried[0], tried[1].objective_s
    return runs


def next_peak_bytes(problem: Problem, runs: Runs) -> int | None:
    """What the step needs at least where one recomputation less is run; None where there is none that can be left
    out."""
    tried = (_without(problem, runs, place) for place in _longest(problem, runs, MOST_RUNS))
    return min((each[1].peak_bytes for each in tried if each is not None), default=None)


def _longest(problem: Problem, runs: Runs, most_runs: float) -> list[tuple[str, str]]:
    """Stage and operator of recomputations, those that take longest first."""
    seconds = {(o.id, q.name): recompute_cost(q)[0] for o in problem.forward for q in o.implementations}
    found = [(stage.backward, run) for stage in runs.stages for run in stage.recompute]
    found.sort(key=lambda each: -seconds[each[1].operator, each[1].implementation])
    trials = most_runs / max(1, len(problem.forward) + len(problem.backward) + len(found))
    return [(backward, run.operator) for backward, run in found[: int(min(trials, len(found)))]]


def _without(problem: Problem, runs: Runs, place: tuple[str, str]) -> tuple[Runs, Replay] | None:
    """``runs`` without that recomputation, and without those that were run for it alone, with its cost; None where it
    is gone, or where that is no plan."""
    backward, operator = place

    def shorter(stage: Stage) -> Stage:
        if stage.backward != backward:
            return stage
        return replace(stage, recompute=tuple(run for run in stage.recompute if run.operator != operator))

    stages = tuple(map(shorter, runs.stages))
    if stages == runs.stages:
        return None
    fewer = without_useless(problem, replace(runs, stages=stages))
    cost = cost_of_plan(problem, fewer)
    return None if cost is None else (fewer, cost)

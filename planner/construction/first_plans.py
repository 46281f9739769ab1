"""Constructive plans: fast, feasible, and good enough for the solver to start from.

A plan is what a walk (``passes.py``) leaves behind; a few walks with different tensors exempt from
dropping are tried, and the best is kept. The smallest budget known is the least peak of walks under
budgets that are halved, and of thrifty walks.
"""

from __future__ import annotations

import itertools
import math
import sys
import time
from dataclasses import replace

from monet.planner.construction.copies import moving, with_copies
from monet.planner.construction.passes import backward_pass, forward_pass
from monet.planner.construction.walk import Walk, aheads
from monet.planner.memory_floor import floor_bytes
from monet.planner.problem import Problem
from monet.planner.program.index import Index, index_of
from monet.planner.replay import replay
from monet.planner.runs import without_useless
from monet.planner.solution import Runs, Solution

TRIALS = 64
"""How often an intermediate is added or left out."""

SHARES = (1.0, 0.97, 0.93, 0.88)
"""Parts of the budget that walks are given."""

SMALL = (0.01, 0.04, 0.1, 0.25)
"""What counts as small, as a part of the largest tensor."""

STEPS = (0.9, 0.95, 0.98, 0.99)
"""How much less an ordinary walk is given than the smallest peak so far."""

HALVINGS = 7
"""How often the way from the floor to the smallest peak so far is halved."""


def construct(index: Index, budget_bytes: int, deadline_s: float = math.inf) -> Runs | None:
    """The best plan within the budget that a few walks find until ``deadline_s`` (``time.monotonic``), or None.

    Between walks, intermediates (sign bits, pool indices) are added to the forward pass or left out
    one by one, largest operator first; a change stays if the plan gets cheaper.
    """
    best: Solution | None = None
    budget, chosen = budget_bytes, frozenset[str]()
    # An eviction is greedy, so a walk with less memory can end up with the better plan.
    ahead: tuple[int, ...] = ()
    for later in aheads(index):
        for share, trial in itertools.product(SHARES, _exempt(index)):
            found = _walk(index, int(budget_bytes * share), trial, deadline_s, ahead=later)
            if found is not None and (best is None or found.objective_s < best.objective_s):
                best, chosen, budget, ahead = found, trial, int(budget_bytes * share), later
        if best is not None:
            break
    if best is None:
        return None
    for name in sorted(_needed_intermediates(index), key=lambda v: (-_output_bytes(index, v), v))[:TRIALS]:
        found = _walk(index, budget, chosen ^ {name}, deadline_s, ahead=ahead)
        if found is not None and (best is None or found.objective_s < best.objective_s):
            best, chosen = found, chosen ^ {name}
    return best.runs


def smallest_budget(problem: Problem, deadline_s: float = math.inf) -> tuple[int, Solution] | None:
    """The smallest budget known to be feasible, and the plan that shows it.

    Ordinary walks first, under budgets that are halved; then thrifty ones, which take long on many operators and
    whose plans are slow to run; then ordinary ones with a little less, as long as they succeed. At ``deadline_s``
    (``time.monotonic``) the best so far is returned. None if nothing is found: a needed tensor cannot be made.
    """
    index = index_of(problem)
    everything = _needed_intermediates(index)
    exempt = dict.fromkeys(chosen for small in _exempt(index) for chosen in (small, small - everything))
    # It is there whatever time the others take.
    unlimited = _unlimited(index)
    tried = [unlimited if unlimited is None else _halved(index, unlimited, deadline_s)]
    if index.movable and not problem.in_place:
        tried.append(_walk(index, sys.maxsize, frozenset(), deadline_s, thrifty=True, away=index.movable))
    tried += [_walk(index, sys.maxsize, chosen, deadline_s, thrifty=True) for chosen in exempt]
    best = min((found for found in tried if found is not None), key=_memory_first, default=None)
    if best is None:
        return None
    for step in STEPS:
        budget = int(best.peak_bytes * step)
        lower = [found for chosen in _exempt(index) if (found := _walk(index, budget, chosen, deadline_s)) is not None]
        best = min([best, *lower], key=_memory_first)
    return best.peak_bytes, best


def _halved(index: Index, best: Solution, deadline_s: float) -> Solution:
    """The smallest plan of ordinary walks under budgets between the floor and ``best``'s peak, in half the time."""
    now = time.monotonic()
    deadline_s = now + (deadline_s - now) / 2
    low = floor_bytes(index.problem)
    for _ in range(HALVINGS):
        middle = (low + best.peak_bytes) // 2
        tried = itertools.product(aheads(index), _exempt(index)[:2])
        found = (_walk(index, middle, chosen, deadline_s, ahead=ahead) for ahead, chosen in tried)
        smaller = next((one for one in found if one is not None), None)
        low, best = (middle, best) if smaller is None else (low, smaller)
    return best


def fastest_plan(problem: Problem) -> Solution | None:
    """The fastest implementations and nothing recomputed, whatever memory that takes; None where something that the
    backward pass needs can neither be kept nor made again.

    A walk prices only the first stage that misses what an in-place run destroys, and may end with nothing: then without
    runs in place.
    """
    found = _unlimited(index_of(problem))
    return found or _unlimited(index_of(_without_overwriting(problem)))


def _without_overwriting(problem: Problem) -> Problem:
    """Without the implementations that destroy an input, of operators that have others."""
    return replace(
        problem,
        forward=tuple(
            replace(o, implementations=tuple(q for q in o.implementations if q.overwrites is None) or o.implementations)
            for o in problem.forward
        ),
    )


def _unlimited(index: Index) -> Solution | None:
    """Without a limit a walk drops nothing, so it is quick."""
    return _walk(index, sys.maxsize, frozenset(), math.inf)


def _memory_first(plan: Solution) -> tuple[int, float]:
    return plan.peak_bytes, plan.objective_s


def _walk(
    index: Index,
    budget_bytes: int,
    chosen: frozenset[str],
    deadline_s: float,
    *,
    thrifty: bool = False,
    ahead: tuple[int, ...] = (),
    away: frozenset[str] = frozenset(),
) -> Solution | None:
    walk = Walk(index, budget_bytes, thrifty=thrifty, chosen=chosen, deadline_s=deadline_s, ahead=ahead, away=away)
    forward = forward_pass(walk, index.last.keys() - away)
    stages = None if forward is None else backward_pass(walk)
    if forward is None or stages is None:
        return None
    runs = without_useless(index.problem, Runs(moving(index, forward, away), tuple(stages)))
    if away:  # as little as it needs, and no more than that for copies that would hide
        runs = with_copies(index.problem, runs, min(budget_bytes, replay(index.problem, runs).peak_bytes))
    cost = replay(index.problem, runs)
    fits = cost.peak_bytes <= budget_bytes
    return Solution(runs, cost.objective_s, cost.peak_bytes, "time_limit") if fits else None


def _needed_intermediates(index: Index) -> frozenset[str]:
    return frozenset(v.id for made in index.intermediates for v in made if v.id in index.last)


def _exempt(index: Index) -> list[frozenset[str]]:
    """Sets of tensors to keep in any case: none; all intermediates; with them, what is small."""
    largest = max(index.size.values(), default=0)
    intermediates = _needed_intermediates(index)
    small = [frozenset(n for n in index.last if index.size[n] <= part * largest) for part in SMALL]
    return list(dict.fromkeys([frozenset[str](), intermediates, *(intermediates | names for names in small)]))


def _output_bytes(index: Index, intermediate: str) -> int:
    return sum(index.size[n] for n in index.problem.forward[index.producer[intermediate]].outputs)

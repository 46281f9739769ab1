"""Moves that cost a plan nothing: what it keeps long, as far as the channel has time beside its operators.

What is away takes no memory, so a search around these moves can keep what the plan made again. FlashNeuron (Bae et
al., FAST 2021) and Capuchin (Peng et al., ASPLOS 2020) choose what is moved by the same idea; what they move they never
weigh against recomputation.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace

from monet.errors import InvalidPlan
from monet.planner.construction.copies import moving, stage_reads, with_copies
from monet.planner.program.index import Index
from monet.planner.replay import Replay, replay
from monet.planner.solution import Runs

WAITED_SHARE = 1e-3
"""Of a step: how much longer it may wait for moves that cost nothing."""


def with_hidden_moves(index: Index, runs: Runs, budget_bytes: int, deadline_s: float = math.inf) -> Runs:
    """``runs`` with more of what it keeps moved: one tensor after the other, the longest unused first, as long as the
    step waits no longer for it. Until ``deadline_s`` (``time.monotonic``)."""
    problem, known = index.problem, frozenset(runs.moved)
    first = _first_reads(index, runs, known)
    gap = {name: (len(runs.forward) - index.producer[name] + stage, index.size[name]) for name, stage in first.items()}
    best, cost = runs, replay(problem, runs)
    most_s = _waited(cost) + WAITED_SHARE * cost.objective_s
    away: set[str] = set()
    for name in sorted(gap, key=lambda n: (gap[n], n), reverse=True):
        if time.monotonic() > deadline_s:
            break
        try:
            moved = _moved(index, runs, {n: first[n] for n in (*away, name)}, known, budget_bytes)
            tried = replay(problem, moved)
        except InvalidPlan:  # the forward pass destroys it in place
            continue
        if tried.peak_bytes <= budget_bytes and _waited(tried) <= most_s:
            away.add(name)
            best = moved
    return best


def _first_reads(index: Index, runs: Runs, known: frozenset[str]) -> dict[str, int]:
    """The first stage that reads each tensor that may be moved and is kept; what is made again before that, or is moved
    (``known``), is not."""
    everything = Runs(moving(index, runs.forward, index.movable), runs.stages)
    reads, operators = stage_reads(index.problem, everything), {o.id: o for o in index.problem.forward}
    first: dict[str, int] = {}
    made: set[str] = set()
    for stage, names in enumerate(reads):
        again = {name for run in runs.stages[stage].recompute for name in operators[run.operator].outputs}
        for name in names - made - again - known:
            first.setdefault(name, stage)
        made |= again
    return first


def _moved(index: Index, runs: Runs, back: dict[str, int], known: frozenset[str], budget_bytes: int) -> Runs:
    returns = {t: stage.returns for t, stage in enumerate(runs.stages)}
    for name, stage in sorted(back.items()):
        returns[stage] = (*returns[stage], name)
    stages = tuple(replace(stage, issues=returns[t], returns=returns[t]) for t, stage in enumerate(runs.stages))
    away = known | back.keys()
    return with_copies(index.problem, Runs(moving(index, runs.forward, away), stages), budget_bytes)


def _waited(cost: Replay) -> float:
    return 0.0 if cost.traffic is None else cost.traffic.waited_s

"""A plan that exceeds the budget a little, made to fit: its step is walked again with what the plan keeps.

The checkpoint program knows nothing of the memory between its checkpoints. A walk (``construction/passes.py``) does,
and evicts what is cheapest to do without; begun from a good plan's tensors it has little to evict. Where the forward
pass exceeds the budget, too, it is walked as well.
"""

from __future__ import annotations

import math

from monet.planner.checkpoints.in_place import in_place
from monet.planner.construction.copies import moving, with_copies
from monet.planner.construction.passes import backward_pass, forward_pass
from monet.planner.construction.walk import Walk, aheads
from monet.planner.program.index import Index
from monet.planner.replay import replay
from monet.planner.runs import without_useless
from monet.planner.solution import Runs


def repaired(index: Index, runs: Runs, budget_bytes: int, deadline_s: float = math.inf) -> Runs | None:
    """A plan that keeps what ``runs`` keeps, but for what does not fit; None where none is found until ``deadline_s``
    (``time.monotonic``). The forward pass is that of ``runs`` where it fits."""
    runs = without_useless(index.problem, runs)
    plans = (_walked(index, runs, budget_bytes, deadline_s, ahead) for ahead in aheads(index))
    return next((plan for plan in plans if plan is not None), None)


def _walked(index: Index, runs: Runs, budget_bytes: int, deadline_s: float, ahead: tuple[int, ...]) -> Runs | None:
    kept, away = survivors(index, runs), frozenset(runs.moved)
    walk = Walk(index, budget_bytes, thrifty=False, deadline_s=deadline_s, ahead=ahead, away=away)
    if _forward_peak_bytes(index, runs) <= budget_bytes:
        walk.take(kept)
        forward = runs.forward
    else:
        made = frozenset(v.id for made in index.intermediates for v in made if v.id in kept)
        walk = Walk(index, budget_bytes, thrifty=False, chosen=made, deadline_s=deadline_s, ahead=ahead, away=away)
        walked = forward_pass(walk, kept | index.pinned)
        if walked is None:
            return None
        forward = moving(index, walked, away)
    stages = backward_pass(walk)
    if stages is None:
        return None
    plain = without_useless(index.problem, Runs(forward, tuple(stages)))
    # The walk has chosen what fits; the fastest of all may not.
    fast = with_copies(index.problem, in_place(index, plain), budget_bytes)
    if replay(index.problem, fast).peak_bytes <= budget_bytes:
        return fast
    return with_copies(index.problem, in_place(index, plain, larger=False), budget_bytes)


def _forward_peak_bytes(index: Index, runs: Runs) -> int:
    """The most that ``runs`` has in memory before its backward pass begins."""
    moments = replay(index.problem, runs).moments
    return max((moment.bytes for moment in moments if moment.stage is None), default=0)


def survivors(index: Index, runs: Runs) -> set[str]:
    """What the backward pass of ``runs`` reads before it makes it: what is in memory at the turnaround."""
    problem = index.problem
    operators = {operator.id: operator for operator in problem.forward}
    again = {(operator.id, q.name): q.recompute_reads for operator in problem.forward for q in operator.implementations}
    reads = {(operator.id, q.name): q.reads for operator in problem.backward for q in operator.implementations}
    made_of = {v.id: v.reads for v in problem.intermediates}
    kept: set[str] = set()
    made: set[str] = set()
    for stage in runs.stages:
        made |= set(stage.returns)
        for run in stage.recompute:
            operator, extra = operators[run.operator], again[run.operator, run.implementation]
            kept |= {*operator.inputs, *extra} - made
            made |= {n for n in operator.outputs if n not in index.pinned and n not in extra}
            kept |= {n for v in run.intermediates for n in made_of[v]} - made - set(operator.outputs)
            made |= set(run.intermediates)
        kept |= set(reads[stage.backward, stage.implementation]) - made
    return kept

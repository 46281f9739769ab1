"""A plan that exceeds the budget a little, made to fit: the backward pass is walked again from what the plan keeps.

The program of moments knows nothing of the memory between its moments. A walk (``construction/passes.py``) does, and
evicts what is cheapest to do without; begun from a good plan's tensors it has little to evict.
"""

from __future__ import annotations

import math

from monet.planner.construction.passes import backward_pass
from monet.planner.construction.walk import DoesNotFit, Walk
from monet.planner.moments.in_place import in_place
from monet.planner.program.index import Index
from monet.planner.runs import without_useless
from monet.planner.solution import Runs


def repaired(index: Index, runs: Runs, budget_bytes: int, deadline_s: float = math.inf) -> Runs | None:
    """The forward pass of ``runs`` and a backward pass that fits, by the walk's count; None where none is found until
    ``deadline_s`` (``time.monotonic``). The forward pass itself may still exceed the budget."""
    walk = Walk(index, budget_bytes, thrifty=False, deadline_s=deadline_s)
    runs = without_useless(index.problem, runs)
    walk.take(survivors(index, runs))
    try:
        stages = tuple(backward_pass(walk))
    except DoesNotFit:
        return None
    return in_place(index, without_useless(index.problem, Runs(runs.forward, stages)))


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
        for run in stage.recompute:
            operator, extra = operators[run.operator], again[run.operator, run.implementation]
            kept |= {*operator.inputs, *extra} - made
            made |= {n for n in operator.outputs if n not in index.pinned and n not in extra}
            kept |= {n for v in run.intermediates for n in made_of[v]} - made - set(operator.outputs)
            made |= set(run.intermediates)
        kept |= set(reads[stage.backward, stage.implementation]) - made
    return kept

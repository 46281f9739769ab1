"""Encoded feature maps instead of recomputation (Jain et al., Gist, ISCA 2018)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from monet.planner.baselines.runs import forward_runs, made_in_forward, one_pass, stages_without_recomputation
from monet.planner.problem import BackwardImplementation, ForwardImplementation, ForwardOperator, Intermediate, Problem
from monet.planner.solution import Solution

LOSSLESS = ("sign-bits", "pool-index", "sparse")
"""Kinds of intermediates that Gist stores without loss."""


def gist(problem: Problem, budget_bytes: int, *, reduced: bool = False) -> Solution:
    """Encoded feature maps instead of recomputation (Jain et al., Gist, ISCA 2018).

    A tensor is not kept for the backward pass if every backward operator that reads it can read an
    encoding, and the encodings are smaller: sign bits of a ReLU's output and a pool's 8-bit index
    ("binarize"), sparse storage of a ReLU's output for a convolution ("sparse storage and dense compute"),
    where the problem offers them. In-place implementations are taken wherever nobody needs what they
    destroy. ``reduced``: also 16-bit copies ("delayed precision reduction"), which change gradients.

    Raises:
        InfeasibleBudget: the policy, which does not look at the budget, needs more than it.
    """
    begun = time.monotonic()
    chosen = _encoded(problem, (*LOSSLESS, "half") if reduced else LOSSLESS)
    made = made_in_forward(problem, chosen)
    read = {name for q in chosen for name in q.reads}
    forward = []
    for operator, run in zip(problem.forward, forward_runs(problem, made), strict=True):
        # What its own intermediates are made from is read once more, after the run.
        wanted = read.union(*(v.reads for v in made.get(operator.id, ())))
        forward.append(replace(run, implementation=_in_place(operator, wanted).name))
    return one_pass(
        problem, "Gist's encodings", budget_bytes, forward, stages_without_recomputation(problem, chosen), begun
    )


def _encoded(problem: Problem, kinds: Sequence[str]) -> list[BackwardImplementation]:
    """The implementation of every backward operator, tensor by tensor in forward order.

    A tensor's readers change to encodings together or not at all: one dense reader keeps it anyway.
    """
    intermediates = {v.id: v for v in problem.intermediates if v.kind in kinds}
    chosen = [operator.implementations[0] for operator in problem.backward]
    for tensor in problem.tensors:
        change: dict[int, BackwardImplementation] = {}
        for t, q in enumerate(chosen):
            if tensor.id in q.reads and (found := _without(problem, t, q, tensor.id, intermediates, kinds)):
                change[t] = found
        readers = [t for t, q in enumerate(chosen) if tensor.id in q.reads]
        already = {name for q in chosen for name in q.reads}
        added = {name for q in change.values() for name in q.reads} - already
        if readers and len(change) == len(readers) and sum(intermediates[n].bytes for n in added) < tensor.bytes:
            for t, q in change.items():
                chosen[t] = q
    return [_aliasing(problem, t, q) for t, q in enumerate(chosen)]


def _without(
    problem: Problem,
    stage: int,
    chosen: BackwardImplementation,
    tensor: str,
    intermediates: dict[str, Intermediate],
    kinds: Sequence[str],
) -> BackwardImplementation | None:
    """The implementation that reads encodings where ``chosen`` reads ``tensor``; lossless ones first."""
    others = set(chosen.reads) - {tensor}
    found = [
        q
        for q in problem.backward[stage].implementations
        if tensor not in q.reads
        and all(name in others or name in intermediates for name in q.reads)
        and any(name in intermediates for name in q.reads)
    ]

    def order(q: BackwardImplementation) -> tuple[int, int, float]:
        new = [intermediates[name] for name in q.reads if name in intermediates]
        return max(kinds.index(v.kind) for v in new), sum(v.bytes for v in new), q.time_s

    return min(found, key=order, default=None)


def _aliasing(problem: Problem, stage: int, chosen: BackwardImplementation) -> BackwardImplementation:
    """The same reads with the gradient made in the incoming one's buffer, where that is offered."""
    same = [q for q in problem.backward[stage].implementations if set(q.reads) == set(chosen.reads)]
    best = max(same, key=lambda q: q.aliased_bytes)
    return best if best.aliased_bytes > chosen.aliased_bytes else chosen


def _in_place(operator: ForwardOperator, wanted: set[str]) -> ForwardImplementation:
    """An implementation that overwrites what nobody wants any more, else the default."""
    destroying = [q for q in operator.implementations if q.overwrites is not None and q.overwrites not in wanted]
    return max(destroying, key=lambda q: q.aliased_bytes, default=operator.implementations[0])

"""What must run again so that missing tensors are there, and how long that takes.

The *reruns* for some tensors are the forward operators to recompute at one stage, given what is in memory: those that
make the tensors, and those that make what they read in turn. Each runs by its fastest implementation.
"""

from __future__ import annotations

import heapq
from collections.abc import Container, Iterable

from monet.planner.problem import recompute_cost
from monet.planner.program.index import Index

NEVER = float("inf")
"""Seconds to make again what cannot be made again."""


def stage_seconds(index: Index, present: Container[str], stage: int) -> float:
    """How long ``stage`` takes at least with ``present`` in memory, reruns included; ``NEVER`` if it cannot run."""
    return min(
        (q.time_s + rerun_seconds(index, present, q.reads, stage) for q in index.runs_backward[stage]),
        default=0.0,
    )


def reruns(index: Index, present: Container[str], names: Iterable[str], stage: int) -> dict[int, set[str]] | None:
    """Operators to run again at ``stage`` so that ``names`` are there, each with the intermediates it makes.

    In forward order; None if something cannot be made again at this stage.
    """
    latest_first: list[int] = []  # a heap: what an operator reads is made by operators before it
    operators: dict[int, set[str]] = {}

    def prepare(name: str) -> bool:
        """Whether ``name`` is there or can be; what makes it is to run again then."""
        if name in present:
            return True
        i = index.producer[name]
        if name in index.pinned or not index.runs_again[i] or not index.needed(name, stage):
            return False
        if name in index.runs_again[i][0].recompute_reads:
            return False  # its own recomputation reads it
        if i not in operators:
            operators[i] = set()
            heapq.heappush(latest_first, -i)
        if name not in index.problem.forward[i].outputs:
            operators[i].add(name)
        return True

    if not all([prepare(name) for name in names]):
        return None
    while latest_first:
        i = -heapq.heappop(latest_first)
        making = [n for v in index.intermediates[i] if v.id in operators[i] for n in v.reads]
        operator = index.problem.forward[i]
        reads = [*operator.inputs, *index.runs_again[i][0].recompute_reads]
        reads += [n for n in making if n not in operator.outputs]
        if not all([prepare(name) for name in reads]):
            return None
    return dict(sorted(operators.items()))


def rerun_seconds(index: Index, present: Container[str], names: Iterable[str], stage: int) -> float:
    """How long the reruns for ``names`` take, the making of their intermediates included; ``NEVER`` without any."""
    operators = reruns(index, present, names, stage)
    if operators is None:
        return NEVER
    making_s = sum(v.time_s for i, made in operators.items() if made for v in index.intermediates[i] if v.id in made)
    return making_s + sum(recompute_cost(index.runs_again[i][0])[0] for i in operators)


def reads_again(index: Index, i: int, made: Iterable[str]) -> set[str]:
    """What operator i reads when it runs again, and what making the intermediates ``made`` reads besides its
    outputs."""
    operator = index.problem.forward[i]
    making = {name for v in index.intermediates[i] if v.id in made for name in v.reads}
    return {*operator.inputs, *index.runs_again[i][0].recompute_reads, *(making - set(operator.outputs))}

"""What must run again so that missing tensors are there, and how long that takes.

A closure is the set of forward operators to recompute at one stage, each by its fastest
implementation, given what is in memory.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from monet.planner.problem import recompute_cost
from monet.planner.program.windows import Windows

NEVER = float("inf")


def uses(index: Windows, name: str) -> list[int]:
    return [stage for stage in range(index.last.get(name, -1) + 1) if name in index.reads[stage]]


def stage_seconds(index: Windows, present: set[str], stage: int) -> float:
    return min(
        (q.time_s + closure_seconds(index, present, q.reads, stage) for q in index.runs_backward[stage]),
        default=0.0,
    )


def closure(index: Windows, present: set[str], names: Iterable[str], stage: int) -> dict[int, set[str]] | None:
    """Operators to run again at ``stage`` so that ``names`` are there, each with the intermediates it makes.

    None if something cannot be made again at this stage.
    """
    heap: list[int] = []
    runs: dict[int, set[str]] = {}

    def want(name: str) -> bool:
        if name in present:
            return True
        i = index.producer[name]
        # A tensor outside its window can only be there as kept.
        if name in index.pinned or stage not in index.stages_again[i] or not index.start[name] <= stage:
            return False
        if name in index.runs_again[i][0].recompute_reads:
            return False  # its own recomputation reads it
        if i not in runs:
            runs[i] = set()
            heapq.heappush(heap, -i)
        if name not in index.problem.forward[i].outputs:
            runs[i].add(name)
        return True

    if not all([want(name) for name in names]):
        return None
    while heap:
        i = -heapq.heappop(heap)
        making = [n for v in index.intermediates[i] if v.id in runs[i] for n in v.reads]
        operator = index.problem.forward[i]
        reads = [*operator.inputs, *index.runs_again[i][0].recompute_reads]
        reads += [n for n in making if n not in operator.outputs]
        if not all([want(name) for name in reads]):
            return None
    return dict(sorted(runs.items()))


def closure_seconds(index: Windows, present: set[str], names: Iterable[str], stage: int) -> float:
    runs = closure(index, present, names, stage)
    if runs is None:
        return NEVER
    made = sum(v.time_s for i, wanted in runs.items() if wanted for v in index.intermediates[i] if v.id in wanted)
    return made + sum(recompute_cost(index.runs_again[i][0])[0] for i in runs)

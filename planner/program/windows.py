"""What may be kept, read and run again, and when: the index that the 0-1 program is built from.

``last(k)`` (``index.py``) is the last stage that can need tensor k. A forward operator is only worth
recomputing shortly before the last use of what it makes, so recomputation exists only in the
``window`` stages that end there:

    stage            0   1   2   3   4   5   6   7   8
    k in memory      |- as kept by forward -|- own decision -|
                                             start(k)    last(k)

``window=None`` allows every stage up to ``last(k)``.

A stage is *idle* if its backward operator reads nothing. Of the stages that are allowed, an idle one is offered only
if fewer gradients are in memory then than at the next stage that is offered. Otherwise what an idle stage recomputes
may nearly always as well be recomputed at that next stage. Not always: one stage recomputes in forward order, two
stages in any, and the other order can need less memory. So the full program and its relaxation, whose bounds are
about every plan, offer every stage (``offer_idle_stages``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from monet.planner.problem import Problem
from monet.planner.program.index import Index, index_of

NO_STAGES: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Windows(Index):
    """Which stages decide on what, beside the index of the problem.

    ``window``: how many stages a window has, None for all of them. ``after_peaks``: the stages that are allowed to
    every tensor besides its window; ``also_at``: how many besides are allowed to single tensors. ``start``: the first
    stage that decides on a tensor or intermediate; without an entry where the backward pass never needs it.
    ``stages_again[i]``: the stages in which operator i may run again.
    """

    window: int | None
    after_peaks: frozenset[int]
    also_at: int
    start: dict[str, int]
    stages_again: tuple[frozenset[int], ...]


def windows(
    problem: Problem,
    window: int | None,
    also_at: Mapping[str, frozenset[int]] | None = None,
    after_peaks: frozenset[int] = NO_STAGES,
    offer_idle_stages: bool = False,
) -> Windows:
    """Indexes ``problem`` for a window of so many stages, None for all of them.

    Before their windows, the tensors in ``also_at`` may be made again at the stages given there, and all tensors at
    the stages ``after_peaks`` (``peaks.py``). ``offer_idle_stages``: of the stages that are allowed, every one is
    offered, instead of those that are likely to be worth it. Stages in ``also_at`` are offered in any case.
    """
    also_at = also_at or {}
    index = index_of(problem)
    allowed = _allowed_stages(index.last, window, also_at, after_peaks)
    offered = frozenset(range(len(index.reads))) if offer_idle_stages else worth_offering(index)
    return Windows(
        **{field.name: getattr(index, field.name) for field in fields(index)},
        window=window,
        after_peaks=after_peaks,
        also_at=sum(map(len, also_at.values())),
        start={name: min(stages) for name, stages in allowed.items()},
        stages_again=tuple(
            _stages_again(index.remade(i), allowed, offered, also_at) if runs else NO_STAGES
            for i, runs in enumerate(index.runs_again)
        ),
    )


def _allowed_stages(
    last: Mapping[str, int],
    window: int | None,
    also_at: Mapping[str, frozenset[int]],
    after_peaks: frozenset[int],
) -> dict[str, frozenset[int]]:
    """The stages that decide on each tensor or intermediate: its window, and those that are given besides."""
    allowed = {}
    for name, end in last.items():
        begin = 0 if window is None else max(0, end - window + 1)
        besides = after_peaks | also_at.get(name, NO_STAGES)
        allowed[name] = frozenset(range(begin, end + 1)) | frozenset(stage for stage in besides if stage <= end)
    return allowed


def worth_offering(index: Index) -> frozenset[int]:
    """Stages that read something, and idle ones with fewer gradients than the next one that is offered."""
    worth: set[int] = set()
    next_bytes = 0
    for stage in range(len(index.reads) - 1, -1, -1):
        gradient_bytes = index.problem.backward[stage].live_before_bytes
        if index.reads[stage] or gradient_bytes < next_bytes:
            worth.add(stage)
            next_bytes = gradient_bytes
    return frozenset(worth)


def _stages_again(
    remade: list[str],
    allowed: Mapping[str, frozenset[int]],
    offered: frozenset[int],
    also_at: Mapping[str, frozenset[int]],
) -> frozenset[int]:
    """The stages at which an operator that makes ``remade`` may run again."""
    return frozenset(
        stage
        for name in remade
        for stage in allowed.get(name, NO_STAGES)
        if stage in offered or stage in also_at.get(name, NO_STAGES)
    )

"""What the buffers of a plan hold, and which of them are there when most is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from monet.plans.format import READ, Buffer
from monet.plans.plan import Plan

FIXED = "fixed"
FORWARD, INTERMEDIATE, RECOMPUTED, RETURNED = "forward", "intermediate", "recomputed", "returned"
BACKWARD, GRADIENT, TEMPORARY = "backward", "gradient", "temporary"
KINDS = (FORWARD, INTERMEDIATE, RECOMPUTED, RETURNED, BACKWARD, GRADIENT, TEMPORARY)
"""What a buffer is for: a value of the forward pass, a small one that is saved in place of a large one, one that was
made again or came back from the second memory, a value of the backward pass, what outlives the step, or memory that
one run needs for itself (workspaces and temporaries)."""


@dataclass(frozen=True, slots=True)
class Peak:
    """The first tick at which most bytes are in use: ``load_bytes`` by ``buffers``, the largest first, in ``step``."""

    tick: int
    step: int
    load_bytes: int
    buffers: tuple[Buffer, ...]


def kinds(plan: Plan) -> tuple[str, ...]:
    """One of ``KINDS`` for each of ``plan.buffers``, by position."""
    written = {buffer for step in plan.steps for buffer in step.writes.values()}
    return tuple(_kind(plan, buffer, buffer.id in written) for buffer in plan.buffers)


def _kind(plan: Plan, buffer: Buffer, is_written: bool) -> str:
    maker = plan.steps[buffer.first]
    if maker.kind == READ:
        return RETURNED
    if not is_written:
        return TEMPORARY
    if buffer.leaves:
        return GRADIENT
    if maker.kind in ("backward", "update"):
        return BACKWARD
    # Names of the graph have no point, and an intermediate is called after its operator: relu.bits.
    if "." in maker.node:
        return INTERMEDIATE
    return RECOMPUTED if maker.kind == "recompute" else FORWARD


def last_tick(plan: Plan) -> int:
    """The first tick after the step, and at least 1."""
    return max([1, *(buffer.end for buffer in plan.buffers), *(step.begin + 1 for step in plan.steps)])


def loads(plan: Plan) -> np.ndarray:
    """Bytes of the arena in use, kinds x ticks, in the order of ``KINDS``."""
    change = np.zeros((len(KINDS), last_tick(plan) + 1), dtype=np.int64)
    for buffer, kind in zip(plan.buffers, kinds(plan), strict=True):
        row = change[KINDS.index(kind)]
        row[buffer.begin] += buffer.bytes
        row[buffer.end] -= buffer.bytes
    return np.asarray(change.cumsum(axis=1)[:, :-1])


def loads_by_step(plan: Plan) -> tuple[tuple[int, ...], ...]:
    """For each step the bytes by kind, in the order of ``KINDS``, at the tick of it at which most are in use."""
    by_tick = loads(plan)
    total = by_tick.sum(axis=0)
    stops = [*(step.begin for step in plan.steps[1:]), by_tick.shape[1]]
    found = []
    for step, stop in zip(plan.steps, stops, strict=False):
        tick = step.begin + int(total[step.begin : max(stop, step.begin + 1)].argmax())
        found.append(tuple(int(count) for count in by_tick[:, tick]))
    return tuple(found)


def peak(plan: Plan) -> Peak | None:
    """Where most of the arena is in use; None where a plan has no buffers."""
    if not plan.buffers:
        return None
    total = loads(plan).sum(axis=0)
    tick = int(total.argmax())
    there = [buffer for buffer in plan.buffers if buffer.begin <= tick < buffer.end]
    step = max((k for k, step in enumerate(plan.steps) if step.begin <= tick), default=0)
    return Peak(tick, step, int(total[tick]), tuple(sorted(there, key=lambda buffer: (-buffer.bytes, buffer.id))))

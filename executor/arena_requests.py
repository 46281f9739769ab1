"""What a plan's steps ask of their arena, as ``monet.native`` takes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from monet.plans.plan import Plan


@dataclass(frozen=True, slots=True)
class ArenaRequests:
    """By step: (bytes, offset or None) of each request of its own thread; (bytes, offset) of the region of the other
    threads, (0, 0) where there is none; which requests outlive it, by number."""

    own: Sequence[Sequence[tuple[int, int | None]]]
    crew: Sequence[tuple[int, int]]
    leaves: Sequence[set[int]]

    @property
    def with_crew(self) -> bool:
        return any(size for size, _ in self.crew)


def arena_requests(plan: Plan) -> ArenaRequests:
    """Those of ``plan``, in the order of its steps."""
    offset = {buffer.id: buffer.offset for buffer in plan.buffers}
    leaving = {buffer.id for buffer in plan.buffers if buffer.leaves}
    requests = [
        [
            (size, None if buffer is None else offset[buffer])
            for size, buffer in zip(step.request_bytes, step.requests, strict=True)
        ]
        for step in plan.steps
    ]
    shared = [placed.pop() if step.workers else None for step, placed in zip(plan.steps, requests, strict=True)]
    crew = [(0, 0) if last is None or last[1] is None else (last[0], last[1]) for last in shared]
    leaves = [{n for n, buffer in enumerate(step.requests) if buffer in leaving} for step in plan.steps]
    return ArenaRequests(requests, crew, leaves)

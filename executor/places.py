"""Whether results lie where the plan has them, looked at until a whole step has run.

A kernel's requests are served by their number. Of two of one size only the kernel knows which is for which result, so a
plan whose requests are another kernel's, or in another order, would be served without a miss, and a result could lie in
memory that somebody else gets first.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import torch

from monet.errors import ExecutionError
from monet.native.allocator import Arena
from monet.plans.plan import Plan


@dataclass
class Places:
    """``offsets``: of the results, by step, that another request of the step could be for. ``unseen``: not empty
    until ``seen``, for the generated code to ask. ``arena``: what serves the requests, None where nothing does."""

    offsets: dict[int, dict[str, int]]
    arena: Arena | None = None
    unseen: list[bool] = field(default_factory=lambda: [True])

    @classmethod
    def of(cls, plan: Plan) -> Places:
        offset = {buffer.id: buffer.offset for buffer in plan.buffers}
        offsets: dict[int, dict[str, int]] = {}
        for number, step in enumerate(plan.steps):
            size = {id: size for id, size in zip(step.requests, step.request_bytes, strict=True) if id is not None}
            of_size = Counter(size.values())
            of_step = {name: offset[id] for name, id in step.writes.items() if id in size and of_size[size[id]] > 1}
            if of_step:
                offsets[number] = of_step
        return cls(offsets)

    def seen(self) -> None:
        """A whole step has run."""
        self.unseen.clear()

    def look(self, step: int, name: str, result: torch.Tensor) -> None:
        """Raises ``ExecutionError`` where the result lies elsewhere in the arena. Outside of it, it is a miss."""
        arena, at = self.arena, result.untyped_storage().data_ptr()
        if arena is None or not arena.contains(at):
            return
        above = arena.offset(at) - self.offsets[step][name]
        if above:
            raise ExecutionError(
                f"{name} lies {abs(above)} bytes {'above' if above > 0 else 'below'} its place in the arena: the "
                "plan's requests are not those of this operator (the file was changed, or the operator is another "
                "one by now); plan again"
            )

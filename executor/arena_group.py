"""Several plans of one model over one arena of the largest size: of their steps only one is under way at a time."""

from __future__ import annotations

import threading

from monet.executor.module import MonetModule
from monet.executor.runner import Runner
from monet.native.allocator import Arena
from monet.plans.plan import Plan


class ArenaGroup:
    """The planned modules of one model. Their arenas are one, as large as the largest of them."""

    def __init__(self) -> None:
        self._runners: list[Runner] = []
        self._largest: Arena | None = None
        self._claimed = threading.Lock()

    @property
    def is_pending(self) -> bool:
        """Whether a step of any of them is under way: a forward pass of another one would overwrite it."""
        return any(runner.is_pending for runner in self._runners)

    @property
    def peak_bytes(self) -> int:
        """The peak that the plans here promise together: all run over the largest arena, whatever else each holds."""
        return max((runner.plan.fixed_bytes for runner in self._runners), default=0) + self._arena_bytes

    @property
    def beside_bytes(self) -> int:
        """The most that a step here takes beside a step of the same model that is under way elsewhere: what both use
        is counted there."""
        fixed = (runner.plan.fixed_bytes - _shared_bytes(runner.plan) for runner in self._runners)
        return max(fixed, default=0) + self._arena_bytes

    @property
    def _arena_bytes(self) -> int:
        """Of what is mapped: perhaps for a plan that is not here any more."""
        planned = [runner.plan.arena_bytes for runner in self._runners]
        return max([*planned, 0 if self._largest is None else self._largest.bytes])

    def claim(self) -> bool:
        """Whether a forward pass may begin here. If so, no other one may until ``release``: between two threads that
        ask, a pass of the one would overwrite that of the other."""
        if not self._claimed.acquire(blocking=False):
            return False
        if self.is_pending:
            self._claimed.release()
            return False
        return True

    def release(self) -> None:
        """The forward pass is over: its backward pass is pending now, or will not come."""
        self._claimed.release()

    def add(self, module: MonetModule) -> None:
        """Let ``module`` use the common arena, which becomes larger if need be. While no step is under way."""
        runner = module._step.runner
        arena = runner.arena
        if arena is not None and arena.bytes > 0:
            if self._largest is None or arena.bytes > self._largest.bytes:
                self._replace(arena)
            else:
                arena.share(self._largest)
        self._runners.append(runner)

    def remove(self, module: MonetModule) -> None:
        """Forget ``module``; the common arena stays as large as it is. While no step is under way."""
        self._runners.remove(module._step.runner)

    def _replace(self, arena: Arena) -> None:
        if self._largest is not None:
            self._largest.unmap()
        arena.map()
        self._largest = arena
        for other in self._runners:
            if other.arena is not None and other.arena.bytes > 0:
                other.arena.share(arena)


def _shared_bytes(plan: Plan) -> int:
    """Of the fixed bytes those that all steps of a model have in common: buffers are not among these, as constants of
    one geometry are counted with them."""
    names = ("parameters", "reserve", *(["gradients"] if plan.model.get("accumulate") else []))
    return sum(plan.fixed.get(name, 0) for name in names)

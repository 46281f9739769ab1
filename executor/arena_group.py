"""Several plans of one model over one arena of the largest size: of their steps only one is under way at a time."""

from __future__ import annotations

from monet.executor.module import MonetModule
from monet.executor.runner import Runner
from monet.native.allocator import Arena


class ArenaGroup:
    """The planned modules of one model. Their arenas are one, as large as the largest of them."""

    def __init__(self) -> None:
        self._runners: list[Runner] = []
        self._largest: Arena | None = None

    @property
    def is_pending(self) -> bool:
        """Whether a step of any of them is under way: a forward pass of another one would overwrite it."""
        return any(runner.is_pending for runner in self._runners)

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
        """Forget ``module``; the common arena stays as large as it is."""
        self._runners.remove(module._step.runner)

    def _replace(self, arena: Arena) -> None:
        if self._largest is not None:
            self._largest.unmap()
        arena.map()
        self._largest = arena
        for other in self._runners:
            if other.arena is not None and other.arena.bytes > 0:
                other.arena.share(arena)

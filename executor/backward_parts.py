"""A backward pass that gives its gradients away in parts, while it is under way."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from monet.errors import ExecutionError
from monet.executor.codegen import Generated


class BackwardParts:
    """The backward pass of one step, which ``Runner.part`` runs part by part. Between parts, others may run whatever
    they like.

    ``code``: what runs. ``generation``: of the runner while this pass is under way.
    """

    def __init__(
        self, code: Generated, generation: int, values: Iterator[list[torch.Tensor]], settle: Callable[[], None]
    ) -> None:
        """``values``: the generated function, called. ``settle``: cleans up after a pass that is cut short."""
        self.code, self.generation = code, generation
        self._values: Iterator[list[torch.Tensor]] | None = values
        self._settle = settle
        self._next = 0

    @property
    def is_open(self) -> bool:
        """Whether parts are still to come."""
        return self._values is not None

    def run(self, number: int) -> list[torch.Tensor]:
        """The gradients of the next part, which must have this number, in a list that the caller empties."""
        if self._values is None or number != self._next:
            raise ExecutionError("internal: the parts of a backward pass are called out of order")
        gradients = next(self._values)
        self._next += 1
        if self._next == len(self.code.parts):
            next(self._values, None)  # to the end of the function
            self._values = None
        return gradients

    def close(self) -> None:
        """Give up the parts that are still to come, and what is kept for them. Nothing happens where there are none."""
        if self._values is not None:
            self._settle()
            self._values = None

    def __del__(self) -> None:
        self.close()

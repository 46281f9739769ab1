"""The best order so far and the bound on all orders, while one method after the other tries to bring them together."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from monet.planner.order.graph import OrderGraph, peak_bytes
from monet.planner.order.heuristics import Order
from monet.planner.progress import Progress


@dataclass(frozen=True, slots=True)
class Best:
    """``order``: of the working nodes. ``method``: what found it."""

    order: Order
    peak_bytes: int
    method: str


class Race:
    """``best`` is replaced as a whole, so an interrupt at any moment finds an order with its own peak."""

    def __init__(
        self,
        graph: OrderGraph,
        time_limit_s: float,
        progress: Progress | None = None,
        halt: Callable[[], bool] | None = None,
    ) -> None:
        """``halt`` ends the race before the time does."""
        self.graph = graph
        self.found: Best | None = None
        self.bound_bytes = 0
        self.deadline = time.monotonic() + time_limit_s
        self._limit_s = time_limit_s
        self._progress = progress
        self._halt = halt

    def part(self, graph: OrderGraph) -> Race:
        """A race on a part of the graph, which ends when this one does."""
        return Race(graph, self.left_s(), halt=self.stop)

    @property
    def best(self) -> Best:
        assert self.found is not None, "an order is offered before anything is asked of it"
        return self.found

    @property
    def open(self) -> bool:
        """There is time, and a smaller peak is not ruled out."""
        return not self.proven and not self.stop()

    @property
    def proven(self) -> bool:
        return self.found is not None and self.found.peak_bytes <= self.bound_bytes

    def left_s(self) -> float:
        return max(0.0, self.deadline - time.monotonic())

    def offer(self, order: Order, method: str) -> int:
        """Bytes of ``order``, which is kept if none so far needs as little. Raises ``InvalidGraph`` if it is none."""
        peak = peak_bytes(self.graph, order)
        if self.found is None or peak < self.found.peak_bytes:
            self.found = Best(order, peak, method)
            self.tell()
        return peak

    def prove(self, bound_bytes: int) -> None:
        """No order needs less than ``bound_bytes``."""
        if bound_bytes > self.bound_bytes:
            self.bound_bytes = bound_bytes
            self.tell()

    def stop(self) -> bool:
        """Whether the time is over. It is asked often, and so is where progress is told."""
        self.tell()
        return time.monotonic() >= self.deadline or (self._halt is not None and self._halt())

    def tell(self) -> None:
        if self._progress is not None and self.found is not None:
            peak, bound = self.found.peak_bytes, self.bound_bytes
            elapsed_s = time.monotonic() - self.deadline + self._limit_s
            self._progress(peak, bound, 1 - bound / peak if peak else 0.0, elapsed_s)

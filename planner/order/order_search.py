"""The best order so far and the bound on all orders, while one method after the other tries to bring them together."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from monet.planner.order.graph import OrderGraph, peak_bytes
from monet.planner.order.heuristics import Order
from monet.planner.progress import Progress


@dataclass(frozen=True, slots=True)
class BestOrder:
    """``order``: of the working nodes. ``method``: what made it."""

    order: Order
    peak_bytes: int
    method: str


class OrderSearch:
    """The best order is replaced as a whole, so an interrupt at any moment finds an order with its own peak.

    ``leader``: the best order so far, None before there is one. ``bound_bytes``: no order has a smaller peak.
    """

    def __init__(
        self,
        graph: OrderGraph,
        time_limit_s: float,
        progress: Progress | None = None,
        halt: Callable[[], bool] | None = None,
    ) -> None:
        """``halt()`` ends the search before ``time_limit_s`` does."""
        self.graph = graph
        self.leader: BestOrder | None = None
        self.bound_bytes = 0
        self.deadline = time.monotonic() + time_limit_s
        self._limit_s = time_limit_s
        self._progress = progress
        self._halt = halt

    def part(self, graph: OrderGraph) -> OrderSearch:
        """A search on a part of the graph, which ends when this one does."""
        return OrderSearch(graph, self.left_s(), halt=self.stop)

    @property
    def best(self) -> BestOrder:
        """``leader``, where there must be one."""
        assert self.leader is not None, "an order is offered before anything is asked of it"
        return self.leader

    @property
    def open(self) -> bool:
        """There is time left, and a smaller peak is possible as far as is known."""
        return not self.proven and not self.stop()

    @property
    def proven(self) -> bool:
        """No order has a smaller peak than the best so far."""
        return self.leader is not None and self.leader.peak_bytes <= self.bound_bytes

    def left_s(self) -> float:
        return max(0.0, self.deadline - time.monotonic())

    def offer(self, order: Order, method: str) -> int:
        """Takes ``order`` if its peak is the least so far; returns the peak.

        Raises ``InvalidGraph``: it is no order.
        """
        peak = peak_bytes(self.graph, order)
        if self.leader is None or peak < self.leader.peak_bytes:
            self.leader = BestOrder(order, peak, method)
            self.tell()
        return peak

    def prove(self, bound_bytes: int) -> None:
        """Takes note that no order needs less than ``bound_bytes``."""
        if bound_bytes > self.bound_bytes:
            self.bound_bytes = bound_bytes
            self.tell()

    def stop(self) -> bool:
        """True once the time is over or the caller halts. Also reports progress, because it is called often."""
        self.tell()
        return time.monotonic() >= self.deadline or (self._halt is not None and self._halt())

    def tell(self) -> None:
        """Reports progress: peak, bound, gap and seconds so far."""
        if self._progress is not None and self.leader is not None:
            peak, bound = self.leader.peak_bytes, self.bound_bytes
            elapsed_s = time.monotonic() - self.deadline + self._limit_s
            self._progress(peak, bound, 1 - bound / peak if peak else 0.0, elapsed_s)

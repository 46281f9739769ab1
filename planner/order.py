"""Order: which operator runs when, the peak of that, and a proof of how far it is from the least possible.

    bound  →  orders in linear time until one meets it  →  exact search around the peak of the best

The result carries its own certificate: ``peak_bytes`` is what the order needs, counted by ``memory_along``, and no
order needs less than ``bound_bytes``.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

from monet.errors import ConfigError
from monet.planner.forced_live import forced_live
from monet.planner.order_graph import OrderGraph, peak_bytes, with_views
from monet.planner.order_program import solve_order
from monet.planner.order_search import search
from monet.planner.order_stretch import improve
from monet.planner.orders import ORDERS, Order

log = logging.getLogger(__name__)

WHOLE_STATES = 20_000
PROGRAMS = {"model-ss": False, "model-ms": True}
METHODS = ("auto", *ORDERS, "exact", *PROGRAMS)


@dataclass(frozen=True, slots=True)
class Ordered:
    """``order``: all nodes, views included. ``method``: what found it. Bytes are of what the nodes make and their
    workspaces; what the graph is given comes on top of both."""

    order: tuple[int, ...]
    peak_bytes: int
    bound_bytes: int
    method: str

    @property
    def proven(self) -> bool:
        """No order has a smaller peak."""
        return self.peak_bytes == self.bound_bytes


def best_order(
    graph: OrderGraph, *, method: str = "auto", time_limit_s: float = 30.0, solver: str = "HIGHS"
) -> Ordered:
    """An order of ``graph`` of small peak, with a lower bound on the peak of every order.

    ``method``: one of ``METHODS``. ``auto`` takes the best of the linear-time orders and improves it around its
    peak; a name of ``ORDERS`` takes that one alone; ``exact`` searches the whole graph; ``model-ss`` and ``model-ms``
    solve MODeL's integer program (Steiner et al., ICML 2023), single- and multi-streaming.

    Raises:
        ConfigError: there is no such method.
        SolverError: the solver is missing or fails.
    """
    if method not in METHODS:
        raise ConfigError(f"there is no ordering method {method!r}; choose one of {', '.join(METHODS)}")
    deadline = time.monotonic() + time_limit_s
    bound = int(forced_live(graph).max(initial=0))
    if method in ORDERS:
        return _result(graph, ORDERS[method](graph), bound, method)
    found, name = _portfolio(graph, bound)
    if method in PROGRAMS:
        program = solve_order(graph, found, multi=PROGRAMS[method], deadline=deadline, solver=solver)
        return _result(graph, program.order, max(bound, program.bound_bytes), method)
    peak = peak_bytes(graph, found)
    if peak > bound and method == "auto":
        better = improve(graph, found, bound, deadline)
        if (least := peak_bytes(graph, better)) < peak:
            found, peak, name = better, least, f"{name} + exact stretches"
    if peak > bound:
        whole = search(graph, peak, WHOLE_STATES)
        bound = max(bound, whole.bound_bytes)
        if whole.order is not None:
            found, name = whole.order, "exact"
    return _result(graph, found, bound, name)


def _portfolio(graph: OrderGraph, bound: int) -> tuple[Order, str]:
    """The best of the linear-time orders; those that follow one that meets the bound are not tried."""
    best: Order = []
    least, name = -1, ""
    for method, make in ORDERS.items():
        order = make(graph)
        peak = peak_bytes(graph, order)
        log.debug("order: %s: %d bytes, bound %d", method, peak, bound)
        if least < 0 or peak < least:
            best, least, name = order, peak, method
        if least <= bound:
            break
    return best, name


def _result(graph: OrderGraph, order: Order, bound: int, method: str) -> Ordered:
    whole = with_views(graph, order)
    return Ordered(whole, peak_bytes(graph, whole), bound, method)

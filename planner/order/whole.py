"""One graph as it is, without taking it apart: bounds, orders in linear time, and exact search.

First the forced-live bound, orders until one meets it, and the min-cut bound; then exact search, of stretches around
the peak and of the whole.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from monet.planner.order.exact_search import search_orders
from monet.planner.order.forced_live import forced_live
from monet.planner.order.heuristics import ORDERS, Order
from monet.planner.order.min_cut import min_cut
from monet.planner.order.order_search import OrderSearch
from monet.planner.order.stretch import reorder_stretches

log = logging.getLogger(__name__)

FEW_STATES, MANY_STATES = 2_000, 50_000
"""Of an exact search, in sets that it may reach: few to see what is easy, many for the rest."""
MOST_WHOLE = 4_000
"""Nodes of a graph that is searched as a whole, and not by stretches only."""
FULL_STATES = 1_000
"""Nodes of a graph that is searched with all its states; a larger one with fewer, since each takes longer there."""
ASKED = 8
"""Times that ``approach`` asks for a peak between the bound and the best."""
CUTS_SHARE = 0.25
"""Of the time left: for the min-cut bound."""


def start(search: OrderSearch) -> None:
    """The forced-live bound and the linear-time orders, until one of them meets it or there is no time left; else the
    min-cut bound, too."""
    search.prove(int(forced_live(search.graph).max(initial=0)))
    orders = []
    for method, heuristic in ORDERS.items():
        orders.append(heuristic.make(search.graph))
        peak = search.offer(orders[-1], method)
        log.debug("order: %s: %d bytes, bound %d", method, peak, search.bound_bytes)
        if not search.open:
            return
    bound(search, orders)


def bound(search: OrderSearch, orders: Sequence[Order]) -> None:
    """The min-cut bound, in a share of the time left. ``orders``: all known ones."""
    until = time.monotonic() + CUTS_SHARE * search.left_s()
    search.prove(min_cut(search.graph, orders, lambda: search.stop() or time.monotonic() >= until))


def search_whole(search: OrderSearch, states: int) -> None:
    """Exact search of the whole graph and of stretches around the peak, of at most ``states`` sets each."""
    count = len(search.graph.working)
    whole, of_whole = count <= MOST_WHOLE, states * FULL_STATES // max(FULL_STATES, count)
    before = None
    if whole:
        exact(search, of_whole)
        before = search.leader
    if search.open:
        reorder_stretches(search, states)
    if search.open and search.leader is not before:
        exact(search, of_whole)  # again: the smaller the peak to stay below, the fewer sets there are
    if whole:
        approach(search, of_whole)


def approach(search: OrderSearch, states: int) -> None:
    """Asks again and again for a peak half-way between the bound and the best, or, where that was too hard, half-way
    between it and the best.

    The larger the peak that is enough, the more nodes are free under it: hard is to find, or to rule out, a peak that
    is only just possible.
    """
    too_hard = search.bound_bytes
    for _ in range(ASKED):
        if not search.open:
            break
        most = search.best.peak_bytes
        enough = (max(too_hard, search.bound_bytes) + most) // 2
        if enough <= too_hard:
            break
        result = search_orders(search.graph, most, states, search.stop, enough)
        if result.bound_bytes > enough:
            search.prove(result.bound_bytes)  # no order has as little as was asked for
        if result.order is not None:
            search.offer(result.order, "exact")
        elif not search.proven:
            too_hard = enough


def exact(search: OrderSearch, states: int) -> None:
    """Exact search of the whole graph."""
    whole = search_orders(search.graph, search.best.peak_bytes, states, search.stop, search.bound_bytes)
    search.prove(whole.bound_bytes)
    if whole.order is not None:
        search.offer(whole.order, "exact")

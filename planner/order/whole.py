"""One graph as it is, without taking it apart: bounds, orders in linear time, and exact search.

Forced-live bound, orders until one meets it, min-cut bound; then exact search, around the peak and of the whole.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from monet.planner.order.exact_search import search_orders
from monet.planner.order.forced_live import forced_live
from monet.planner.order.heuristics import ORDERS, Order
from monet.planner.order.min_cut import min_cut
from monet.planner.order.race import Race
from monet.planner.order.stretch import improve

log = logging.getLogger(__name__)

FEW_STATES, MANY_STATES = 2_000, 50_000
MOST_WHOLE, FULL_STATES = 4_000, 1_000
"""Nodes of a graph that is searched as a whole before any stretch of it is; of more than the latter, with fewer states,
since each takes longer."""
ASKED = 8
"""Times that the whole is asked for a peak between the bound and the best."""
CUTS_SHARE = 0.25
"""Of the time left, for the min-cut bound."""


def start(race: Race) -> None:
    """Bounds, and the linear-time orders; those that follow one that meets the forced-live bound are not made."""
    race.prove(int(forced_live(race.graph).max(initial=0)))
    orders = []
    for method, make in ORDERS.items():
        orders.append(make(race.graph))
        peak = race.offer(orders[-1], method)
        log.debug("order: %s: %d bytes, bound %d", method, peak, race.bound_bytes)
        if race.proven:
            return
    bound(race, orders)


def bound(race: Race, orders: Sequence[Order]) -> None:
    """The min-cut bound, in a share of the time left. ``orders``: all that are known."""
    until = time.monotonic() + CUTS_SHARE * race.left_s()
    race.prove(min_cut(race.graph, orders, lambda: race.stop() or time.monotonic() >= until))


def search_whole(race: Race, states: int) -> None:
    """Exact search of the whole graph and of stretches around the peak, of at most ``states`` sets each."""
    count = len(race.graph.working)
    whole, of_whole = count <= MOST_WHOLE, states * FULL_STATES // max(FULL_STATES, count)
    before = None
    if whole:
        exact(race, of_whole)
        before = race.found
    if race.open:
        improve(race, states)
    if race.open and race.found is not before:
        exact(race, of_whole)  # the smaller the peak to stay below, the fewer sets there are
    if whole:
        approach(race, of_whole)


def approach(race: Race, states: int) -> None:
    """Asks for a peak half-way between the bound and the best, again and again; where that is too hard, for one closer
    to the best.

    The larger the peak that is enough, the more fits under it and is taken at once: what is hard is to find, or to
    rule out, a peak that is only just possible.
    """
    too_hard = race.bound_bytes
    for _ in range(ASKED):
        if not race.open:
            break
        most = race.best.peak_bytes
        enough = (max(too_hard, race.bound_bytes) + most) // 2
        if enough <= too_hard:
            break
        found = search_orders(race.graph, most, states, race.stop, enough)
        if found.bound_bytes > enough:
            race.prove(found.bound_bytes)  # nothing has so little as was asked for
        if found.order is not None:
            race.offer(found.order, "exact")
        elif not race.proven:
            too_hard = enough


def exact(race: Race, states: int) -> None:
    """Exact search of the whole graph."""
    whole = search_orders(race.graph, race.best.peak_bytes, states, race.stop, race.bound_bytes)
    race.prove(whole.bound_bytes)
    if whole.order is not None:
        race.offer(whole.order, "exact")

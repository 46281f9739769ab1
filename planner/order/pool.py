"""Segments ordered independently, in this process or several at once.

The exact search is Python, so threads would take turns. Processes are started anew (``spawn``): a fork of a process
in which a solver's threads run may never end.
"""

from __future__ import annotations

import logging
import multiprocessing
import signal
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing.synchronize import Event

from monet.planner.order.graph import OrderGraph
from monet.planner.order.heuristics import Order
from monet.planner.order.order_search import OrderSearch
from monet.planner.order.whole import search_whole, start

log = logging.getLogger(__name__)

POLL_S = 0.1
"""Between two looks at the time while processes work."""


@dataclass(frozen=True, slots=True)
class Piece:
    """``nodes`` of an order, from place ``begin`` on, as a ``graph`` of their own (``stretch.stretch``), and the bytes
    that are in memory besides."""

    graph: OrderGraph
    base_bytes: int
    begin: int
    nodes: tuple[int, ...]

    def named(self, order: Order) -> list[int]:
        """An order of the graph, by the names that its nodes have in the whole."""
        return [self.nodes[k - 1] for k in order if k > 0]


@dataclass(frozen=True, slots=True)
class PieceOrder:
    """An order of a piece and its peak. ``bound_bytes``, plus the piece's ``base_bytes``: no order of the whole has a
    smaller peak, in this piece or elsewhere."""

    order: Order
    peak_bytes: int
    bound_bytes: int

    @property
    def proven(self) -> bool:
        return self.peak_bytes <= self.bound_bytes


def order_piece(search: OrderSearch, enough_bytes: int, states: int) -> PieceOrder:
    """Bounds, orders and exact search on ``search``'s graph. The whole gains nothing from less than
    ``enough_bytes``."""
    search.prove(enough_bytes)
    start(search)
    if search.open:
        search_whole(search, states)
    return PieceOrder(search.best.order, search.best.peak_bytes, search.bound_bytes)


def order_pieces(search: OrderSearch, pieces: Sequence[Piece], states: int, workers: int) -> list[PieceOrder | None]:
    """``order_piece`` for each; None for a piece that the time did not suffice for.

    ``workers``: processes. Every piece here is hard, so starting a process for it (0.5 s) pays.
    """
    enough = search.bound_bytes
    if min(workers, len(pieces)) < 2 or multiprocessing.current_process().daemon:  # such a one may have no children
        return [
            None if search.stop() else order_piece(search.part(p.graph), enough - p.base_bytes, states) for p in pieces
        ]
    context = multiprocessing.get_context("spawn")
    halt = context.Event()
    pool = ProcessPoolExecutor(min(workers, len(pieces)), context, _begin, (halt,))
    try:
        # Ctrl-C is for this process: a process started while it is blocked never sees it, and this one sees it later.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            futures = [
                pool.submit(_order_piece, p.graph, search.left_s(), enough - p.base_bytes, states) for p in pieces
            ]
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        waiting: set[Future[PieceOrder]] = set(futures)
        while waiting and not search.stop():
            waiting = wait(waiting, POLL_S, FIRST_COMPLETED).not_done
        return [_answer(future) for future in futures]
    finally:
        halt.set()
        pool.shutdown(wait=False, cancel_futures=True)


def _answer(future: Future[PieceOrder]) -> PieceOrder | None:
    if not future.done():
        return None
    try:
        return future.result()
    except BrokenProcessPool:
        log.warning("a process that ordered a segment died (out of memory?); the segment stays as it was")
        return None


_halt: list[Event] = []
"""In a worker process: the event that ends it."""


def _begin(halt: Event) -> None:
    _halt.append(halt)


def _order_piece(graph: OrderGraph, left_s: float, enough_bytes: int, states: int) -> PieceOrder:
    return order_piece(OrderSearch(graph, left_s, halt=_halt[0].is_set), enough_bytes, states)

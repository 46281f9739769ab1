"""Segments ordered independently, in this process or several at once.

The exact search is Python, so threads would take turns. Processes are started anew (``spawn``): a copy of one in
which a solver's threads run may never end.
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
from monet.planner.order.race import Race
from monet.planner.order.whole import search_whole, start

log = logging.getLogger(__name__)

POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class Piece:
    """``nodes``: of an order, from place ``begin`` on, as a graph of their own (``order_stretch.stretch``), with the
    bytes that are in memory besides."""

    graph: OrderGraph
    base_bytes: int
    begin: int
    nodes: tuple[int, ...]

    def named(self, order: Order) -> list[int]:
        """An order of the graph, by the names that its nodes have in the whole."""
        return [self.nodes[k - 1] for k in order if k > 0]


@dataclass(frozen=True, slots=True)
class Settled:
    """An order of a piece, its peak, and bytes that the whole needs there or elsewhere, less those besides."""

    order: Order
    peak_bytes: int
    bound_bytes: int

    @property
    def proven(self) -> bool:
        return self.peak_bytes <= self.bound_bytes


def settle(race: Race, enough_bytes: int, states: int) -> Settled:
    """Bounds, orders and exact search on ``race``'s graph. A peak of ``enough_bytes`` is no gain to the whole."""
    race.prove(enough_bytes)
    start(race)
    if race.open:
        search_whole(race, states)
    return Settled(race.best.order, race.best.peak_bytes, race.bound_bytes)


def settle_all(race: Race, pieces: Sequence[Piece], states: int, workers: int) -> list[Settled | None]:
    """``settle`` for each; None for those that the time did not suffice for.

    With several ``workers``, pieces that are hard (why else would they be here) are worth the half second that a
    process takes to start.
    """
    enough = race.bound_bytes
    if min(workers, len(pieces)) < 2:
        return [settle(race.part(p.graph), enough - p.base_bytes, states) if not race.stop() else None for p in pieces]
    context = multiprocessing.get_context("spawn")
    halt = context.Event()
    pool = ProcessPoolExecutor(min(workers, len(pieces)), context, _begin, (halt,))
    try:
        # Ctrl-C is for this process: those started now never see it, and it arrives here right after.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            futures = [pool.submit(_settle, p.graph, race.left_s(), enough - p.base_bytes, states) for p in pieces]
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        waiting: set[Future[Settled]] = set(futures)
        while waiting and not race.stop():
            waiting = wait(waiting, POLL_S, FIRST_COMPLETED).not_done
        return [_answer(future) for future in futures]
    finally:
        halt.set()
        pool.shutdown(wait=False, cancel_futures=True)


def _answer(future: Future[Settled]) -> Settled | None:
    if not future.done():
        return None
    try:
        return future.result()
    except BrokenProcessPool:
        log.warning("a process that ordered a segment died (out of memory?); the segment stays as it was")
        return None


_halt: list[Event] = []
"""Of this process, if it is a worker."""


def _begin(halt: Event) -> None:
    _halt.append(halt)


def _settle(graph: OrderGraph, left_s: float, enough_bytes: int, states: int) -> Settled:
    return settle(Race(graph, left_s, halt=_halt[0].is_set), enough_bytes, states)

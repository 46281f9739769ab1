"""The exact search for a layout of a given height: two searches in C++ that take turns.

They answer one question, "is there a layout of this height?", by a layout, by a proof that there is none, or by neither
when their nodes are used up. The valley search (``valley_search.py``) finds more; the canonical search
(``canonical_search.py``) finds others, and knows gaps and given offsets. Parts of a problem that are apart in time
(``Pieces.parts``) are searched one by one: what finds one of them seldom finds another.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from monet.planner.layout import canonical_search, valley_search
from monet.planner.layout.canonical_search import CanonicalSearch
from monet.planner.layout.load import Integers
from monet.planner.layout.pieces import Pieces
from monet.planner.layout.search_thread import FOUND, LIMIT, NONE
from monet.planner.layout.valley_search import ValleySearch

__all__ = ["FOUND", "LIMIT", "NONE", "ExactSearch", "available", "lower_layouts"]

FIRST_NODES = 250
"""Of one ranking in the first round, some milliseconds for hundreds of buffers; each round has twice as many."""
BOUND_TRIES = 8
"""Times as many nodes for the lowest height of use as for a higher one, since a layout there ends the search."""
CLOSE_BITS = 8
"""A round ends within 2⁻⁸ of a height that was too hard: more nodes for the lowest height are worth more then."""
VALLEYS = 15
"""Nodes of the valley search for each node of the canonical search with one ranking: about three quarters of the time,
since a node of either takes about as long, and the canonical search has five rankings' worth of them."""


def available() -> bool:
    """Whether the searches can run here: they need a C++ compiler once."""
    return canonical_search.function() is not None and valley_search.function() is not None


@dataclass(slots=True)
class ExactSearch:
    """One problem, asked for one height after another; units are those of ``pieces``.

    ``offsets``: a layout to begin with, later the lowest of each part. ``nodes_left``: of all questions together.
    ``deadline``: of ``time.monotonic()``, infinite where answers must not depend on time. ``tick`` is called now and
    then, by the thread that asks; an error that it raises stops the search.
    """

    pieces: Pieces
    offsets: Integers
    nodes_left: float
    deadline: float = float("inf")
    tick: Callable[[], None] = lambda: None
    _parts: list[_Part] = field(init=False)

    def __post_init__(self) -> None:
        self.offsets = self.offsets.copy()
        self._parts = [_Part(buffers, self) for buffers in self.pieces.parts()]

    @property
    def height(self) -> int:
        return int((self.offsets + self.pieces.size).max())

    def ask(self, height: int, nodes: int) -> int:
        """``FOUND``: ``offsets`` are a layout of this height; ``NONE``, or ``LIMIT`` after ``nodes`` nodes with each
        standard ranking, as many in short tries with random rankings, and as long with the valley search."""
        for part in self._parts:
            tops = self.offsets[part.buffers] + self.pieces.size[part.buffers]
            if tops.max() <= height:
                continue
            result, offsets = self._ask(part, height, nodes)
            if offsets is None:
                return result
            self.offsets[part.buffers] = offsets
        return FOUND

    def _ask(self, part: _Part, height: int, nodes: int) -> tuple[int, Integers | None]:
        for result, offsets, cost in part.tries(height, nodes):
            self.nodes_left -= cost
            if result != LIMIT:
                return result, offsets
            if self.done():
                break
        return LIMIT, None

    def seconds_left(self) -> float:
        return self.deadline - time.monotonic()

    def done(self) -> bool:
        return self.nodes_left <= 0 or self.seconds_left() <= 0


class _Part:
    """The searches of some buffers, made when they are needed."""

    def __init__(self, buffers: Integers, whole: ExactSearch) -> None:
        self.buffers, self._whole = buffers, whole
        self._canonical: CanonicalSearch | None = None
        self._valleys: ValleySearch | None = None

    def tries(self, height: int, nodes: int) -> Iterator[tuple[int, Integers | None, int]]:
        """(Answer, offsets, nodes) of each try."""
        if self._canonical is None:
            pieces, whole = self._whole.pieces.taken(self.buffers), self._whole
            self._canonical = CanonicalSearch(pieces, whole.seconds_left, whole.tick)
            self._valleys = ValleySearch(pieces, whole.seconds_left, whole.tick) if pieces.whole else None
        if self._valleys is not None:
            yield from self._valleys.tries(height, VALLEYS * nodes)
        yield from self._canonical.tries(height, nodes)


def lower_layouts(search: ExactSearch, bound: int, enough: int) -> Iterator[tuple[int, Integers | None]]:
    """Yields (bound, offsets): a bound that may be better than ``bound``, and a layout that is lower than that of
    ``search`` and all before it, or None. Ends at the bound, at ``enough`` or less, or when nodes or time are used up.

    Works in rounds of twice the nodes each. A round first asks for the lowest height of use, with most of its nodes,
    since a layout there is often found at once or not at all; then for heights half-way between what was too hard and
    the best, until that is close.
    """
    low, nodes, height = bound, FIRST_NODES, search.height
    while height > max(low, enough) and not search.done():
        hard = max(low, min(enough, height - 1))
        tries = BOUND_TRIES
        while height > max(low, enough) and not search.done():
            target = hard if tries > 1 else (hard + height) // 2
            result = search.ask(target, nodes * tries)
            tries = 1
            if result == FOUND:
                height = search.height
                yield low, search.offsets.copy()
            elif result == NONE:
                low = hard = target + 1
                yield low, None
            else:
                hard = target
            if height - hard <= max(1, height >> CLOSE_BITS):
                break
        nodes *= 2

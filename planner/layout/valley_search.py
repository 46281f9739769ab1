"""The valley search, in C++ (``valley_search.cpp``): asks of one stretch of time after another what lies next on it.

Restarts make it robust: a valley, an order of buffers and a ranking that lead nowhere in millions of nodes on one
problem find a layout of another in hundreds. The lengths of the tries are those of M. Luby, A. Sinclair and
D. Zuckerman, "Optimal speedup of Las Vegas algorithms", 1993: mostly short ones. What a try has learned about sections
is forgotten with it: kept, it was of use on some problems and did harm on as many.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from monet.planner.layout.load import Integers
from monet.planner.layout.pieces import Pieces
from monet.planner.layout.rankings import Rankings
from monet.planner.layout.search_thread import FOUND, INTEGERS, LONGEST_S, UNITS, answer, load

SHORTEST_NODES = 2000
"""Of one try, some 20 ms for hundreds of buffers; the others are this times a power of two."""
LOWEST, FEWEST, TIGHTEST = 0, 1, 2
"""Which valley comes first, as ``Valley`` of the C++ file."""
BY_RANK, WALLS, LEVEL = 0, 1, 2
"""Which buffer comes first, as ``Order`` of the C++ file."""
STYLES = tuple(itertools.product((BY_RANK, WALLS, LEVEL), (LOWEST, FEWEST, TIGHTEST)))
"""Taken in turn. Their number is odd, so that each has its share of the long tries."""


@cache
def function() -> Any | None:
    """The C function, or None on a machine that cannot build it."""
    arguments = (
        ctypes.c_int, ctypes.c_int, INTEGERS, UNITS, UNITS, INTEGERS, ctypes.c_int64, ctypes.c_int, ctypes.c_int,
        ctypes.c_int64, ctypes.c_double, INTEGERS, UNITS, UNITS,
    )  # fmt: skip
    return load("valley_search.cpp", "monet_layout_valleys", arguments)


def luby() -> Iterator[int]:
    """1 1 2 1 1 2 4 1 1 2 1 1 2 4 8 …: all so far, again, and twice the largest so far."""
    for term in itertools.count(1):
        at = term
        while at & (at + 1):  # not 2ᵏ − 1, where a new power of two stands: in a repetition, which is taken off
            at -= (1 << (at.bit_length() - 1)) - 1
        yield (at + 1) >> 1


@dataclass(slots=True)
class ValleySearch:
    """One problem of plain lifetimes, asked for one height after another; units are those of ``pieces``.

    ``seconds_left`` is infinite where answers must not depend on time; ``tick`` as in ``search_thread.answer``.
    """

    pieces: Pieces
    seconds_left: Callable[[], float] = lambda: float("inf")
    tick: Callable[[], None] = lambda: None
    _settings: Iterator[tuple[int, tuple[int, int], Integers]] = field(init=False)
    _smallest: Integers = field(init=False)

    def __post_init__(self) -> None:
        assert self.pieces.whole
        self._settings = zip(luby(), itertools.cycle(STYLES), _rankings(self.pieces), strict=False)
        self._smallest = _smallest_neighbours(self.pieces)

    def tries(self, height: int, nodes: int) -> Iterator[tuple[int, Integers | None, int]]:
        """Yields (``FOUND``, ``NONE`` or ``LIMIT``; offsets where found; nodes) of one try after another, until they
        have had ``nodes`` nodes together. The next call goes on where this one ended."""
        while nodes > 0:
            length, (order, valley), ranking = next(self._settings)
            result, offsets, used = self._ask(ranking, height, length * SHORTEST_NODES, valley, order)
            nodes -= used
            yield result, offsets, used

    def _ask(
        self, ranking: Integers, height: int, nodes: int, valley: int, order: int
    ) -> tuple[int, Integers | None, int]:
        call = function()
        assert call is not None, "exact_search.available() says so before"
        _, ranges, sections = self.pieces.sections()
        size = np.ascontiguousarray(self.pieces.size, np.int64)
        ranks = np.ascontiguousarray(ranking, np.intc)
        offsets, left = np.zeros(len(size), np.int64), ctypes.c_int64(0)
        seconds = min(self.seconds_left(), LONGEST_S)

        def search(stop: ctypes.c_int) -> int:
            return int(
                call(
                    len(size), sections, ranges.ctypes.data_as(INTEGERS), size.ctypes.data_as(UNITS),
                    self._smallest.ctypes.data_as(UNITS), ranks.ctypes.data_as(INTEGERS), height, valley, order,
                    nodes, seconds, ctypes.byref(stop), offsets.ctypes.data_as(UNITS), ctypes.byref(left),
                )
            )  # fmt: skip

        result = answer(search, self.tick)
        return result, offsets if result == FOUND else None, nodes - left.value


def _rankings(pieces: Pieces) -> Iterator[Integers]:
    rankings = Rankings(pieces)
    yield from rankings.standard
    while True:
        yield rankings.random()


def _smallest_neighbours(pieces: Pieces) -> Integers:
    """For each buffer, the least size of those that share a tick with it."""
    smallest = np.full(len(pieces.size), np.iinfo(np.int64).max)
    for buffer in range(len(smallest)):
        shares = (pieces.begin < pieces.end[buffer]) & (pieces.end > pieces.begin[buffer])
        shares[buffer] = False
        smallest[buffer] = pieces.size[shares].min(initial=smallest[buffer])
    return smallest

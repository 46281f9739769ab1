"""The canonical search, in C++ (``canonical_search.cpp``): takes buffers in the order of their offsets.

A ranking of the buffers decides what it tries first, and the best ranking differs from problem to problem, so it is
asked again with other rankings and more nodes. It knows gaps in lifetimes and given offsets.
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

SHORT_NODES = 3000
"""Of one try with a random ranking: on some problems many short tries find what long ones do not."""


@cache
def function() -> Any | None:
    """The C function, or None on a machine that cannot build it."""
    arguments = (
        ctypes.c_int, ctypes.c_int, INTEGERS, INTEGERS, UNITS, UNITS, INTEGERS, ctypes.c_int64, ctypes.c_int64,
        ctypes.c_double, INTEGERS, UNITS,
    )  # fmt: skip
    return load("canonical_search.cpp", "monet_layout_search", arguments)


@dataclass(slots=True)
class CanonicalSearch:
    """One problem, asked for one height after another; units are those of ``pieces``.

    ``seconds_left`` is infinite where answers must not depend on time; ``tick`` as in ``search_thread.answer``.
    """

    pieces: Pieces
    seconds_left: Callable[[], float] = lambda: float("inf")
    tick: Callable[[], None] = lambda: None
    rankings: Rankings = field(init=False)

    def __post_init__(self) -> None:
        self.rankings = Rankings(self.pieces)

    def tries(self, height: int, nodes: int) -> Iterator[tuple[int, Integers | None, int]]:
        """Yields (``FOUND``, ``NONE`` or ``LIMIT``; offsets where found; nodes at most) of one try after another:
        ``nodes`` nodes with each standard ranking, and as many in short tries with random rankings."""
        for order in itertools.chain(self.rankings.standard, itertools.repeat(None, nodes // SHORT_NODES)):
            each = min(nodes, SHORT_NODES) if order is None else nodes
            ranking = self.rankings.random() if order is None else order
            yield *self._ask(ranking, height, each), each

    def _ask(self, order: Integers, height: int, nodes: int) -> tuple[int, Integers | None]:
        call = function()
        assert call is not None, "exact_search.available() says so before"
        first, ranges, sections = self.pieces.sections()
        size = np.ascontiguousarray(self.pieces.size, np.int64)
        fixed_at = np.ascontiguousarray(self.pieces.fixed_at, np.int64)
        ranks = np.ascontiguousarray(order, np.intc)
        offsets = np.zeros(len(size), np.int64)
        seconds = min(self.seconds_left(), LONGEST_S)

        def search(stop: ctypes.c_int) -> int:
            return int(
                call(
                    len(size), sections, first.ctypes.data_as(INTEGERS), ranges.ctypes.data_as(INTEGERS),
                    size.ctypes.data_as(UNITS), fixed_at.ctypes.data_as(UNITS), ranks.ctypes.data_as(INTEGERS),
                    height, nodes, seconds, ctypes.byref(stop), offsets.ctypes.data_as(UNITS),
                )
            )  # fmt: skip

        result = answer(search, self.tick)
        return result, offsets if result == FOUND else None

"""The exact search for a layout of a given height, in C++ (``exact_search.cpp``).

It asks one question, "is there a layout of this height?", and is answered with one, with a proof that there is
none, or with neither within its nodes. Ranks decide what is tried first, and the best ranking differs from
problem to problem, so it is asked again with other ranks and twice the nodes.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from monet.native.compiling import shared_library
from monet.planner.layout.load import Integers
from monet.planner.layout.pieces import Pieces

NONE, FOUND, LIMIT = 0, 1, 2
FIRST_NODES = 1000
BOUND_TRIES = 8
SHORT_NODES = 3000
NOISES = (0.0, 0.2, 0.5, 1.0)
CLOSE_BITS = 8
LONGEST_S = 1e6
POLL_S = 0.05
_INT = ctypes.POINTER(ctypes.c_int)
_UNITS = ctypes.POINTER(ctypes.c_int64)


@cache
def _function() -> Any | None:
    """The C function, or None on a machine that cannot build it."""
    path = shared_library(Path(__file__).parent / "exact_search.cpp")
    if path is None:
        return None
    function = ctypes.CDLL(str(path)).monet_layout_search
    function.argtypes = [
        ctypes.c_int, ctypes.c_int, _INT, _INT, _UNITS, _UNITS, _INT, ctypes.c_int64, ctypes.c_int64, ctypes.c_double,
        _INT, _UNITS,
    ]  # fmt: skip
    function.restype = ctypes.c_int
    return function


def available() -> bool:
    """Whether the search can run here: it needs a C++ compiler once."""
    return _function() is not None


class Rankings:
    """Orders of all buffers: what to try first comes first.

    By the time that they are alive, their area, and the most that is alive while they are, in four sequences; on one of
    minimalloc's hard instances one of these finds at once what the others do not find in millions of nodes. And by
    sequences at random, with noise: others are found by many short tries, and not by long ones.
    """

    def __init__(self, pieces: Pieces) -> None:
        alive = pieces.per_buffer(np.add, pieces.end - pieces.begin).astype(np.float64)
        self._keys = (alive, pieces.size * alive, pieces.crowd().astype(np.float64), pieces.size.astype(np.float64))
        self._rng = np.random.default_rng(0)
        alive_, area, crowd = 0, 1, 2
        sequences = ((alive_, area, crowd), (crowd, area, alive_), (crowd, alive_, area), (area, alive_, crowd))
        self.standard = [self._by(sequence, 0.0) for sequence in sequences]

    def random(self) -> Integers:
        """Another one at every call; the same ones in every run."""
        sequence = tuple(self._rng.permutation(len(self._keys))[:3].tolist())
        return self._by(sequence, float(self._rng.choice(NOISES)))

    def _by(self, sequence: Sequence[int], noise: float) -> Integers:
        """Largest first, by the keys of ``sequence``, the first of them counting most."""
        keys = [-self._keys[k] for k in reversed(sequence)]
        if noise:
            keys = [key * np.exp(noise * self._rng.standard_normal(len(key))) for key in keys]
        return np.lexsort(tuple(keys))


@dataclass(slots=True)
class CanonicalSearch:
    """One problem, asked for one height after another; units are those of ``pieces``.

    ``nodes_left``: together; ``deadline``: of ``time.monotonic()``, infinite where answers must not depend on time.
    ``tick`` is called every ``POLL_S`` seconds or more often, by the thread that asks; what it raises stops the search.
    """

    pieces: Pieces
    nodes_left: float
    deadline: float = float("inf")
    tick: Callable[[], None] = lambda: None
    rankings: Rankings = field(init=False)

    def __post_init__(self) -> None:
        self.rankings = Rankings(self.pieces)

    def ask(self, height: int, nodes: int) -> tuple[int, Integers | None]:
        """``FOUND`` with offsets, ``NONE``, or ``LIMIT`` after ``nodes`` nodes with each ranking, and as many again in
        short tries with rankings at random."""
        for order in self._orders(nodes):
            if self.done():
                break
            each = min(nodes, SHORT_NODES) if order is None else nodes
            self.nodes_left -= each
            ranking = self.rankings.random() if order is None else order
            result, offsets = self._ask(ranking, height, each, min(self.seconds_left(), LONGEST_S))
            if result != LIMIT:
                return result, offsets
        return LIMIT, None

    def _orders(self, nodes: int) -> Iterator[Integers | None]:
        """None stands for one at random."""
        yield from self.rankings.standard
        yield from itertools.repeat(None, nodes // SHORT_NODES)

    def seconds_left(self) -> float:
        return self.deadline - time.monotonic()

    def done(self) -> bool:
        return self.nodes_left <= 0 or self.seconds_left() <= 0

    def _ask(self, order: Integers, height: int, nodes: int, seconds: float) -> tuple[int, Integers | None]:
        """One call, in a thread, so that Ctrl-C stops it: the handler runs in this one."""
        function = _function()
        assert function is not None, "available() says so before"
        first, ranges, sections = self.pieces.sections()
        size = np.ascontiguousarray(self.pieces.size, np.int64)
        pinned = np.ascontiguousarray(self.pieces.pinned, np.int64)
        ranks = np.ascontiguousarray(order, np.intc)
        offsets = np.zeros(len(size), np.int64)
        stop, done = ctypes.c_int(0), threading.Event()
        result: list[int] = []

        def work() -> None:
            try:
                result.append(
                    function(
                        len(size), sections, first.ctypes.data_as(_INT), ranges.ctypes.data_as(_INT),
                        size.ctypes.data_as(_UNITS), pinned.ctypes.data_as(_UNITS), ranks.ctypes.data_as(_INT), height,
                        nodes, seconds, ctypes.byref(stop), offsets.ctypes.data_as(_UNITS),
                    )
                )  # fmt: skip
            finally:
                done.set()

        thread = threading.Thread(target=work, name="layout search", daemon=True)
        try:
            self.tick()
            thread.start()
            # Not Thread.join: interrupted, that of Python 3.11 takes a running thread for one that has ended.
            while not done.wait(POLL_S):
                self.tick()
        except BaseException:
            stop.value = 1
            if thread.ident is not None:
                done.wait()
            raise
        return result[0], offsets if result[0] == FOUND else None


def exact(search: CanonicalSearch, bound: int, height: int, enough: int) -> Iterator[tuple[int, Integers | None]]:
    """Yields (bound, offsets): a bound that may be better than ``bound``, and a layout that is lower than ``height``
    and all before it, or None. Ends at the bound, at ``enough`` or less, or when nodes or time are used up.

    In rounds of twice the nodes each: first the lowest height that is of use, with most of them, since a layout there
    is often found at once or not at all; then heights halfway to the best, as long as that is found.
    """
    low, nodes = bound, FIRST_NODES
    while height > max(low, enough) and not search.done():
        hard = max(low, min(enough, height - 1))
        tries = BOUND_TRIES
        while height > max(low, enough) and not search.done():
            target = hard if tries > 1 else (hard + height) // 2
            result, offsets = search.ask(target, nodes * tries)
            tries = 1
            if result == FOUND:
                assert offsets is not None
                height = int((offsets + search.pieces.size).max())
                yield low, offsets
            elif result == NONE:
                low = hard = target + 1
                yield low, None
            else:
                hard = target
            if height - hard <= max(1, height >> CLOSE_BITS):
                break
        nodes *= 2

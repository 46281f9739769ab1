"""The exact search for a layout of a given height, in C++ (``exact_search.cpp``).

It answers one question, "is there a layout of this height?", by a layout, by a proof that there is none, or by neither
when its nodes are used up. A ranking of the buffers decides what it tries first, and the best ranking differs from
problem to problem, so it is asked again with other rankings and twice the nodes.
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
"""Answers, as ``Result`` of the C++ file: there is no layout; here is one; nodes or time were used up before."""
FIRST_NODES = 1000
"""Of one ranking in the first round, a few milliseconds for hundreds of buffers; each round has twice as many."""
BOUND_TRIES = 8
"""Times as many nodes for the lowest height of use as for a higher one, since a layout there ends the search."""
SHORT_NODES = 3000
"""Of one try with a random ranking: on some problems many short tries find what long ones do not."""
NOISES = (0.0, 0.2, 0.5, 1.0)
"""Of a random ranking, one by chance: the standard deviation of the logarithm of a random factor on each key."""
CLOSE_BITS = 8
"""A round ends within 2⁻⁸ of a height that was too hard: more nodes for the lowest height are worth more then."""
LONGEST_S = 1e6
"""Eleven days, in place of no limit: the C++ clock cannot count to infinity."""
POLL_S = 0.05
"""Between two looks at Ctrl-C and progress while the C++ code runs."""
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

    The keys are lifetime, area, size, and the largest load while a buffer is alive. ``standard``: by four sequences of
    three keys; on one of minimalloc's hard instances one sequence finds at once what the others do not find in millions
    of nodes. ``random``: by sequences at random, with noise; on other instances many short tries find what long ones
    do not.
    """

    def __init__(self, pieces: Pieces) -> None:
        alive = pieces.per_buffer(np.add, pieces.end - pieces.begin).astype(np.float64)
        self._keys = (alive, pieces.size * alive, pieces.crowd().astype(np.float64), pieces.size.astype(np.float64))
        self._rng = np.random.default_rng(0)
        alive_, area, crowd = 0, 1, 2
        sequences = ((alive_, area, crowd), (crowd, area, alive_), (crowd, alive_, area), (area, alive_, crowd))
        self.standard = [self._by(sequence, 0.0) for sequence in sequences]

    def random(self) -> Integers:
        """Another ranking at every call; the same sequence of them in every run."""
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

    ``nodes_left``: of all questions together. ``deadline``: of ``time.monotonic()``, infinite where answers must not
    depend on time. ``tick`` is called at least every ``POLL_S`` seconds, by the thread that asks; an error that it
    raises stops the search.
    """

    pieces: Pieces
    nodes_left: float
    deadline: float = float("inf")
    tick: Callable[[], None] = lambda: None
    rankings: Rankings = field(init=False)

    def __post_init__(self) -> None:
        self.rankings = Rankings(self.pieces)

    def ask(self, height: int, nodes: int) -> tuple[int, Integers | None]:
        """``FOUND`` with offsets, ``NONE``, or ``LIMIT``, after ``nodes`` nodes with each standard ranking and as many
        in short tries with random rankings."""
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
        """Rankings to try; None stands for a random one."""
        yield from self.rankings.standard
        yield from itertools.repeat(None, nodes // SHORT_NODES)

    def seconds_left(self) -> float:
        return self.deadline - time.monotonic()

    def done(self) -> bool:
        return self.nodes_left <= 0 or self.seconds_left() <= 0

    def _ask(self, order: Integers, height: int, nodes: int, seconds: float) -> tuple[int, Integers | None]:
        """One call of the C++ function, in a thread, so that Ctrl-C can stop it: its handler runs in this thread."""
        function = _function()
        assert function is not None, "available() says so before"
        first, ranges, sections = self.pieces.sections()
        size = np.ascontiguousarray(self.pieces.size, np.int64)
        fixed_at = np.ascontiguousarray(self.pieces.fixed_at, np.int64)
        ranks = np.ascontiguousarray(order, np.intc)
        offsets = np.zeros(len(size), np.int64)
        stop, done = ctypes.c_int(0), threading.Event()
        result: list[int] = []

        def work() -> None:
            try:
                result.append(
                    function(
                        len(size), sections, first.ctypes.data_as(_INT), ranges.ctypes.data_as(_INT),
                        size.ctypes.data_as(_UNITS), fixed_at.ctypes.data_as(_UNITS), ranks.ctypes.data_as(_INT),
                        height, nodes, seconds, ctypes.byref(stop), offsets.ctypes.data_as(_UNITS),
                    )
                )  # fmt: skip
            finally:
                done.set()

        thread = threading.Thread(target=work, name="layout search", daemon=True)
        try:
            self.tick()
            thread.start()
            # Not Thread.join: once interrupted, that of Python 3.11 takes a running thread for one that has ended.
            while not done.wait(POLL_S):
                self.tick()
        except BaseException:
            stop.value = 1
            if thread.ident is not None:
                done.wait()
            raise
        return result[0], offsets if result[0] == FOUND else None


def lower_layouts(
    search: CanonicalSearch, bound: int, height: int, enough: int
) -> Iterator[tuple[int, Integers | None]]:
    """Yields (bound, offsets): a bound that may be better than ``bound``, and a layout that is lower than ``height``
    and all before it, or None. Ends at the bound, at ``enough`` or less, or when nodes or time are used up.

    Works in rounds of twice the nodes each. A round first asks for the lowest height of use, with most of its nodes,
    since a layout there is often found at once or not at all; then for heights half-way between what was too hard and
    the best, until that is close.
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

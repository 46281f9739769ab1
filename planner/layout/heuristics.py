"""Two ways to place buffers one after the other: into gaps in a given order, and along the skyline.

Both take half-open lifetimes and sizes in any integer unit, already rounded up to the alignment, and return
offsets in the same unit. Two buffers that share a tick never share bytes. Only ``place_in_gaps`` knows gaps in
lifetimes and given offsets. Neither looks ahead; ``methods.py`` tries several orders and ``arena.py`` keeps the best.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from monet.planner.layout.load import Integers
from monet.planner.layout.pieces import Pieces
from monet.planner.layout.search_thread import LONGEST_S, UNITS, load
from monet.planner.layout.skyline import Skyline


def place_in_gaps(
    order: Sequence[int] | Integers,
    pieces: Pieces,
    *,
    smallest_gap: bool,
    limit: int | None = None,
    deadline: float = float("inf"),
) -> Integers | None:
    """Place buffers in ``order``, each into a gap of bytes between placed buffers that share a tick with it.

    Buffers of given offsets come first. ``smallest_gap`` takes the gap that fits tightest, of equals the lowest (best
    fit), otherwise the lowest gap that is large enough (first fit); where no gap is, the place above all of them.
    Returns None as soon as a buffer ends above ``limit``, or ``time.monotonic()`` passes the deadline. O(n²)
    comparisons, in C++ (``gaps.cpp``) or, on a machine that cannot build it, in numpy.
    """
    fixed = pieces.fixed_at >= 0
    turns = np.asarray(order, np.int64)
    turns = np.concatenate((np.flatnonzero(fixed), turns[~fixed[turns]]))
    call = build_gaps()
    if call is None:
        return _placed(turns, pieces, smallest_gap, limit, deadline)
    given = turns, pieces.first, pieces.begin, pieces.end, pieces.size, pieces.fixed_at
    arrays = [np.ascontiguousarray(array, np.int64) for array in given]
    offsets, left_s = np.zeros(len(pieces.size), np.int64), min(deadline - time.monotonic(), LONGEST_S)
    done = call(
        len(turns), *(array.ctypes.data_as(UNITS) for array in arrays), smallest_gap,
        np.iinfo(np.int64).max if limit is None else limit, left_s, offsets.ctypes.data_as(UNITS),
    )  # fmt: skip
    return offsets if done else None


@cache
def build_gaps() -> Any | None:
    """The C function of ``gaps.cpp``, or None on a machine that cannot build it."""
    arguments = (
        ctypes.c_int, *(UNITS,) * 6, ctypes.c_int, ctypes.c_int64, ctypes.c_double, UNITS,
    )  # fmt: skip
    return load("gaps.cpp", "monet_layout_gaps", arguments)


def _placed(turns: Integers, pieces: Pieces, smallest_gap: bool, limit: int | None, deadline: float) -> Integers | None:
    """The same in numpy. ``turns``: those of given offsets first."""
    first, begin, end, size = pieces.first, pieces.begin, pieces.end, pieces.size
    offsets = np.zeros(len(size), np.int64)
    # The placed pieces in the order of their offsets; rows: begin, end, offset, top.
    placed = np.empty((4, len(begin)), np.int64)
    done = 0
    for buffer in turns:
        need, own = size[buffer], slice(first[buffer], first[buffer + 1])
        if pieces.fixed_at[buffer] >= 0:
            offset = int(pieces.fixed_at[buffer])
        else:
            begins, ends, lows, tops = placed[:, :done]
            shares = np.zeros(done, np.bool_)
            for opens, closes in zip(begin[own], end[own], strict=True):
                shares |= (begins < closes) & (ends > opens)
            offset = _gap(lows[shares], tops[shares], int(need), smallest_gap)
        if (limit is not None and offset + need > limit) or time.monotonic() > deadline:
            return None
        offsets[buffer] = offset
        count = own.stop - own.start
        at = int(placed[2, :done].searchsorted(offset))
        placed[:, at + count : done + count] = placed[:, at:done]
        placed[0, at : at + count], placed[1, at : at + count] = begin[own], end[own]
        placed[2, at : at + count], placed[3, at : at + count] = offset, offset + need
        done += count
    return offsets


def _gap(lows: Integers, tops: Integers, need: int, smallest: bool) -> int:
    """The offset of the first or the smallest gap of ``need`` units between [low, top)s in the order of ``lows``."""
    if not len(lows):
        return 0
    top = np.maximum.accumulate(tops)
    gaps = lows.copy()
    gaps[1:] -= top[:-1]
    enough = gaps >= need
    gap = int(enough.argmax())
    if not enough[gap]:
        return int(top[-1])
    if smallest:
        gap = int(np.where(enough, gaps, np.iinfo(np.int64).max).argmin())
    return int(top[gap - 1]) if gap else 0


def skyline(
    priority: Sequence[int] | Integers, begin: Integers, end: Integers, size: Integers, deadline: float = float("inf")
) -> Integers | None:
    """Best fit of Sekiyama, Imamichi, Imai and Raymond (2018), "Profile-guided memory optimization
    for deep neural networks", arXiv:1804.10001: theirs takes the longest lifetime first.

    ::

        offset
          |      +----+              Take the lowest segment of the skyline (the earliest of equals) and put
          |  +---+    +-----+        there the buffer of highest priority whose whole lifetime lies inside.
          |  |   ^lift      |        With none, lift the segment to its lower neighbour's height.
          +--+--------------+--> ticks

    ``priority``: all buffers, the most urgent first. Returns None when ``time.monotonic()`` passes the deadline.
    """
    offsets = np.zeros(len(size), np.int64)
    waiting = _Waiting(priority, begin, end)
    line = Skyline(int(begin.min()), int(end.max()))
    while waiting.count:
        if time.monotonic() > deadline:
            return None
        start, stop, height = line.take_lowest()
        buffer = waiting.take(start, stop)
        if buffer is None:
            line.lift(start)
        else:
            offsets[buffer] = height
            line.build(start, int(begin[buffer]), int(end[buffer]), height + int(size[buffer]))
    return offsets


class _Waiting:
    """Buffers that are not placed yet, by their begins: those inside a segment lie together, few for a short segment.

    ``count``: how many there are.
    """

    def __init__(self, priority: Sequence[int] | Integers, begin: Integers, end: Integers) -> None:
        self.count = self._placed = len(begin)
        self._buffers = np.argsort(begin, kind="stable")
        self._begins, self._ends = begin[self._buffers], end[self._buffers]
        rank = np.empty(self.count, np.int64)
        rank[np.asarray(priority, dtype=np.int64)] = np.arange(self.count)
        # The least is the most urgent; ``_placed``, above all ranks, where the buffer is placed.
        self._ranks = rank[self._buffers]

    def take(self, start: int, stop: int) -> int | None:
        """The most urgent buffer whose lifetime lies inside [start, stop), or None; it waits no longer."""
        first, last = self._begins.searchsorted((start, stop))
        if first == last:
            return None
        ranks = np.where(self._ends[first:last] <= stop, self._ranks[first:last], self._placed)
        pick = int(ranks.argmin())
        if ranks[pick] == self._placed:
            return None
        buffer = int(self._buffers[first + pick])
        self._ranks[first + pick] = self._placed
        self.count -= 1
        if 2 * self.count < len(self._buffers):
            self._forget_placed()
        return buffer

    def _forget_placed(self) -> None:
        left = self._ranks < self._placed
        self._buffers, self._ranks = self._buffers[left], self._ranks[left]
        self._begins, self._ends = self._begins[left], self._ends[left]

"""Two ways to place buffers one after the other: by a given order, and along the skyline.

Both take half-open lifetimes and sizes in any integer unit, already rounded up to the alignment, and return
offsets in the same unit. Two buffers that share a tick never share bytes. Only ``fit`` knows gaps and pins. Neither
looks ahead; ``monet.planner.layout.arena`` tries several and keeps the least.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np

from monet.planner.layout.load import Integers
from monet.planner.layout.pieces import Pieces

_WALL = 1 << 63  # the skyline's height outside the horizon


def fit(
    order: Sequence[int] | Integers, pieces: Pieces, *, smallest_gap: bool, limit: int | None = None
) -> Integers | None:
    """Place buffers in ``order``, each into a gap between those placed before that share a tick with it.

    Pinned buffers come first, where they must lie. ``smallest_gap`` picks the gap that fits tightest (best fit; the
    lowest of equals), otherwise the lowest gap that is large enough (first fit); above everything when there is none.
    Returns None as soon as a buffer ends above ``limit``. O(n^2) comparisons, all in numpy.
    """
    first, begin, end, size = pieces.first, pieces.begin, pieces.end, pieces.size
    offsets = np.zeros(len(size), np.int64)
    # The placed pieces in the order of their offsets; rows: begin, end, offset, top.
    placed = np.empty((4, len(begin)), np.int64)
    done = 0
    pinned = np.flatnonzero(pieces.pinned >= 0)
    free = [buffer for buffer in order if pieces.pinned[buffer] < 0] if len(pinned) else order
    for buffer in (*pinned, *free):
        need, own = size[buffer], slice(first[buffer], first[buffer + 1])
        if pieces.pinned[buffer] >= 0:
            offset = int(pieces.pinned[buffer])
        else:
            begins, ends, lows, tops = placed[:, :done]
            shares = np.zeros(done, np.bool_)
            for opens, closes in zip(begin[own], end[own], strict=True):
                shares |= (begins < closes) & (ends > opens)
            offset = _gap(lows[shares], tops[shares], int(need), smallest_gap)
        if limit is not None and offset + need > limit:
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


def skyline(priority: Sequence[int] | Integers, begin: Integers, end: Integers, size: Integers) -> Integers:
    """Best fit of Sekiyama, Imamichi, Imai and Raymond (2018), "Profile-guided memory optimization
    for deep neural networks", arXiv:1804.10001: theirs takes the longest lifetime first.

    The skyline is the top of what is placed, a step function of time; a segment is a step, whatever lies under it::

        offset
          |      +----+              Take the lowest segment (the earliest of equals) and put there
          |  +---+    +-----+        the buffer of highest priority whose whole lifetime lies inside.
          |  |   ^lift      |        With none, lift the segment to its lower neighbour's height.
          +--+--------------+--> ticks

    ``priority``: all buffers, the most urgent first.
    """
    count = len(size)
    offsets = np.zeros(count, np.int64)
    # By their begins, so that those inside a segment are among a stretch, which is short for a short segment.
    order = np.argsort(begin, kind="stable")
    begins, ends = begin[order], end[order]
    rank = np.empty(count, np.int64)
    rank[np.asarray(priority, dtype=np.int64)] = np.arange(count)
    urgency = rank[order]  # least first; count: is placed
    left = count

    # Segments [start, stop) at a height, linked both ways by their starts; a heap finds the lowest.
    origin, horizon = int(begin.min()), int(end.max())
    stop, height = {origin: horizon}, {origin: 0}
    before: dict[int, int] = {horizon: origin}  # a segment's start, by its stop
    heap = [(0, origin)]
    while left:
        low, start = heapq.heappop(heap)
        if height.get(start) != low:
            continue
        finish = stop[start]
        first, last = begins.searchsorted((start, finish))
        urgencies = np.where(ends[first:last] <= finish, urgency[first:last], count)
        pick = first + int(urgencies.argmin()) if first < last else -1
        if pick < 0 or urgencies[pick - first] == count:
            # Lift: merge with the lower neighbour (with both, when they are equal).
            # Without a neighbour on either side, every waiting buffer would lie inside.
            left_height = height[before[start]] if start != origin else _WALL
            right_height = height[finish] if finish != horizon else _WALL
            target = min(left_height, right_height)
            height[start] = target
            if right_height == target:
                stop[start] = stop.pop(finish)
                del height[finish]
                before[stop[start]] = start
            if left_height == target:
                neighbour = before[start]
                stop[neighbour] = stop.pop(start)
                del height[start]
                before[stop[neighbour]] = neighbour
                start = neighbour
            heapq.heappush(heap, (target, start))
            continue
        buffer = int(order[pick])
        urgency[pick] = count
        left -= 1
        offsets[buffer] = low
        opens, closes, raised = int(begin[buffer]), int(end[buffer]), low + int(size[buffer])
        if start < opens:
            stop[start] = opens
            before[opens] = start
            heapq.heappush(heap, (low, start))
        if closes < finish:
            stop[closes], height[closes] = finish, low
            before[finish] = closes
            heapq.heappush(heap, (low, closes))
        elif finish != horizon and height[finish] == raised:  # one with its right neighbour
            closes = stop.pop(finish)
            del height[finish]
        if opens == start != origin and height[before[start]] == raised:  # and with its left one
            del stop[start], height[start]
            opens = before[start]
        stop[opens], height[opens] = closes, raised
        before[closes] = opens
        heapq.heappush(heap, (raised, opens))
        if 2 * left < len(order):  # forget the placed ones
            waiting = urgency < count
            order, begins, ends, urgency = order[waiting], begins[waiting], ends[waiting], urgency[waiting]
    return offsets

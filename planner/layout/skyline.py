"""The skyline: the top of all buffers placed so far, as a step function of time.

::

    height
      |      +----+
      |  +---+    +-----+      A segment is one step: half-open ticks [start, stop) at one height.
      |  |              |      Neighbours of one height are one segment.
      +--+--------------+--> ticks
       origin        horizon
"""

from __future__ import annotations

import heapq

_WALL = 1 << 63
"""The height outside [origin, horizon)."""


class Skyline:
    """One segment at first, at height 0. Segments are known by their starts."""

    def __init__(self, origin: int, horizon: int) -> None:
        self._origin, self._horizon = origin, horizon
        self._stop = {origin: horizon}
        self._height = {origin: 0}
        self._start_by_stop = {horizon: origin}
        # (height, start) of every segment, and of some that are no longer so.
        self._heap = [(0, origin)]

    def take_lowest(self) -> tuple[int, int, int]:
        """(start, stop, height) of the lowest segment, of equals the earliest; to be lifted or built on next."""
        while True:
            height, start = heapq.heappop(self._heap)
            if self._height.get(start) == height:
                return start, self._stop[start], height

    def lift(self, start: int) -> None:
        """Raises the segment to its lower neighbour; the two become one, or all three where all are as high then.

        It must have a neighbour: where the whole skyline is one segment, every buffer lies inside.
        """
        stop = self._stop[start]
        left = _WALL if start == self._origin else self._height[self._start_by_stop[start]]
        right = _WALL if stop == self._horizon else self._height[stop]
        height = self._height[start] = min(left, right)
        if right == height:
            self._join_next(start)
        if left == height:
            start = self._start_by_stop[start]
            self._join_next(start)
        heapq.heappush(self._heap, (height, start))

    def build(self, start: int, begin: int, end: int, top: int) -> None:
        """Raises [begin, end), which lies inside the segment, to ``top``; what is left of the segment stays."""
        stop, height = self._stop[start], self._height[start]
        if start < begin:
            self._put(start, begin, height)
            heapq.heappush(self._heap, (height, start))
        if end < stop:
            self._put(end, stop, height)
            heapq.heappush(self._heap, (height, end))
        self._put(begin, end, top)
        if end == stop != self._horizon and self._height[stop] == top:
            self._join_next(begin)
        if begin == start != self._origin and self._height[self._start_by_stop[start]] == top:
            begin = self._start_by_stop[start]
            self._join_next(begin)
        heapq.heappush(self._heap, (top, begin))

    def _put(self, start: int, stop: int, height: int) -> None:
        self._stop[start], self._height[start] = stop, height
        self._start_by_stop[stop] = start

    def _join_next(self, start: int) -> None:
        """Makes the segment and the next one, which is as high, one."""
        after = self._stop[start]
        stop = self._stop[start] = self._stop.pop(after)
        del self._height[after]
        self._start_by_stop[stop] = start

"""Buffers as arrays: the stretches of time in which each is alive, its size, and where it must lie."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from monet.planner.layout.load import Integers, load_over_time


@dataclass(frozen=True, slots=True)
class Pieces:
    """Buffer b is alive in the pieces ``first[b]`` to ``first[b + 1]``: half-open ticks ``begin`` to ``end``, in
    order of time and apart. Without gaps there is one piece a buffer.

    ``size``: a buffer, in any integer unit. ``fixed_at``: its given offset in the same unit, or −1 where it may lie
    anywhere.
    """

    first: Integers
    begin: Integers
    end: Integers
    size: Integers
    fixed_at: Integers

    @property
    def whole(self) -> bool:
        """Plain lifetimes: no gaps and no given offsets."""
        return len(self.begin) == len(self.size) and not (self.fixed_at >= 0).any()

    @property
    def owner(self) -> Integers:
        """The buffer of each piece."""
        return np.repeat(np.arange(len(self.size)), np.diff(self.first))

    def reduced(self) -> tuple[Pieces, int]:
        """The same in the largest unit that divides all sizes and given offsets, and that unit.

        Nothing is lost: pushed down, each buffer lies at 0, at its given offset, or on top of another buffer.
        """
        unit = int(np.gcd.reduce(np.concatenate((self.size, self.fixed_at[self.fixed_at >= 0]))))
        fixed_at = np.where(self.fixed_at >= 0, self.fixed_at // unit, -1)
        return replace(self, size=self.size // unit, fixed_at=fixed_at), unit

    def per_buffer(self, combine: np.ufunc, of_pieces: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """``combine`` over the pieces of each buffer."""
        return np.asarray(combine.reduceat(of_pieces, self.first[:-1]))

    def bound(self) -> int:
        """No layout is lower: the largest load of a tick, and the highest top of a given offset."""
        load = int(load_over_time(self.begin, self.end, self.size[self.owner])[1].max(initial=0))
        fixed = self.fixed_at >= 0
        return max(load, int((self.fixed_at + self.size)[fixed].max(initial=0)))

    def pairs(self) -> Integers:
        """(pairs, 2): buffers that are alive at the same tick, the lower index first. O(buffers · pieces)."""
        owner, pairs = self.owner, []
        for buffer in range(len(self.size)):
            own, rest = slice(self.first[buffer], self.first[buffer + 1]), slice(self.first[buffer + 1], None)
            shares = np.zeros(len(self.begin) - own.stop, np.bool_)
            for opens, closes in zip(self.begin[own], self.end[own], strict=True):
                shares |= (self.begin[rest] < closes) & (self.end[rest] > opens)
            others = np.unique(owner[rest][shares])
            pairs.append(np.stack((np.full_like(others, buffer), others), axis=1))
        return np.concatenate(pairs) if pairs else np.zeros((0, 2), np.int64)

    def crowd(self) -> Integers:
        """For each buffer, the largest load while it is alive."""
        ticks, load = load_over_time(self.begin, self.end, self.size[self.owner])
        low, high = np.searchsorted(ticks, self.begin), np.searchsorted(ticks, self.end)
        most = np.array([load[a:b].max() for a, b in zip(low, high, strict=True)], np.int64)
        return self.per_buffer(np.maximum, most)

    def sections(self) -> tuple[npt.NDArray[np.intc], npt.NDArray[np.intc], int]:
        """(first range of each buffer, ranges as pairs of sections, sections). A section lies between two ticks at
        which some lifetime begins or ends, with none in between."""
        ticks = np.unique(np.concatenate((self.begin, self.end)))
        ranges = np.stack((np.searchsorted(ticks, self.begin), np.searchsorted(ticks, self.end)), axis=1)
        return self.first.astype(np.intc), np.ascontiguousarray(ranges, np.intc), max(0, len(ticks) - 1)

    def parts(self) -> list[Integers]:
        """The buffers of each part: no buffer of one is alive between the first and the last tick of another. Those of
        one in their own order; the part of most buffers first."""
        begin, end = self.begin[self.first[:-1]], self.end[self.first[1:] - 1]
        by_begin = np.argsort(begin, kind="stable")
        latest = np.maximum.accumulate(end[by_begin])
        starts = np.flatnonzero(begin[by_begin][1:] >= latest[:-1]) + 1
        return sorted((np.sort(part) for part in np.split(by_begin, starts)), key=len, reverse=True)

    def taken(self, buffers: Integers) -> Pieces:
        """Only these buffers, in increasing order."""
        count = np.diff(self.first)[buffers]
        wanted = np.isin(self.owner, buffers)
        return replace(
            self,
            first=np.concatenate(([0], np.cumsum(count))),
            begin=self.begin[wanted],
            end=self.end[wanted],
            size=self.size[buffers],
            fixed_at=self.fixed_at[buffers],
        )

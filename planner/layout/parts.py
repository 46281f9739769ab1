"""Parts of a problem that are apart in time: no buffer of one is alive between the first and last tick of another."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from monet.planner.layout.load import Integers
from monet.planner.layout.pieces import Pieces


def parts(pieces: Pieces) -> list[Integers]:
    """The buffers of each part, those of one in their own order; the part of most buffers first."""
    begin, end = pieces.begin[pieces.first[:-1]], pieces.end[pieces.first[1:] - 1]
    by_begin = np.argsort(begin, kind="stable")
    latest = np.maximum.accumulate(end[by_begin])
    starts = np.flatnonzero(begin[by_begin][1:] >= latest[:-1]) + 1
    return sorted((np.sort(part) for part in np.split(by_begin, starts)), key=len, reverse=True)


def taken(pieces: Pieces, buffers: Integers) -> Pieces:
    """Only these buffers, in increasing order."""
    count = np.diff(pieces.first)[buffers]
    first = np.concatenate(([0], np.cumsum(count)))
    wanted = np.isin(pieces.owner, buffers)
    return replace(
        pieces,
        first=first,
        begin=pieces.begin[wanted],
        end=pieces.end[wanted],
        size=pieces.size[buffers],
        fixed_at=pieces.fixed_at[buffers],
    )

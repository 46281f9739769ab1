"""Layout: an offset in one arena for every buffer, and how far the arena is from the proven least size.

The problem is dynamic storage allocation: buffers are rectangles, [begin, end) in ticks by
[offset, offset + bytes), that may slide in offset only and must not intersect. NP-hard in the strong
sense, but training steps are kind: some heuristic is usually within a few thousandths of the max load.
So: a portfolio of fast heuristics, in a fixed order and until one meets the bound; then an exact search that asks
whether there is a layout at the bound; then local improvement of the best.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from monet.errors import MonetError
from monet.planner import layout_search
from monet.planner.bestfit import fit, skyline
from monet.planner.load import Integers
from monet.planner.pieces import Pieces
from monet.planner.reinsertion import improve

_log = logging.getLogger(__name__)

# Local improvement: so many tries, or so many placements of one buffer (about 3 s), whichever is less.
_TRIES = 1000
_PLACEMENTS = 250_000
# Exact search: problems of up to so many buffers; and without a time limit, so many buffers looked at (about 3 s).
_EXACT_BUFFERS = 5000
_EXACT_VISITS = 300_000_000
_LARGEST_SUM = 1 << 60


class InvalidLifetime(MonetError, ValueError):
    """A lifetime is empty, has no bytes or is negative, an id occurs twice, or the alignment is none."""


@dataclass(frozen=True, slots=True)
class Lifetime:
    """``bytes`` bytes that are in use during the half-open ticks [begin, end), without the ``gaps`` in between.

    ``gaps``: half-open, apart from each other and inside the lifetime; the bytes need not survive them. ``offset``:
    where the buffer must lie, a multiple of the alignment, or None.
    """

    id: int
    bytes: int
    begin: int
    end: int
    gaps: tuple[tuple[int, int], ...] = ()
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class Layout:
    """Where each buffer lies, in bytes from the start of the arena, in the order of the input.

    ``arena_bytes``: the end of the highest buffer, rounded up to the alignment. ``bound_bytes``: no
    layout with this alignment has a smaller arena: the largest sum of aligned bytes alive at a tick, or more where a
    search has shown that this is not enough. ``method``: what found it.
    """

    offsets: tuple[int, ...]
    arena_bytes: int
    bound_bytes: int
    method: str


def layout(
    lifetimes: Sequence[Lifetime],
    *,
    alignment: int = 64,
    capacity_bytes: int | None = None,
    time_limit_s: float | None = None,
) -> Layout:
    """Give every buffer an offset, a multiple of ``alignment``, so that none alive at the same tick overlap.

    Returns the smallest arena that was found; it equals the bound, or was improved for ``time_limit_s`` seconds, or,
    without a limit, for a bounded number of tries: then the same input gives the same layout. With
    ``capacity_bytes``, nothing more is tried once the arena fits, nor when the bound
    shows that none can; whether it fits is for the caller to compare. Heuristics take about 0.03 s for 1k buffers and
    5 s for 20k; what follows about 6 s where there is no limit.

    Raises InvalidLifetime (also a ValueError) when a lifetime has begin >= end, no bytes or a negative
    number, when its gaps or its offset make no sense, when an id occurs twice, when two buffers that must lie somewhere
    overlap, or when ``alignment`` < 1.
    """
    _check(lifetimes, alignment)
    if not lifetimes:
        return Layout((), 0, 0, "empty")
    deadline = float("inf") if time_limit_s is None else time.monotonic() + time_limit_s
    pieces = _pieces(lifetimes, alignment)
    bound = pieces.bound()
    capacity = bound if capacity_bytes is None else capacity_bytes // alignment
    attempts = _attempts(pieces, bound, capacity, deadline)
    best = next(attempts)
    while best.height > bound and (attempt := next(attempts, None)) is not None:
        bound = max(bound, attempt.bound)
        if attempt.offsets is not None and attempt.height < best.height:
            best = attempt
            _log.debug("layout: %s: %.4f of the bound", best.method, best.height / bound)
    assert best.offsets is not None
    offsets = tuple(int(offset) * alignment for offset in best.offsets)
    return Layout(offsets, best.height * alignment, bound * alignment, best.method)


@dataclass(frozen=True, slots=True)
class _Attempt:
    """A method's name, offsets and height, the latter two in units of the alignment. ``bound``: proven on the way;
    a proof may come without offsets."""

    method: str
    offsets: Integers | None
    height: int
    bound: int = 0


def _attempts(pieces: Pieces, bound: int, capacity: int, deadline: float) -> Iterator[_Attempt]:
    """What each heuristic makes, the most promising first, then the exact search and the local improvement."""
    orders = _orders(pieces)
    heights: dict[str, int] = {}
    least = -1
    for attempt in _placements(pieces, orders, heights):
        least = attempt.height if least < 0 else min(least, attempt.height)
        yield attempt
    if capacity < bound or least <= capacity:
        return
    count = len(pieces.size)
    if count <= _EXACT_BUFFERS and layout_search.available():
        nodes = _EXACT_VISITS / count if deadline == float("inf") else float("inf")
        search = layout_search.CanonicalSearch(pieces, nodes, deadline)
        for proven, offsets in layout_search.exact(search, bound, least, capacity):
            bound = max(bound, proven)
            if offsets is None:
                yield _Attempt("proof", None, 0, bound)
                continue
            least = int((offsets + pieces.size).max())
            yield _Attempt("canonical search", offsets, least, bound)
    if not pieces.whole or capacity < bound:
        return
    # Improve the best skyline, and long-lived-first, from which improvement goes furthest on hard sets.
    begin, end, size = pieces.begin, pieces.end, pieces.size
    tries = min(_TRIES, _PLACEMENTS // count)
    starts = dict.fromkeys((min(heights, key=heights.__getitem__), "lifetime"))
    for key in starts:
        attempts = improve(orders[key], begin, end, size, bound=bound, tries=tries // len(starts))
        while least > capacity and time.monotonic() < deadline and (better := next(attempts, None)) is not None:
            height = int((better + size).max())
            least = min(least, height)
            yield _Attempt(f"skyline by {key} + reinsertion", better, height)


def _orders(pieces: Pieces) -> dict[str, Integers]:
    """Buffers by several keys; np.lexsort: the last key counts most, and equals keep their order."""
    size, begin = pieces.size, pieces.begin[pieces.first[:-1]]
    length = pieces.per_buffer(np.add, pieces.end - pieces.begin)
    area = size.astype(np.float64) * length
    return {
        "lifetime": np.lexsort((-size, -length)),
        "size": np.lexsort((-length, -size)),
        "area": np.lexsort((-size, -area)),
        "begin": np.lexsort((-size, begin)),
    }


def _placements(pieces: Pieces, orders: dict[str, Integers], heights: dict[str, int]) -> Iterator[_Attempt]:
    """One placement after another; ``heights`` gets those of the skyline."""
    size = pieces.size
    if pieces.whole:
        for key in ("lifetime", "size", "area"):
            offsets = skyline(orders[key], pieces.begin, pieces.end, size)
            heights[key] = int((offsets + size).max())
            yield _Attempt(f"skyline by {key}", offsets, heights[key])
    least = min(heights.values(), default=None)
    for key, order in orders.items():
        for name, smallest_gap in (("first fit", False), ("best fit", True)):
            limit = None if least is None else least - 1
            found = fit(order, pieces, smallest_gap=smallest_gap, limit=limit)
            if found is not None:
                least = int((found + size).max())
                yield _Attempt(f"{name} by {key}", found, least)


def _pieces(lifetimes: Sequence[Lifetime], alignment: int) -> Pieces:
    first, begin, end = [0], [], []
    for life in lifetimes:
        at = life.begin
        for opens, closes in (*sorted(life.gaps), (life.end, life.end)):
            begin.append(at)
            end.append(opens)
            at = closes
        first.append(len(begin))
    return Pieces(
        np.array(first, np.int64),
        np.array(begin, np.int64),
        np.array(end, np.int64),
        np.array([-(-life.bytes // alignment) for life in lifetimes], np.int64),
        np.array([-1 if life.offset is None else life.offset // alignment for life in lifetimes], np.int64),
    )


def _check(lifetimes: Iterable[Lifetime], alignment: int) -> None:
    if alignment < 1:
        raise InvalidLifetime(f"alignment is {alignment} bytes; it must be at least 1")
    seen: set[int] = set()
    total = 0
    for life in lifetimes:
        if life.bytes <= 0:
            raise InvalidLifetime(f"buffer {life.id} has {life.bytes} bytes: leave buffers without bytes out")
        if life.begin >= life.end:
            raise InvalidLifetime(f"buffer {life.id} lives during [{life.begin}, {life.end}), which holds no tick")
        if life.begin < 0:
            raise InvalidLifetime(f"buffer {life.id} begins at tick {life.begin}; the first tick is 0")
        if life.id in seen:
            raise InvalidLifetime(f"buffer id {life.id} occurs twice")
        _check_gaps(life)
        if life.offset is not None and (life.offset < 0 or life.offset % alignment):
            raise InvalidLifetime(
                f"buffer {life.id} must lie at {life.offset}, which is no multiple of the alignment, {alignment}"
            )
        seen.add(life.id)
        total += life.bytes + alignment + (life.offset or 0)
    if total > _LARGEST_SUM:
        raise InvalidLifetime(f"the buffers sum to {total} bytes, more than the {_LARGEST_SUM} that can be laid out")
    _check_pinned([life for life in lifetimes if life.offset is not None])


def _check_gaps(life: Lifetime) -> None:
    at = life.begin
    for begin, end in sorted(life.gaps):
        if not at < begin < end < life.end:
            raise InvalidLifetime(
                f"buffer {life.id}: the gap [{begin}, {end}) is empty, touches another one, or is not inside "
                f"[{life.begin}, {life.end})"
            )
        at = end


def _check_pinned(lifetimes: Sequence[Lifetime]) -> None:
    for one, other in itertools.combinations(lifetimes, 2):
        assert one.offset is not None and other.offset is not None
        apart = one.offset + one.bytes <= other.offset or other.offset + other.bytes <= one.offset
        if not apart and _share_a_tick(one, other):
            raise InvalidLifetime(f"buffers {one.id} and {other.id} must lie where they overlap")


def _share_a_tick(one: Lifetime, other: Lifetime) -> bool:
    pieces = _pieces((one, other), 1)
    a, b = slice(0, int(pieces.first[1])), slice(int(pieces.first[1]), None)
    return bool(((pieces.begin[a, None] < pieces.end[None, b]) & (pieces.end[a, None] > pieces.begin[None, b])).any())

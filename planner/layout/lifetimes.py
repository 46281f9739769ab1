"""What is laid out: buffers and when each is alive; and the check that a layout of them is possible."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from monet.errors import MonetError
from monet.planner.layout.pieces import Pieces

_LARGEST_SUM = 1 << 60


class InvalidLifetime(MonetError, ValueError):
    """A lifetime is empty, negative or without bytes, its gaps or its offset make no sense, or an id occurs twice."""


@dataclass(frozen=True, slots=True)
class Lifetime:
    """``bytes`` bytes that are in use during the half-open ticks [begin, end), without the ``gaps`` in between.

    ``gaps``: half-open, apart from each other and inside the lifetime; the contents need not survive them. ``offset``:
    where the buffer must lie, a multiple of the alignment; None where it may lie anywhere.
    """

    id: int
    bytes: int
    begin: int
    end: int
    gaps: tuple[tuple[int, int], ...] = ()
    offset: int | None = None


def pieces_of(lifetimes: Sequence[Lifetime], alignment: int) -> Pieces:
    """The same as arrays, in units of the alignment; sizes are rounded up."""
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


def check(lifetimes: Sequence[Lifetime], alignment: int) -> None:
    """Raises InvalidLifetime for lifetimes that cannot be laid out with this alignment."""
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
    _check_given_offsets([life for life in lifetimes if life.offset is not None])


def _check_gaps(life: Lifetime) -> None:
    at = life.begin
    for begin, end in sorted(life.gaps):
        if not at < begin < end < life.end:
            raise InvalidLifetime(
                f"buffer {life.id}: the gap [{begin}, {end}) is empty, touches another one, or is not inside "
                f"[{life.begin}, {life.end})"
            )
        at = end


def _check_given_offsets(lifetimes: Sequence[Lifetime]) -> None:
    for one, other in itertools.combinations(lifetimes, 2):
        assert one.offset is not None and other.offset is not None
        apart = one.offset + one.bytes <= other.offset or other.offset + other.bytes <= one.offset
        if not apart and _share_a_tick(one, other):
            raise InvalidLifetime(f"buffers {one.id} and {other.id} must lie where they overlap")


def _share_a_tick(one: Lifetime, other: Lifetime) -> bool:
    pieces = pieces_of((one, other), 1)
    a, b = slice(0, int(pieces.first[1])), slice(int(pieces.first[1]), None)
    return bool(((pieces.begin[a, None] < pieces.end[None, b]) & (pieces.end[a, None] > pieces.begin[None, b])).any())

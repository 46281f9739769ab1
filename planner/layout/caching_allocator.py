"""A model of PyTorch's caching allocator on CUDA: what it asks of the device for a sequence of requests.

After ``c10/cuda/CUDACachingAllocator.cpp`` with its defaults, on one stream: ``round_size``, ``get_pool``,
``get_free_block``, ``get_allocation_size``, ``should_split`` and ``try_merge_blocks``. The device never runs out, so
segments are never given back. No expandable segments.

::

    request ≤ 1 MiB   small pool, segments of 2 MiB
    request > 1 MiB   large pool, segments of 20 MiB below 10 MiB, else as large as the request, rounded up to 2 MiB

A request takes the smallest free block of its pool that is large enough, of equals the lowest; where there is none, a
new segment. The rest of the block becomes a free block if it has at least 512 bytes (small pool) or more than 1 MiB
(large pool). A block that is freed merges with free neighbours in its segment.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from monet.errors import MonetError
from monet.planner.layout.arena import Lifetime

BLOCK_BYTES = 512
SMALL_REQUEST = 1 << 20
SMALL_SEGMENT = 2 << 20
LARGE_SEGMENT = 20 << 20
OWN_SEGMENT_FROM = 10 << 20
SEGMENT_ROUNDING = 2 << 20


class InvalidRequest(MonetError, ValueError):
    """A block is freed that is not in use, or requested twice, or has a negative size."""


@dataclass(frozen=True, slots=True)
class Usage:
    """``allocated_bytes``: the most that blocks in use took. ``reserved_bytes``: what all segments take.
    ``allocated_then_bytes``: what blocks in use took when the last segment was reserved."""

    allocated_bytes: int
    reserved_bytes: int
    allocated_then_bytes: int

    @property
    def fragmentation(self) -> float:
        """The share of reserved memory that is not in use when reserved memory reaches its peak.

        Steiner, Elhoushi, Kahn and Hegarty, "MODeL", ICML 2023.
        """
        return (self.reserved_bytes - self.allocated_then_bytes) / self.reserved_bytes if self.reserved_bytes else 0.0


@dataclass(slots=True)
class _Pool:
    small: bool
    free: list[tuple[int, int]] = field(default_factory=list)  # (bytes, address), sorted


@dataclass(slots=True)
class _Block:
    address: int
    bytes: int
    pool: _Pool


class CachingAllocator:
    """A request is known by any number; addresses begin at 0, as on an empty device."""

    def __init__(self) -> None:
        self._small, self._large = _Pool(True), _Pool(False)
        self._used: dict[int, _Block] = {}
        self._begins: dict[int, int] = {}  # of free blocks: bytes by address
        self._ends: dict[int, int] = {}  # of free blocks: address by end
        self._top = 0
        self._allocated = self._reserved = 0
        self._most_allocated = self._then = 0

    @property
    def blocks(self) -> Mapping[int, tuple[int, int]]:
        """(address, bytes) of every block in use, by its request."""
        return {request: (block.address, block.bytes) for request, block in self._used.items()}

    @property
    def usage(self) -> Usage:
        """So far."""
        return Usage(self._most_allocated, self._reserved, self._then)

    def allocate(self, request: int, size: int) -> None:
        """A request of no bytes takes no block. Raises ``InvalidRequest``: it is in use, or its size is negative."""
        if request in self._used or size < 0:
            raise InvalidRequest(f"request {request} of {size} bytes: it is in use already, or its size is negative")
        if size == 0:
            return
        size = _rounded(size, BLOCK_BYTES)
        pool = self._small if size <= SMALL_REQUEST else self._large
        at = bisect_left(pool.free, (size, -1))
        reserving = at == len(pool.free)
        if reserving:
            held, address = self._reserve(size)
        else:
            held, address = pool.free[at]
            self._take(pool, held, address)
        left = held - size
        if left >= BLOCK_BYTES if pool.small else left > SMALL_REQUEST:
            self._put(pool, left, address + size)
            held = size
        self._used[request] = _Block(address, held, pool)
        self._allocated += held
        self._most_allocated = max(self._most_allocated, self._allocated)
        if reserving:
            self._then = self._allocated

    def free(self, request: int) -> None:
        """Raises ``InvalidRequest``: it is not in use."""
        if request not in self._used:
            raise InvalidRequest(f"request {request} is freed, but is not in use")
        block = self._used.pop(request)
        self._allocated -= block.bytes
        begin, end = block.address, block.address + block.bytes
        if begin in self._ends:
            before = self._ends[begin]
            self._take(block.pool, begin - before, before)
            begin = before
        if end in self._begins:
            after = self._begins[end]
            self._take(block.pool, after, end)
            end += after
        self._put(block.pool, end - begin, begin)

    def _reserve(self, size: int) -> tuple[int, int]:
        if size <= SMALL_REQUEST:
            segment = SMALL_SEGMENT
        elif size < OWN_SEGMENT_FROM:
            segment = LARGE_SEGMENT
        else:
            segment = _rounded(size, SEGMENT_ROUNDING)
        address = self._top
        self._top += segment + BLOCK_BYTES  # a gap, so that blocks of two segments never touch
        self._reserved += segment
        return segment, address

    def _put(self, pool: _Pool, size: int, address: int) -> None:
        insort(pool.free, (size, address))
        self._begins[address] = size
        self._ends[address + size] = address

    def _take(self, pool: _Pool, size: int, address: int) -> None:
        del pool.free[bisect_left(pool.free, (size, address))]
        del self._begins[address]
        del self._ends[address + size]


def replay_lifetimes(lifetimes: Iterable[Lifetime]) -> Usage:
    """What the allocator reserves for these buffers: at each tick it frees those that end there, then allocates those
    that begin, in the given order. Gaps and offsets are ignored: PyTorch knows neither.

    Raises ``InvalidRequest``: an id occurs twice at a time.
    """
    begins: dict[int, list[Lifetime]] = {}
    ends: dict[int, list[Lifetime]] = {}
    for life in lifetimes:
        begins.setdefault(life.begin, []).append(life)
        ends.setdefault(life.end, []).append(life)
    allocator = CachingAllocator()
    for tick in sorted({*begins, *ends}):
        for life in ends.get(tick, ()):
            allocator.free(life.id)
        for life in begins.get(tick, ()):
            allocator.allocate(life.id, life.bytes)
    return allocator.usage


def _rounded(size: int, unit: int) -> int:
    return -(-size // unit) * unit

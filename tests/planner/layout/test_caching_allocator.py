"""The model of PyTorch's caching allocator, on sequences worked out by hand and on random ones."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from order_problems import graphs

from monet.planner.layout import Lifetime
from monet.planner.layout.caching_allocator import CachingAllocator, InvalidRequest, Usage, replay_lifetimes
from monet.planner.layout.order_lifetimes import order_lifetimes
from monet.planner.order.graph import OrderGraph, peak_bytes

KIB, MIB = 1 << 10, 1 << 20
options = settings(deadline=None, derandomize=True, database=None)


def allocated(*sizes: int) -> CachingAllocator:
    """Requests 0, 1, ... of these sizes."""
    allocator = CachingAllocator()
    for request, size in enumerate(sizes):
        allocator.allocate(request, size)
    return allocator


@pytest.mark.parametrize(
    ("request_bytes", "block_bytes", "segment_bytes"),
    [
        (1, 512, 2 * MIB),
        (512, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB - 511, 10 * MIB, 10 * MIB),  # rounded first
        (10 * MIB, 10 * MIB, 10 * MIB),
        (10 * MIB + 1, 10 * MIB + 512, 12 * MIB),  # the rest is split off
        (19 * MIB, 20 * MIB, 20 * MIB),  # exactly 1 MiB is left, which is not
        (100 * MIB, 100 * MIB, 100 * MIB),
    ],
)
def test_one_request(request_bytes: int, block_bytes: int, segment_bytes: int) -> None:
    assert allocated(request_bytes).usage == Usage(block_bytes, segment_bytes, block_bytes)


def test_nothing_takes_nothing() -> None:
    allocator = allocated(0)
    assert allocator.usage == Usage(0, 0, 0) and not allocator.blocks
    assert allocator.usage.fragmentation == 0.0


def test_small_requests_share_a_segment_until_it_is_full() -> None:
    allocator = allocated(MIB, MIB - 512, 512)
    assert allocator.usage == Usage(2 * MIB, 2 * MIB, MIB)
    assert allocator.blocks == {0: (0, MIB), 1: (MIB, MIB - 512), 2: (2 * MIB - 512, 512)}
    allocator.allocate(3, 1)
    assert allocator.usage == Usage(2 * MIB + 512, 4 * MIB, 2 * MIB + 512)


def test_small_requests_never_take_large_blocks_nor_large_ones_small_blocks() -> None:
    assert allocated(2 * MIB, 1, 2 * MIB).usage.reserved_bytes == 22 * MIB
    allocator = allocated(1)
    allocator.free(0)  # 2 MiB are free, in the small pool
    allocator.allocate(1, 2 * MIB)
    assert allocator.usage == Usage(2 * MIB, 22 * MIB, 2 * MIB)


def test_the_smallest_block_that_is_large_enough_is_taken() -> None:
    """Blocks of 30, 12 and 20 MiB are free: 11 MiB fit the second, and what is left of it is not split off."""
    allocator = allocated(30 * MIB, 12 * MIB, 20 * MIB)
    for request in range(3):
        allocator.free(request)
    allocator.allocate(3, 11 * MIB)
    address, size = allocator.blocks[3]
    assert (address, size) == (30 * MIB + 512, 12 * MIB)
    assert allocator.usage == Usage(62 * MIB, 62 * MIB, 62 * MIB)


def test_a_large_block_is_split_only_above_a_mebibyte() -> None:
    allocator = allocated(20 * MIB)
    allocator.free(0)
    allocator.allocate(1, 19 * MIB)  # 1 MiB is left: not split
    assert allocator.blocks[1] == (0, 20 * MIB)
    allocator.free(1)
    allocator.allocate(2, 19 * MIB - 512)  # 512 bytes more: split
    allocator.allocate(3, MIB + 512)
    assert allocator.blocks == {2: (0, 19 * MIB - 512), 3: (19 * MIB - 512, MIB + 512)}
    assert allocator.usage.reserved_bytes == 20 * MIB


def test_neighbours_merge_in_their_segment_only() -> None:
    allocator = allocated(6 * MIB, 6 * MIB, 6 * MIB, 10 * MIB)
    assert allocator.usage.reserved_bytes == 30 * MIB
    allocator.free(0)
    allocator.free(2)  # merges with the 2 MiB behind it
    allocator.allocate(4, 8 * MIB)
    assert allocator.blocks[4][0] == 12 * MIB
    allocator.free(4)
    allocator.free(1)  # merges with both sides: 20 MiB
    allocator.free(3)  # another segment, right behind
    allocator.allocate(5, 20 * MIB)
    assert allocator.blocks == {5: (0, 20 * MIB)}
    allocator.allocate(6, 11 * MIB)  # the 10 MiB are too small
    assert allocator.usage == Usage(31 * MIB + MIB, 42 * MIB, 32 * MIB)


def test_fragmentation_is_that_at_the_peak_of_what_is_reserved() -> None:
    """40 MiB in two; the first is freed; 30 MiB need a new segment while 20 of 40 MiB are in use."""
    allocator = allocated(20 * MIB, 20 * MIB)
    allocator.free(0)
    allocator.allocate(2, 30 * MIB)
    assert allocator.usage == Usage(50 * MIB, 70 * MIB, 50 * MIB)
    assert allocator.usage.fragmentation == pytest.approx(2 / 7)
    allocator.allocate(3, 20 * MIB)  # all is in use now, but nothing more is reserved
    assert allocator.usage == Usage(70 * MIB, 70 * MIB, 50 * MIB)


def test_what_ends_at_a_tick_is_free_for_what_begins_there() -> None:
    one, other = Lifetime(1, 15 * MIB, 0, 4), Lifetime(2, 15 * MIB, 4, 5)
    assert replay_lifetimes([other, one]).reserved_bytes == 16 * MIB
    assert replay_lifetimes([other, Lifetime(1, 15 * MIB, 0, 5)]).reserved_bytes == 32 * MIB


def test_invalid_requests() -> None:
    allocator = allocated(1)
    with pytest.raises(InvalidRequest, match="request 7 is freed, but is not in use"):
        allocator.free(7)
    for request, size in ((0, 1), (1, -1)):
        with pytest.raises(InvalidRequest, match=f"request {request} of {size} bytes"):
            allocator.allocate(request, size)


@st.composite
def requests(draw: st.DrawFn) -> list[tuple[int, int]]:
    """(request, bytes), or (request, −1) where it is freed; every pool and rounding occurs."""
    rng = random.Random(draw(st.integers(0, 10**9)))
    used: list[int] = []
    found = []
    for request in range(draw(st.integers(1, 120))):
        if used and rng.random() < 0.45:
            found.append((used.pop(rng.randrange(len(used))), -1))
        else:
            used.append(request)
            found.append((request, rng.randint(0, rng.choice((2 * KIB, MIB, 2 * MIB, 12 * MIB, 50 * MIB)))))
    return found


@settings(options, max_examples=200)
@given(sequence=requests())
def test_blocks_hold_their_requests_and_never_overlap(sequence: list[tuple[int, int]]) -> None:
    allocator = CachingAllocator()
    live: dict[int, int] = {}
    most = reserved = 0
    for request, size in sequence:
        if size < 0:
            if live.pop(request):
                allocator.free(request)
        else:
            live[request] = size
            allocator.allocate(request, size)
        blocks = allocator.blocks
        assert blocks.keys() == {r for r, held in live.items() if held}
        assert all(live[r] <= held and held % 512 == 0 for r, (_, held) in blocks.items())
        assert all(a + n <= b for (a, n), (b, _) in pairwise(sorted(blocks.values())))
        most = max(most, sum(held for _, held in blocks.values()))
        usage = allocator.usage
        assert usage.allocated_bytes == most <= usage.reserved_bytes
        assert reserved <= usage.reserved_bytes and usage.reserved_bytes % (2 * MIB) == 0
        assert 0.0 <= usage.fragmentation < 1.0
        reserved = usage.reserved_bytes


@settings(options, max_examples=100)
@given(graph=graphs(most=10))
def test_an_order_needs_no_more_than_is_reserved(graph: OrderGraph) -> None:
    order = graph.working
    usage = replay_lifetimes(order_lifetimes(graph, order))
    assert peak_bytes(graph, order) <= usage.allocated_bytes <= usage.reserved_bytes


@settings(options, max_examples=100)
@given(size=st.sampled_from((1, 3 * KIB, MIB, MIB + 1, 7 * MIB, 13 * MIB)), order=st.permutations(range(30)))
def test_what_is_split_merges_again_in_whatever_order_it_is_freed(size: int, order: list[int]) -> None:
    allocator = allocated(*[size] * 30)
    before = allocator.usage.reserved_bytes, sorted(allocator.blocks.values())
    for request in order:
        allocator.free(request)
    for request in range(30):
        allocator.allocate(request, size)
    assert (allocator.usage.reserved_bytes, sorted(allocator.blocks.values())) == before

"""The two exact searches: what they find, what they prove, and parts that are apart in time."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from layout_problems import check, cut_rectangle, optimum, random_lifetimes

from monet.planner.layout import Layout, Lifetime, exact_search
from monet.planner.layout.canonical_search import CanonicalSearch
from monet.planner.layout.exact_search import ExactSearch
from monet.planner.layout.lifetimes import pieces_of
from monet.planner.layout.methods import stacked
from monet.planner.layout.search_thread import FOUND, LIMIT, NONE
from monet.planner.layout.valley_search import STYLES, ValleySearch, luby

pytestmark = pytest.mark.skipif(not exact_search.available(), reason="no C++ compiler")


def plain_lifetimes(rng: random.Random, count: int) -> list[Lifetime]:
    """Few different ticks and sizes: twins, equal lifetimes and level tops are frequent."""
    return [Lifetime(n, rng.randint(1, 4), b := rng.randint(0, 4), b + rng.randint(1, 4)) for n in range(count)]


@pytest.mark.parametrize("seed", range(60))
def test_the_valley_search_says_no_only_where_there_is_none(seed: int) -> None:
    """In every style; the second half in units that do not fit 32 bits."""
    rng = random.Random(seed)
    lifetimes = plain_lifetimes(rng, rng.randint(1, 6))
    least, unit = optimum(lifetimes), 1 if seed < 30 else 1 << 40
    lifetimes = [Lifetime(x.id, x.bytes * unit, x.begin, x.end) for x in lifetimes]
    search = ValleySearch(pieces_of(lifetimes, 1))
    for height in (least * unit - 1, least * unit, (least + 1) * unit):
        for result, offsets, nodes in itertools.islice(search.tries(height, 10**9), len(STYLES)):
            assert result == (FOUND if height >= least * unit else NONE) and 0 <= nodes < 10**5
            if offsets is not None:
                top = max(int(at) + x.bytes for at, x in zip(offsets, lifetimes, strict=True))
                assert top <= height
                check(lifetimes, Layout(tuple(map(int, offsets)), top, least * unit, ""), 1)


def test_restarts_are_short_mostly() -> None:
    assert list(itertools.islice(luby(), 15)) == [1, 1, 2, 1, 1, 2, 4, 1, 1, 2, 1, 1, 2, 4, 8]


@pytest.mark.parametrize("seed", [3, 4, 5, 7])
@pytest.mark.sampled(2)
def test_the_valley_search_finds_what_the_canonical_search_does_not(seed: int) -> None:
    """Perfect packings of 300 buffers; the canonical search takes longer here than the valley search."""
    lifetimes = cut_rectangle(random.Random(seed), 300)
    pieces = pieces_of(lifetimes, 1)
    height = pieces.bound()
    assert height == 1024
    found = next(o for result, o, _ in ValleySearch(pieces).tries(height, 60_000) if result == FOUND)
    assert found is not None
    check(lifetimes, Layout(tuple(map(int, found)), height, height, ""), 1)
    assert all(result == LIMIT for result, _, _ in CanonicalSearch(pieces).tries(height, 24_000))


def test_parts_are_apart_in_time() -> None:
    rng = random.Random(0)
    for _ in range(50):
        lifetimes = [Lifetime(x.id, x.bytes, x.begin + 5 * rng.randint(0, 8), 0) for x in random_lifetimes(rng, 12)]
        lifetimes = [Lifetime(x.id, x.bytes, x.begin, x.begin + rng.randint(1, 6)) for x in lifetimes]
        found = pieces_of(lifetimes, 1).parts()
        assert sorted(np.concatenate(found).tolist()) == list(range(12))
        spans = []
        for part in found:
            lives = [lifetimes[n] for n in part]
            spans.append((min(x.begin for x in lives), max(x.end for x in lives)))
            # one part has no point of time that nothing crosses
            ticks = set().union(*(set(range(x.begin + 1, x.end)) for x in lives))
            assert ticks == set(range(spans[-1][0] + 1, spans[-1][1]))
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(sorted(spans)))


def test_a_part_keeps_gaps_and_given_offsets() -> None:
    lifetimes = [Lifetime(0, 8, 10, 19, gaps=((12, 14),)), Lifetime(1, 4, 0, 3), Lifetime(2, 2, 12, 14, offset=6)]
    pieces = pieces_of(lifetimes, 1)
    late, early = pieces.parts()
    assert (late.tolist(), early.tolist()) == ([0, 2], [1])
    part = pieces.taken(late)
    assert part.begin.tolist() == [10, 14, 12] and part.end.tolist() == [12, 19, 14]
    assert part.size.tolist() == [8, 2] and part.fixed_at.tolist() == [-1, 6] and part.first.tolist() == [0, 2, 3]


def test_each_part_is_searched_until_all_are_low() -> None:
    """Two perfect packings, one after the other, and a part that is low enough from the start."""
    lifetimes: list[Lifetime] = []
    for n, seed in enumerate((0, 1)):
        for x in cut_rectangle(random.Random(seed), 60):
            lifetimes.append(Lifetime(len(lifetimes), x.bytes, x.begin + 5000 * n, x.end + 5000 * n))
    lifetimes.append(Lifetime(len(lifetimes), 5, 20_000, 20_001))
    pieces = pieces_of(lifetimes, 1)
    search = ExactSearch(pieces, stacked(pieces), nodes_left=1e9)
    assert len(pieces.parts()) >= 3
    assert search.ask(1023, 10) == NONE
    while search.ask(1024, 10_000) == LIMIT:
        pass
    assert search.height == 1024
    check(lifetimes, Layout(tuple(map(int, search.offsets)), search.height, 1024, ""), 1)

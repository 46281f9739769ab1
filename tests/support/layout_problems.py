"""Small layout problems, the least arena by exhaustion, and a check that shares nothing with what it checks."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from monet.planner.layout import Layout, Lifetime
from monet.planner.layout.load import Integers, load_over_time


def check(lifetimes: Sequence[Lifetime], found: Layout, alignment: int = 64) -> None:
    """By pairs and by ticks; nothing of this is shared with the layout."""
    assert len(found.offsets) == len(lifetimes)
    assert all(type(offset) is int and offset >= 0 and offset % alignment == 0 for offset in found.offsets)
    begin, end, size = (np.array([getattr(x, name) for x in lifetimes]) for name in ("begin", "end", "bytes"))
    low = np.array(found.offsets)
    for n in range(len(lifetimes)):
        same_tick = (begin[n + 1 :] < end[n]) & (end[n + 1 :] > begin[n])
        same_byte = (low[n + 1 :] < low[n] + size[n]) & (low[n + 1 :] + size[n + 1 :] > low[n])
        for other in (np.flatnonzero(same_tick & same_byte) + n + 1).tolist():
            assert not alive(lifetimes[n]) & alive(lifetimes[other]), f"buffers {n} and {other}"
        assert lifetimes[n].offset in (None, found.offsets[n])
    aligned = -(-size // alignment) * alignment
    load: Counter[int] = Counter()
    for life, bytes_ in zip(lifetimes, aligned.tolist(), strict=True):
        if len(lifetimes) < 100:
            load.update(dict.fromkeys(alive(life), bytes_))
    assert max(load.values(), default=0) <= found.bound_bytes <= found.arena_bytes
    assert found.arena_bytes == max((low + aligned).tolist(), default=0)


def max_load(begin: Integers, end: Integers, size: Integers) -> int:
    """The largest load of any tick, in the unit of ``size``; 0 without buffers."""
    return int(load_over_time(begin, end, size)[1].max(initial=0))


def alive(life: Lifetime) -> set[int]:
    """The ticks in which its bytes are in use."""
    return set(range(life.begin, life.end)).difference(*(range(*gap) for gap in life.gaps))


def optimum(lifetimes: Sequence[Lifetime]) -> int:
    """The least arena: some order of lowest-offset placement makes it (any layout can be pushed down)."""
    given = [(life, life.offset) for life in lifetimes if life.offset is not None]
    least = sum(life.bytes + (life.offset or 0) for life in lifetimes)
    for order in itertools.permutations([life for life in lifetimes if life.offset is None]):
        placed: list[tuple[Lifetime, int]] = list(given)
        for life in order:
            others = [(x, low) for x, low in placed if alive(x) & alive(life)]
            candidates = [0, *(low + x.bytes for x, low in others)]
            low = min(c for c in candidates if all(c >= o + x.bytes or c + life.bytes <= o for x, o in others))
            placed.append((life, low))
        least = min(least, max(low + life.bytes for life, low in placed))
    return least


def random_lifetimes(rng: random.Random, count: int) -> list[Lifetime]:
    """With gaps, and with offsets that are given where they do not overlap."""
    lifetimes: list[Lifetime] = []
    for n in range(count):
        begin = rng.randint(0, 8)
        end = begin + rng.randint(1, 7)
        gaps = ((begin + 1, begin + 2),) if end - begin > 2 and rng.random() < 0.3 else ()
        life = Lifetime(n, rng.randint(1, 9), begin, end, gaps)
        if rng.random() < 0.2:
            at = rng.randint(0, 12)
            free = all(
                x.offset is None
                or x.offset >= at + life.bytes
                or x.offset + x.bytes <= at
                or not alive(x) & alive(life)
                for x in lifetimes
            )
            life = replace(life, offset=at) if free else life
        lifetimes.append(life)
    return lifetimes


def endless_lifetimes() -> list[Lifetime]:
    """On which the search neither ends nor, for a long time, meets the bound."""
    rng = random.Random(2)
    return [
        Lifetime(n, rng.randint(10**5, 10**6), begin := rng.randint(0, 99), begin + rng.randint(5, 50))
        for n in range(600)
    ]

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


def cut_rectangle(rng: random.Random, count: int, height: int = 1024, ticks: int = 4096) -> list[Lifetime]:
    """``count`` or up to three more buffers that fill a rectangle without a gap: cut in two, or in five as a pinwheel,
    which no straight cut divides, the larger ones more often."""
    rectangles = [(0, ticks, 0, height)]
    while len(rectangles) < count:
        n = rng.choices(range(len(rectangles)), [(b - a) * (d - c) for a, b, c, d in rectangles])[0]
        a, b, c, d = rectangles[n]
        if b - a < 12 or d - c < 12:
            continue
        if rng.random() < 0.2:
            x, y = rng.randint(a + 2, b - 5), rng.randint(c + 2, d - 5)
            u, v = rng.randint(x + 2, b - 2), rng.randint(y + 2, d - 2)
            new = [(a, u, c, y), (u, b, c, v), (x, b, v, d), (a, x, y, d), (x, u, y, v)]
        elif rng.random() < 0.5:
            y = rng.randint(c + 3, d - 3)
            new = [(a, b, c, y), (a, b, y, d)]
        else:
            x = rng.randint(a + 3, b - 3)
            new = [(a, x, c, d), (x, b, c, d)]
        rectangles[n : n + 1] = new
    rng.shuffle(rectangles)
    return [Lifetime(n, d - c, a, b) for n, (a, b, c, d) in enumerate(rectangles)]

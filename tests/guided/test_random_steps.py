"""Random steps over a profile-guided arena: whatever a step does, no two blocks that are held share a byte.

Every block is filled with its own number when it is made and read when it is freed; blocks pass from step to step and
are freed by other threads; steps differ from the recorded one in every way that Python can.
"""

from __future__ import annotations

import itertools
import random
import threading

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

import monet
from monet.api.guided import ProfileGuidedArena
from monet.native.allocator import available, live_bytes

pytestmark = pytest.mark.skipif(not available(), reason="there is no C++ compiler")


class Blocks:
    """Blocks that are held, each with the number that all of its elements should have."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.held: dict[int, Tensor] = {}
        self.numbers = itertools.count(1 + (seed << 20))

    def make(self, size: int) -> None:
        number = next(self.numbers)
        self.held[number] = torch.full((size,), number, dtype=torch.int64)

    def check(self) -> None:
        for number, block in self.held.items():
            assert bool((block == number).all()), f"block {number} was overwritten"
        spans = sorted((b.data_ptr(), b.data_ptr() + b.numel() * 8) for b in self.held.values() if b.numel())
        assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(spans)), "two blocks share memory"

    def free(self, number: int) -> None:
        block = self.held.pop(number)
        assert bool((block == number).all()), f"block {number} was overwritten"

    def free_some(self, share: float) -> None:
        for number in list(self.held):
            if self.random.random() < share:
                self.free(number)

    def free_elsewhere(self, share: float) -> None:
        thread = threading.Thread(target=self.free_some, args=(share,))
        thread.start()
        thread.join()


def recorded(blocks: Blocks, sizes: list[int], variation: float) -> None:
    """A step of requests of these sizes, of which a share is left out, doubled, larger, smaller, or freed elsewhere."""
    chance = blocks.random
    for size in sizes:
        roll = chance.random()
        if roll < variation:
            change = chance.choice(("out", "more", "larger", "smaller", "raise"))
            if change == "out":
                continue
            if change == "more":
                blocks.make(chance.choice((1, size, 3 * size)))
            if change == "larger":
                size = int(size * chance.uniform(1, 3)) + 1
            if change == "smaller":
                size = max(1, int(size * chance.random()))
            if change == "raise" and chance.random() < 0.1:
                raise ZeroDivisionError
        blocks.make(size)
        if chance.random() < 0.6:
            (blocks.free_elsewhere if chance.random() < 0.05 else blocks.free_some)(0.3)


def run(arena: ProfileGuidedArena, seed: int, sizes: list[int], variation: float, steps: int) -> None:
    blocks = Blocks(seed)
    for number in range(steps):
        blocks.random.seed(seed if variation == 0 else seed * 1000 + number)
        try:
            with arena.step(key=number % 2 if variation > 0.2 else None):
                recorded(blocks, sizes, variation if number else 0.0)
                if variation == 0 or blocks.random.random() < 0.5:
                    blocks.free_some(1.0)
        except ZeroDivisionError:
            pass
        blocks.check()
    blocks.free_some(1.0)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 2000),
    sizes=st.lists(st.sampled_from([1, 7, 8, 9, 64, 100, 1000, 5000]), min_size=1, max_size=60),
    variation=st.sampled_from([0.0, 0.02, 0.1, 0.3, 0.8]),
)
def test_no_two_blocks_share_a_byte(seed: int, sizes: list[int], variation: float) -> None:
    before = live_bytes()
    arena = monet.profile_guided(layout_s=0.05)
    run(arena, seed, sizes, variation, 8)
    report = arena.report()
    assert report.requests == report.served + report.moved + report.unplaced + report.missed
    if variation == 0:
        assert report.missed == report.moved == 0 and report.plans == 1
    del arena
    assert live_bytes() == before


def test_threads_that_free_each_others_blocks() -> None:
    """Four threads, each with an arena, put blocks into one pool and free those of others meanwhile."""
    pool: list[tuple[int, Tensor]] = []
    lock, failures = threading.Lock(), []

    def work(which: int) -> None:
        chance, arena = random.Random(which), monet.profile_guided(layout_s=0.05)
        try:
            for step in range(40):
                with arena.step():
                    for k in range(30):
                        number = which * 10**6 + step * 100 + k
                        block = torch.full((chance.choice((10, 100, 1000)),), number, dtype=torch.int64)
                        with lock:
                            pool.append((number, block))
                            del block
                            taken = [pool.pop(chance.randrange(len(pool))) for _ in range(min(len(pool), 1 + k % 2))]
                        if not all(bool((block == number).all()) for number, block in taken):
                            failures.append("a block was overwritten")
                        del taken
        except BaseException as error:
            failures.append(repr(error))

    threads = [threading.Thread(target=work, args=(which,)) for which in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert all(bool((block == number).all()) for number, block in pool)

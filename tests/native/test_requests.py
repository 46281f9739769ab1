"""Requests of a step that are not as planned: each is a miss, or finds the place of the planned one that it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
import torch

from monet.native import allocator

Planned = Sequence[tuple[int, int | None]]


class Step:
    """One step of an arena, asked for ``planned``; ``leaves``: as in ``Arena``."""

    def __init__(self, planned: Planned, leaves: Sequence[int] = ()) -> None:
        size = max(offset + count for count, offset in planned if offset is not None)
        self.arena = allocator.Arena([planned], size, leaves=[leaves])
        self.arena.map()
        self.base = int(allocator.installed().monet_arena_base(self.arena.handle))
        self.arena.enter(0)

    def ask(self, count: int) -> torch.Tensor:
        return torch.empty(count, dtype=torch.uint8)

    def where(self, *tensors: torch.Tensor) -> list[int | None]:
        """Offsets; None outside of the arena."""
        return [t.data_ptr() - self.base if self.arena.contains(t.data_ptr()) else None for t in tensors]

    @property
    def misses(self) -> int:
        return self.arena.statistics().misses


@pytest.fixture(autouse=True)
def _out_of_step() -> Iterator[None]:
    yield
    allocator.installed().monet_leave()


PLANNED = [(1000, 0), (2000, 1024), (3000, 4096), (2000, 8192)]


def test_as_planned() -> None:
    step = Step(PLANNED)
    assert step.where(*[step.ask(count) for count, _ in PLANNED]) == [0, 1024, 4096, 8192]
    assert step.misses == 0


@pytest.mark.parametrize("position", range(5))
def test_a_request_too_many_uses_up_no_planned_one(position: int) -> None:
    step = Step(PLANNED)
    sizes = [count for count, _ in PLANNED]
    sizes.insert(position, 6272)
    found = step.where(*[step.ask(count) for count in sizes])
    assert found.pop(position) is None
    assert found == [0, 1024, 4096, 8192]
    statistics = step.arena.statistics()
    assert (statistics.misses, statistics.served) == (1, 4)
    assert statistics.first_miss == (0, position, 6272, PLANNED[position][0] if position < 4 else -1)


@pytest.mark.parametrize("position", range(4))
def test_a_request_that_does_not_come_keeps_none_from_its_place(position: int) -> None:
    step = Step(PLANNED)
    wanted = [*PLANNED[:position], *PLANNED[position + 1 :]]
    if position == 1:  # the other one of 2000 bytes is taken for it
        wanted = [(1000, 0), (3000, 4096), (2000, 1024)]
    assert step.where(*[step.ask(count) for count, _ in wanted]) == [offset for _, offset in wanted]
    assert step.misses == 0


def test_one_of_another_size_in_its_place() -> None:
    step = Step(PLANNED)
    assert step.where(*map(step.ask, (1000, 2064, 3000, 2000))) == [0, None, 4096, 1024]
    assert step.misses == 1


def test_one_too_many_of_the_next_ones_size_takes_its_place_and_the_last_is_a_miss() -> None:
    step = Step([(1000, 0), (2000, 1024), (2000, 4096), (500, 8192)])
    assert step.where(*map(step.ask, (1000, 2000, 2000, 2000, 500))) == [0, 1024, 4096, None, 8192]
    assert step.misses == 1


def test_one_that_comes_ahead_leaves_the_others_theirs() -> None:
    step = Step(PLANNED)
    assert step.where(*map(step.ask, (3000, 3000, 1000, 2000, 2000))) == [4096, None, 0, 1024, 8192]
    assert step.misses == 1


def test_a_place_that_is_still_held_is_given_to_nobody() -> None:
    """The plan has the second where the first was; a request of its size comes before that is freed."""
    step = Step([(1000, 0), (2000, 0), (2000, 4096)])
    first = step.ask(1000)
    early, later = step.ask(2000), step.ask(2000)
    assert step.where(first, early, later) == [0, 4096, None]
    assert step.misses == 1
    del first
    assert step.where(step.ask(2000)) == [0]
    assert step.misses == 1


def test_what_pytorch_serves_has_no_place() -> None:
    step = Step([(1000, 0), (2000, None), (3000, 1024)])
    assert step.where(*map(step.ask, (1000, 6272, 2000, 3000))) == [0, None, None, 1024]
    assert step.misses == 1


def test_what_leaves_a_step_is_moved_away_from_and_freed_once() -> None:
    before = allocator.live_bytes()
    step = Step([(5000, 0), (9000, 8192)], leaves=[0, 1])
    kept, freed = step.ask(5000), step.ask(9000)
    kept.fill_(7)
    step.arena.leave()
    del freed
    assert step.arena.ready() == 8192, "whole pages of what is held"
    assert not step.arena.contains(kept.data_ptr()) and bool((kept == 7).all())
    assert step.arena.ready() == 0
    del kept
    step.arena.close()
    assert allocator.live_bytes() == before


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="no oneDNN")
def test_a_temporary_of_onednns_may_get_the_place_of_what_leaves_the_step() -> None:
    """It asks for an address, without anything else that says how to free it."""
    x, weight = torch.randn(2, 8, 20, 20), torch.randn(8, 8, 3, 3)
    arguments = (torch.randn(2, 8, 18, 18), x, weight, [8], [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True] * 3)
    with allocator.Recording() as recording:
        wanted = torch.ops.aten.convolution_backward.default(*arguments)
    planned, size = [], 0
    for event in recording.events:
        if event.bytes is not None:
            planned.append((event.bytes, size))
            size += -(-event.bytes // 64) * 64
    assert len(planned) > len(wanted)
    step = Step(planned, leaves=range(len(planned)))
    found = torch.ops.aten.convolution_backward.default(*arguments)
    step.arena.leave()
    assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))
    assert step.misses == 0
    assert step.arena.ready() > 0, "results are held, temporaries are not"
    del found
    assert step.arena.ready() == 0

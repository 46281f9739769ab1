"""What is learned of steps, and the places that follow."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from monet.api.guided.placement import PYTORCH, place
from monet.api.guided.requests import HELD, Requests


def requests(rows: list[tuple[int, int, int]]) -> Requests:
    return Requests(*(np.array(column, dtype=np.int64) for column in zip(*rows, strict=True)))


def test_another_step_widens_what_is_known() -> None:
    first = requests([(100, 0, 3), (50, 1, 4), (70, 2, 5)])
    second = requests([(90, 0, 5), (60, 1, HELD), (70, 2, 4)])
    both = first.merged(second)
    assert both.equals(requests([(100, 0, 5), (60, 1, HELD), (70, 2, 5)]))
    assert both.merged(first).equals(both) and both.merged(second).equals(both)
    longer = requests([(1, 0, 1)] * 4)
    assert first.merged(longer) is longer and longer.merged(first) is longer


@given(st.lists(st.tuples(st.integers(1, 500), st.integers(0, 40), st.integers(1, 20), st.booleans()), max_size=30))
def test_places_of_blocks_that_live_together_are_apart(drawn: list[tuple[int, int, int, bool]]) -> None:
    rows = [(size, born, HELD if held else born + length) for size, born, length, held in drawn]
    known = requests(rows) if rows else Requests(*(np.empty(0, np.int64) for _ in range(3)))
    placed = place(known, 0.05)
    assert placed.arena_bytes >= placed.bound_bytes
    for i, (size, _, died) in enumerate(rows):
        offset = int(placed.offsets[i])
        assert (offset == PYTORCH) == (died == HELD)
        assert died == HELD or (offset % 64 == 0 and offset >= 0 and offset + size <= placed.arena_bytes)
    for (i, a), (j, b) in itertools.combinations(enumerate(rows), 2):
        if a[2] != HELD and b[2] != HELD and a[1] < b[2] and b[1] < a[2]:
            first, second = int(placed.offsets[i]), int(placed.offsets[j])
            assert first + a[0] <= second or second + b[0] <= first

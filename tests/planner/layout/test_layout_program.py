"""The integer program for location: against exhaustion, the exact search and its own definition."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layout_problems import alive, check, optimum, random_lifetimes

from monet.errors import SolverError
from monet.planner.layout import Lifetime, layout
from monet.planner.layout.lifetimes import pieces_of
from monet.planner.layout.program import MOST_PAIRS, LocationProgram, locate
from monet.planner.solvers.model import Model

seeds = st.integers(0, 10**6)


def stacked(lifetimes: list[Lifetime]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """A poor layout to start from: every buffer that may move above all others."""
    top = max((life.offset + life.bytes for life in lifetimes if life.offset is not None), default=0)
    offsets = []
    for life in lifetimes:
        offsets.append(top if life.offset is None else life.offset)
        top += life.bytes if life.offset is None else 0
    return np.array(offsets, np.int64)


@given(seeds)
@settings(max_examples=25, deadline=None, derandomize=True)
def test_it_finds_the_best_layout_and_proves_it(seed: int) -> None:
    """From a poor start, so that the program itself has to find it; with gaps and pins."""
    rng = random.Random(seed)
    lifetimes = random_lifetimes(rng, rng.randint(2, 6))
    pieces = pieces_of(lifetimes, 1)
    start = stacked(lifetimes)
    found = locate(pieces, start, least=pieces.bound())
    offsets = start if found.offsets is None else found.offsets
    height = int((offsets + pieces.size).max())
    assert height == optimum(lifetimes)
    assert height == max(found.bound, pieces.bound()) and not found.interrupted


@given(seeds)
@settings(max_examples=25, deadline=None, derandomize=True)
def test_it_agrees_with_the_exact_search(seed: int) -> None:
    lifetimes = random_lifetimes(random.Random(seed), 9)
    found, searched = layout(lifetimes, alignment=1, method="program"), layout(lifetimes, alignment=1)
    check(lifetimes, found, 1)
    assert found.arena_bytes == found.bound_bytes == searched.arena_bytes == searched.bound_bytes


@given(seeds)
@settings(max_examples=25, deadline=None, derandomize=True)
def test_bytes_of_real_tensors(seed: int) -> None:
    """Gigabytes, and no common factor: the offsets are exact, the bound as good as the solver's tolerance."""
    rng = random.Random(seed)
    lifetimes = [
        Lifetime(life.id, life.bytes * rng.randint(10**7, 10**9) + 1, life.begin, life.end)
        for life in random_lifetimes(rng, 7)
    ]
    found, searched = layout(lifetimes, method="program"), layout(lifetimes)
    check(lifetimes, found)
    assert searched.arena_bytes == searched.bound_bytes
    assert found.bound_bytes <= searched.arena_bytes <= found.arena_bytes
    assert found.arena_bytes <= searched.arena_bytes * (1 + 1e-5)


@given(seeds)
@settings(max_examples=25, deadline=None, derandomize=True)
def test_one_binary_for_each_pair_that_lives_at_once(seed: int) -> None:
    lifetimes = random_lifetimes(random.Random(seed), 8)
    pieces = pieces_of(lifetimes, 1)
    start = stacked(lifetimes)
    height = int((start + pieces.size).max())
    program = LocationProgram(pieces, height + 1, pieces.bound())
    assert set(program.below) == {
        (i, j)
        for i in range(8)
        for j in range(i + 1, 8)
        if alive(lifetimes[i]) & alive(lifetimes[j]) and (lifetimes[i].offset is None or lifetimes[j].offset is None)
    }
    assert int(program.rows.arrays().integer.sum()) == len(program.below)


@given(seeds)
@settings(max_examples=25, deadline=None, derandomize=True)
def test_a_layout_is_a_point_and_a_point_a_layout(seed: int) -> None:
    """The start satisfies every row, and is read back no higher; two buffers swapped do not, unless they may."""
    rng = random.Random(seed)
    lifetimes = random_lifetimes(rng, 8)
    pieces = pieces_of(lifetimes, 1)
    start = stacked(lifetimes)
    program = LocationProgram(pieces, int((start + pieces.size).max()), 0)
    arrays = program.rows.arrays()
    model = Model(arrays, np.zeros(len(arrays.cost)), np.ones(len(arrays.cost)))
    x = program.point(start)
    assert x.min() >= 0 and x.max() <= 1 and model.violation(x) < 1e-9
    assert int((program.read(x) + pieces.size).max()) <= program.height(x)
    for pair, column in program.below.items():
        wrong = x.copy()
        wrong[column] = 1 - x[column]
        assert model.violation(wrong) >= 1 - 1e-9, f"{pair} overlap or are where they are not said to be"


@pytest.mark.parametrize("seed", [161, 374, 1367, 5514])
def test_where_highs_takes_its_own_point_for_an_error(seed: int) -> None:
    """ERGO-Code/HiGHS#2808, on these with version 1.15."""
    rng = random.Random(seed)
    lifetimes = random_lifetimes(rng, rng.randint(2, 6))
    pieces = pieces_of(lifetimes, 1)
    found = locate(pieces, stacked(lifetimes), least=pieces.bound())
    assert found.offsets is not None
    assert int((found.offsets + pieces.size).max()) == optimum(lifetimes) == max(found.bound, pieces.bound())


def test_capacity_is_enough() -> None:
    lifetimes = random_lifetimes(random.Random(0), 15)
    assert layout(lifetimes, alignment=1, method="program").arena_bytes == 35
    found = layout(lifetimes, alignment=1, method="program", capacity_bytes=36)
    check(lifetimes, found, 1)
    assert found.bound_bytes <= 35 <= found.arena_bytes <= 36


def test_too_many_pairs_are_refused() -> None:
    lifetimes = [Lifetime(n, 1 + n, 0, 2) for n in range(330)]
    pieces = pieces_of(lifetimes, 1)
    with pytest.raises(SolverError, match=rf"330 buffers .* 54285 pairs .* more than the {MOST_PAIRS}"):
        locate(pieces, stacked(lifetimes), least=1)


def test_an_unknown_solver() -> None:
    with pytest.raises(SolverError, match="no solver 'NOTHING' is installed"):
        layout(random_lifetimes(random.Random(0), 15), alignment=1, method="program", solver="NOTHING")


def test_another_solver() -> None:
    lifetimes = random_lifetimes(random.Random(1), 10)
    found = layout(lifetimes, alignment=1, method="program", solver="SCIPY", time_limit_s=60)
    check(lifetimes, found, 1)
    assert found.arena_bytes == found.bound_bytes == 28 and found.method == "program"


def test_without_time_the_start_is_the_answer() -> None:
    lifetimes = random_lifetimes(random.Random(2), 20)
    found = layout(lifetimes, alignment=1, method="program", time_limit_s=0)
    check(lifetimes, found, 1)
    assert not found.interrupted


def test_an_interrupted_solve_keeps_the_best_layout() -> None:
    lifetimes = random_lifetimes(random.Random(2), 20)
    calls: list[float | None] = []

    def progress(best: float | None, bound: float | None, gap: float | None, elapsed: float) -> None:
        calls.append(best)
        if len(calls) == 40:  # the heuristics are done after a dozen
            raise KeyboardInterrupt

    found = layout(lifetimes, alignment=1, method="program", progress=progress, time_limit_s=300)
    check(lifetimes, found, 1)
    assert found.interrupted and len(calls) <= 41  # and once more, with what it had
    assert found.arena_bytes <= min(best for best in calls if best is not None)

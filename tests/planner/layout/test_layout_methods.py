"""Every layout method alone, Ctrl-C, and what is told meanwhile."""

from __future__ import annotations

import _thread
import random
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from layout_problems import alive, check, cut_rectangle, endless_lifetimes, optimum, random_lifetimes

from monet.errors import ConfigError, SolverError
from monet.planner.layout import Layout, exact_search, heuristics, layout
from monet.planner.layout import methods as layout_methods
from monet.planner.layout.arena import METHODS, Lifetime
from monet.planner.layout.lifetimes import pieces_of
from monet.planner.order import Ordered

plain = st.lists(st.tuples(st.integers(1, 6), st.integers(0, 12), st.integers(1, 8)), min_size=1, max_size=25).map(
    lambda rows: [Lifetime(n, size, begin, begin + length) for n, (size, begin, length) in enumerate(rows)]
)


def long_lived_first(lifetimes: list[Lifetime]) -> list[int]:
    """Sekiyama et al. (2018) by ticks: the height of each, the lowest stretch of equal ones, the longest that fits."""
    first, last = min(x.begin for x in lifetimes), max(x.end for x in lifetimes)
    height = dict.fromkeys(range(first, last), 0)
    left = sorted(lifetimes, key=lambda x: (x.begin - x.end, -x.bytes))
    offsets: dict[int, int] = {}
    while left:
        low = min(height.values())
        start = min(tick for tick in height if height[tick] == low)
        stop = start
        while height.get(stop) == low:
            stop += 1
        pick = next((x for x in left if start <= x.begin and x.end <= stop), None)
        if pick is None:
            lifted = min(height[tick] for tick in (start - 1, stop) if tick in height)
            height.update(dict.fromkeys(range(start, stop), lifted))
            continue
        left.remove(pick)
        offsets[pick.id] = low
        height.update(dict.fromkeys(range(pick.begin, pick.end), low + pick.bytes))
    return [offsets[x.id] for x in lifetimes]


def first_fit_by_size(lifetimes: list[Lifetime]) -> list[int]:
    placed: list[tuple[Lifetime, int]] = []
    for life in sorted(lifetimes, key=lambda x: (-x.bytes, x.begin - x.end)):
        others = [(x, low) for x, low in placed if alive(x) & alive(life)]
        offset = 0
        while any(offset < low + x.bytes and low < offset + life.bytes for x, low in others):
            offset += 1
        placed.append((life, offset))
    by_id = {life.id: offset for life, offset in placed}
    return [by_id[life.id] for life in lifetimes]


@given(plain)
@settings(max_examples=100, deadline=None)
def test_the_heuristics_are_the_published_ones(lifetimes: list[Lifetime]) -> None:
    found = layout(lifetimes, alignment=1, method="long-lived-first")
    assert list(found.offsets) == long_lived_first(lifetimes) and found.method == "long-lived-first"
    check(lifetimes, found, 1)
    found = layout(lifetimes, alignment=1, method="first-fit-by-size")
    assert list(found.offsets) == first_fit_by_size(lifetimes) and found.method == "first-fit-by-size"
    check(lifetimes, found, 1)


@pytest.mark.parametrize("method", [m for m in METHODS if m != "long-lived-first"])
@given(seed=st.integers(0, 10**6))
@settings(max_examples=20, deadline=None)
def test_methods_respect_gaps_and_pins(method: str, seed: int) -> None:
    lifetimes = random_lifetimes(random.Random(seed), 6)
    found = layout(lifetimes, alignment=1, method=method)
    check(lifetimes, found, 1)
    if method != "first-fit-by-size":
        assert found.arena_bytes == found.bound_bytes == optimum(lifetimes)


def test_long_lived_first_is_for_plain_lifetimes() -> None:
    for odd in (Lifetime(0, 8, 0, 9, gaps=((3, 4),)), Lifetime(0, 8, 0, 9, offset=64)):
        with pytest.raises(ConfigError, match="long-lived-first knows no gaps and no given offsets"):
            layout([odd, Lifetime(1, 8, 0, 9)], method="long-lived-first")


def test_an_unknown_method_is_refused_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match="no layout method 'best'") as raised:
        layout([Lifetime(0, 8, 0, 9)], method="best")
    assert all(method in str(raised.value) for method in METHODS)


def test_the_search_alone_takes_nothing_from_heuristics(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object, **__: object) -> None:
        raise AssertionError("a heuristic was asked")

    for name in ("place_in_gaps", "skyline", "reinsert"):
        monkeypatch.setattr(layout_methods, name, none)
    lifetimes = random_lifetimes(random.Random(5), 12)
    found = layout(lifetimes, alignment=1, method="search")
    check(lifetimes, found, 1)
    assert found.arena_bytes == found.bound_bytes and found.method == "exact search"


def test_of_very_many_buffers_only_skylines_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object, **__: object) -> None:
        raise AssertionError("all buffers were compared with all others")

    lifetimes = random_lifetimes(random.Random(5), 40)
    plain = [Lifetime(one.id, one.bytes, one.begin, one.end) for one in lifetimes]
    monkeypatch.setattr(layout_methods, "_FITTED_BUFFERS", 39)
    with monkeypatch.context() as patched:
        patched.setattr(layout_methods, "place_in_gaps", none)
        found = layout(plain, alignment=1, capacity_bytes=0)
    check(plain, found, 1)
    assert found.method.startswith("skyline")
    check(lifetimes, layout(lifetimes, alignment=1, capacity_bytes=0), 1)  # with gaps and pins there is no other way


def test_what_the_search_alone_is_not_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SolverError, match="up to 5000 buffers, not 5001"):
        layout([Lifetime(n, 8, n, n + 2) for n in range(5001)], method="search")
    monkeypatch.setattr(exact_search, "available", lambda: False)
    with pytest.raises(SolverError, match=r"needs a C\+\+ compiler"):
        layout([Lifetime(0, 8, 0, 2)], method="search")


class Told:
    """A progress that keeps what it gets, and raises ``error`` at call number ``at``."""

    def __init__(self, at: int | None = None, error: type[BaseException] = KeyboardInterrupt) -> None:
        self.calls: list[tuple[float, float]] = []
        self._at, self._error = at, error

    def __call__(self, best: float | None, bound: float | None, gap: float | None, elapsed: float) -> None:
        assert best is not None and bound is not None and gap is not None and elapsed >= 0
        assert gap == pytest.approx(1 - bound / best)
        self.calls.append((best, bound))
        if len(self.calls) == self._at:
            raise self._error


@pytest.mark.parametrize("method", METHODS)
def test_what_is_told_gets_better_only_and_ends_with_the_result(method: str) -> None:
    rng = random.Random(3)
    lifetimes = [Lifetime(n, rng.randint(1, 9), b := rng.randint(0, 9), b + rng.randint(1, 6)) for n in range(15)]
    told = Told()
    found = layout(lifetimes, method=method, progress=told)
    best, bound = zip(*told.calls, strict=True)
    assert list(best) == sorted(best, reverse=True) and list(bound) == sorted(bound)
    assert (best[-1], bound[-1]) == (found.arena_bytes, found.bound_bytes)


@pytest.mark.parametrize("at", [1, 4, 30])
def test_interrupted_the_best_so_far_is_returned(at: int) -> None:
    """In the first heuristic, in a later one, and while the exact search runs."""
    lifetimes, told = endless_lifetimes(), Told(at)
    found = layout(lifetimes, progress=told, time_limit_s=300)
    check(lifetimes, found)
    assert found.interrupted and len(told.calls) == at
    assert found.arena_bytes == told.calls[-1][0] > found.bound_bytes


def no_search_runs() -> bool:
    """One that has been told to stop may be on its way out."""
    left = [thread for thread in threading.enumerate() if thread.name == "layout search"]
    for thread in left:
        thread.join(1)
    return not any(thread.is_alive() for thread in left)


@pytest.mark.usefixtures("default_interrupts")
@pytest.mark.parametrize("method", ["auto", "search"])
def test_ctrl_c_stops_the_search(method: str) -> None:
    lifetimes, told = endless_lifetimes(), Told()
    begun = threading.Event()

    def progress(best: float | None, bound: float | None, gap: float | None, elapsed: float) -> None:
        told(best, bound, gap, elapsed)
        if len(told.calls) == 30:
            begun.set()

    def interrupt() -> None:
        assert begun.wait(60)
        _thread.interrupt_main()

    thread = threading.Thread(target=interrupt)
    thread.start()
    found = layout(lifetimes, method=method, progress=progress, time_limit_s=300)
    thread.join()
    check(lifetimes, found)
    assert found.interrupted and len(told.calls) >= 30
    assert no_search_runs()


def test_other_errors_of_progress_end_the_work() -> None:
    with pytest.raises(ZeroDivisionError):
        layout(endless_lifetimes(), progress=Told(30, ZeroDivisionError), time_limit_s=300)
    assert no_search_runs()


def test_interrupted_before_there_is_a_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(layout_methods, "skyline", interrupted)
    with pytest.raises(KeyboardInterrupt):
        layout([Lifetime(0, 8, 0, 9)])


def test_a_plan_is_not_made_of_an_interrupted_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    """The step's layout stops at the budget: what is interrupted does not fit."""
    from monet.pipeline import placement
    from monet.planner.solution import Runs

    class Unrolled:
        buffers = ()

    class Lowered:
        carried = frozenset[str]()

        class problem:
            fixed_bytes = 0

        class catalogue:
            class graph:
                device = torch.device("cpu")

    def answer(*_: object, **__: object) -> Layout:
        return Layout((), 0, 0, "", interrupted=True)

    monkeypatch.setattr(placement, "calls", lambda *_: ())
    monkeypatch.setattr(placement, "reorder", lambda *_, **__: ((), Ordered((), 0, 0, "")))
    monkeypatch.setattr(placement, "unroll", lambda *_: Unrolled)
    monkeypatch.setattr(placement._Arena, "load_bytes", lambda *_: 0)
    monkeypatch.setattr(placement, "layout", answer)
    with pytest.raises(KeyboardInterrupt):
        placement.placement(Runs((), ()), Lowered, 10)  # type: ignore[arg-type]


@pytest.mark.skipif(not exact_search.available(), reason="the exact search needs a C++ compiler")
def test_buffers_of_the_peaks_are_placed_before_others() -> None:
    """Tensors that leave no gap, and many small ones above them, which an exact search of all would begin with."""
    rng = random.Random(1)
    large = [replace(one, bytes=1000 * one.bytes) for one in cut_rectangle(rng, 140, 2048)]
    small = [Lifetime(1000 + n, rng.randint(1, 900), begin := rng.randrange(4000), begin + 40) for n in range(900)]
    lifetimes = [*large, *small]
    heuristics = layout(lifetimes, alignment=1, capacity_bytes=1 << 50)
    capacity = int(1.005 * heuristics.bound_bytes)
    found = layout(lifetimes, alignment=1, capacity_bytes=capacity)
    check(lifetimes, found, 1)
    assert found.method == "peaks first"
    assert found.arena_bytes <= capacity < 1.1 * capacity < heuristics.arena_bytes


@pytest.mark.skipif(heuristics.build_gaps() is None, reason="without a C++ compiler there is one way alone")
@pytest.mark.parametrize("seed", range(20))
def test_gaps_are_found_alike_with_and_without_a_compiler(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gaps in lifetimes and given offsets included."""
    rng = random.Random(seed)
    pieces = pieces_of(random_lifetimes(rng, 200), 1)
    order = list(range(200))
    rng.shuffle(order)

    def placed(smallest_gap: bool, limit: int | None = None) -> list[int] | None:
        offsets = heuristics.place_in_gaps(order, pieces, smallest_gap=smallest_gap, limit=limit)
        return None if offsets is None else offsets.tolist()

    def heights() -> list[list[int] | None]:
        first, best = placed(False), placed(True)
        assert first is not None and best is not None
        top = int((np.array(first) + pieces.size).max())
        return [first, best, placed(False, top), placed(False, top - 1)]

    compiled = heights()
    assert compiled[2] == compiled[0] and compiled[3] is None
    assert heuristics.place_in_gaps(order, pieces, smallest_gap=False, deadline=0.0) is None
    monkeypatch.setattr(heuristics, "build_gaps", lambda: None)
    assert heights() == compiled

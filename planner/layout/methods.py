"""The ways to lay out: single methods, and ``auto``, which takes heuristics, exact search and reinsertion in turn.

A method gets a ``Task`` and yields one ``Attempt`` after another; the caller decides when that is enough.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from monet.errors import ConfigError, SolverError
from monet.planner.layout import exact_search
from monet.planner.layout.heuristics import place_in_gaps, skyline
from monet.planner.layout.load import Integers
from monet.planner.layout.pieces import Pieces
from monet.planner.layout.program import locate
from monet.planner.layout.reinsertion import reinsert
from monet.planner.solvers.finder import solver as find_solver

# Local improvement: so many tries, or so many placements of single buffers (about 3 s), whichever ends first.
_TRIES = 1000
_PLACEMENTS = 250_000
# First and best fit compare all buffers with all others (of so many in 2 to 3 s, in C++): of more, there are only
# skylines.
_FITTED_BUFFERS = 30_000
# Exact search: of up to so many buffers; and without a time limit, so many looks at a buffer (about 3 s).
_EXACT_BUFFERS = 5000
_EXACT_VISITS = 300_000_000
# Of the time or the looks that are left, at most: heuristics, exact search of the buffers of the peaks, and that of all
# buffers; the rest is for local improvement.
_HEURISTICS, _PEAKS, _EXACT = 0.25, 0.7, 0.5
# Buffers of the peaks, as parts of the bound: those alive where the load is at least so high, and of at least so many
# bytes. Tuned on layouts that searches with a limit of 25 s asked for (ResNet-50, EfficientNet, GoogLeNet, Swin, Llama
# at 50 and 40 % of eager's peak): 19 sets of 1,000 to 2,100 buffers, whose load is .05 to 13 % below what they had to
# fit in, 12 by less than 1 %. In 2 s, 17 fit; with the largest buffers in place of these, 8.
_PARTS_OF_BOUND = ((0.9, 0.001), (0.95, 0.001), (0.8, 0.001), (0.95, 0.0), (0.9, 0.0))


@dataclass(frozen=True, slots=True)
class Task:
    """What a method is asked for. Units are those of ``pieces``.

    ``bound``: no layout is lower. ``capacity``: a layout of this height is enough. ``deadline``: of
    ``time.monotonic()``, infinite where the answer must not depend on time; the exact search has ``visits`` looks at a
    buffer then. ``tick``: called now and then while a method works, with the best height and bound that it knows, 0
    for none; an error that it raises ends the method.
    """

    pieces: Pieces
    bound: int
    capacity: int
    deadline: float = float("inf")
    visits: float = _EXACT_VISITS
    solver: str = "HIGHS"
    tick: Callable[[int, int], None] = lambda height, bound: None

    @property
    def hopeless(self) -> bool:
        """No layout fits the capacity."""
        return self.capacity < self.bound

    @property
    def late(self) -> bool:
        """The deadline has passed."""
        return time.monotonic() >= self.deadline

    def part(self, share: float, least_s: float = 0.0) -> Task:
        """The same with this share of the time that is left, or ``least_s`` of it if that is more; where there is no
        limit, with this share of ``visits``."""
        now = time.monotonic()
        deadline = min(self.deadline, now + max(least_s, share * (self.deadline - now)))
        return replace(self, deadline=deadline, visits=share * self.visits)


@dataclass(frozen=True, slots=True)
class _Turn:
    """For each of the peaks: how long it is searched, beside the others; and whether for a layout that fits, or for one
    that comes half as near to that as the best."""

    weight: int
    fits: bool = True


# What a search of hundreds of buffers takes at least, with placing the others.
_LEAST_S = 0.06
# Short first: what finds a layout mostly finds it at once. What none finds should be close at least.
_TURNS = (_Turn(1), _Turn(3), _Turn(2, fits=False))


@dataclass(frozen=True, slots=True)
class Attempt:
    """A method's name, its offsets, and a bound that it has proven; a bound may come without offsets."""

    method: str
    offsets: Integers | None
    bound: int = 0


def auto(task: Task) -> Iterator[Attempt]:
    """The layout of each heuristic, the most promising first; where none is low enough, those of the exact search of
    the buffers of the peaks, of the exact search of all, and of local improvement."""
    orders = _orders(task.pieces)
    heights: dict[str, int] = {}
    best: Integers | None = None
    least, bound = -1, task.bound
    for attempt in _placements(task.part(_HEURISTICS), orders, heights):
        height = _height(task, attempt)
        if best is None or height < least:
            best, least = attempt.offsets, height
        yield attempt
    if task.hopeless or least <= task.capacity or task.late:
        return
    assert best is not None
    if len(task.pieces.size) <= _EXACT_BUFFERS and exact_search.available():
        for attempt in _peaks_first(task.part(_PEAKS), tuple(orders.values()), least):
            assert attempt.offsets is not None
            best, least = attempt.offsets, _height(task, attempt)
            yield attempt
        if least <= task.capacity or task.late:
            return
        for attempt in _lower_layouts(task.part(_EXACT), best):
            bound = max(bound, attempt.bound)
            least = least if attempt.offsets is None else _height(task, attempt)
            yield attempt
    if task.pieces.whole and bound <= task.capacity:
        yield from _improvements(task, orders, heights, least, bound)


def long_lived_first(task: Task) -> Iterator[Attempt]:
    """The heuristic of Sekiyama et al. (2018), as published: on the lowest segment of the skyline (of equals the
    earliest) goes the buffer of the longest lifetime that lies inside it (of equals the largest).

    It is for plain lifetimes. Raises ConfigError where a buffer has gaps or a given offset.
    """
    if not task.pieces.whole:
        raise ConfigError("the method long-lived-first knows no gaps and no given offsets; choose another one")
    pieces = task.pieces
    yield Attempt("long-lived-first", skyline(_orders(pieces)["lifetime"], pieces.begin, pieces.end, pieces.size))


def first_fit_by_size(task: Task) -> Iterator[Attempt]:
    """Greedy by size: the largest first, of equals the longest-lived, each at the lowest offset that is free."""
    yield Attempt("first-fit-by-size", place_in_gaps(_orders(task.pieces)["size"], task.pieces, smallest_gap=False))


def search_layouts(task: Task) -> Iterator[Attempt]:
    """The exact search alone, from all buffers on top of each other.

    Raises SolverError where there are too many buffers, or there is no compiler to build the search.
    """
    count = len(task.pieces.size)
    if count > _EXACT_BUFFERS:
        raise SolverError(f"the exact search takes up to {_EXACT_BUFFERS} buffers, not {count}; take the method auto")
    if not exact_search.available():
        raise SolverError("the exact search needs a C++ compiler (set CXX, or install g++); take the method auto")
    offsets = stacked(task.pieces)
    yield Attempt("stacked", offsets)
    yield from _lower_layouts(task, offsets)


def program(task: Task) -> Iterator[Attempt]:
    """The integer program for location, from the best heuristic layout.

    Raises SolverError where there are too many pairs of buffers, or the solver is missing or fails.
    """
    find_solver(task.solver)  # an unknown solver is refused even where a heuristic meets the bound
    best: Integers | None = None
    least = 0
    for attempt in _placements(task, _orders(task.pieces), {}):
        height = _height(task, attempt)
        if best is None or height < least:
            best, least = attempt.offsets, height
        yield attempt
    if task.hopeless or least <= task.capacity or task.late:
        return
    assert best is not None
    located = locate(task.pieces, best, least=task.capacity, deadline=task.deadline, solver=task.solver, tick=task.tick)
    yield Attempt("program", located.offsets, located.bound)
    if located.interrupted:
        raise KeyboardInterrupt


@dataclass(frozen=True, slots=True)
class Method:
    """``attempts``: what the method makes of a task. ``about``: a line for the help."""

    attempts: Callable[[Task], Iterator[Attempt]]
    about: str


METHODS: Mapping[str, Method] = {
    "auto": Method(auto, "fast heuristics, then the exact search, then local improvement"),
    "long-lived-first": Method(long_lived_first, "the heuristic of Sekiyama et al. (2018), for plain lifetimes"),
    "first-fit-by-size": Method(first_fit_by_size, "the largest first, each at the lowest offset that is free"),
    "search": Method(search_layouts, "the exact search alone; needs a C++ compiler once"),
    "program": Method(program, "the integer program of Sekiyama et al. and MODeL, for dozens of buffers"),
}
"""By the names that ``--layout`` takes."""


def _height(task: Task, attempt: Attempt) -> int:
    assert attempt.offsets is not None
    return int((attempt.offsets + task.pieces.size).max())


def _orders(pieces: Pieces) -> dict[str, Integers]:
    """Buffers by several keys, the most urgent first; np.lexsort: the last key counts most, equals keep their order."""
    size, begin = pieces.size, pieces.begin[pieces.first[:-1]]
    length = pieces.per_buffer(np.add, pieces.end - pieces.begin)
    area = size.astype(np.float64) * length
    return {
        "lifetime": np.lexsort((-size, -length)),
        "size": np.lexsort((-length, -size)),
        "area": np.lexsort((-size, -area)),
        "begin": np.lexsort((-size, begin)),
    }


def _placements(task: Task, orders: dict[str, Integers], heights: dict[str, int]) -> Iterator[Attempt]:
    """The layout of one heuristic after another; adds the height of each skyline to ``heights``.

    The first is made whatever the time, so that there is a layout; the others until the deadline.
    """
    pieces, size = task.pieces, task.pieces.size
    if pieces.whole:
        for key in ("lifetime", "size", "area"):
            deadline = task.deadline if heights else float("inf")
            offsets = skyline(orders[key], pieces.begin, pieces.end, size, deadline=deadline)
            if offsets is None:
                return
            heights[key] = int((offsets + size).max())
            yield Attempt(f"skyline by {key}", offsets)
        if len(size) > _FITTED_BUFFERS:
            return
    least = min(heights.values(), default=None)
    for key, order in orders.items():
        for name, smallest_gap in (("first fit", False), ("best fit", True)):
            if least is not None and task.late:
                return
            limit = None if least is None else least - 1
            deadline = float("inf") if least is None else task.deadline
            lower = place_in_gaps(order, pieces, smallest_gap=smallest_gap, limit=limit, deadline=deadline)
            if lower is not None:
                least = int((lower + size).max())
                yield Attempt(f"{name} by {key}", lower)


def stacked(pieces: Pieces) -> Integers:
    """Buffers of no given offset, each on top of the one before it, and all of them above those of given offsets."""
    fixed = pieces.fixed_at >= 0
    tops = np.cumsum(np.where(fixed, 0, pieces.size)) + int((pieces.fixed_at + pieces.size)[fixed].max(initial=0))
    return np.where(fixed, pieces.fixed_at, tops - pieces.size)


def _lower_layouts(task: Task, offsets: Integers) -> Iterator[Attempt]:
    """Layouts lower than that of ``offsets``, and bounds, by the exact search."""
    pieces, bound = task.pieces, task.bound
    nodes = task.visits / len(pieces.size) if task.deadline == float("inf") else float("inf")
    search = exact_search.ExactSearch(pieces, offsets, nodes, task.deadline, lambda: task.tick(0, bound))
    for proven, lower in exact_search.lower_layouts(search, bound, task.capacity):
        bound = max(bound, proven)
        yield Attempt("proof" if lower is None else "exact search", lower, bound)


def _peaks_first(task: Task, orders: Sequence[Integers], least: int) -> Iterator[Attempt]:
    """Layouts lower than ``least``: those that the exact search finds of the buffers of the peaks alone, with the
    others in their gaps and on top. What is alive between the peaks, and small, hides from a search of all what
    matters."""
    peaks, capacity = _peaks(task), task.capacity
    turns = [(turn, peak) for turn in _TURNS for peak in peaks]
    left = sum(turn.weight for turn, _ in turns)
    for turn, peak in turns:
        part = task.part(turn.weight / left, _LEAST_S)
        left, task = left - turn.weight, replace(task, visits=task.visits - part.visits)
        part = replace(part, capacity=capacity if turn.fits else (capacity + least) // 2)
        for offsets in peak.layouts(part, orders, least):
            least = int((offsets + task.pieces.size).max())
            yield Attempt("peaks first", offsets)
            if least <= capacity:
                return
        if task.late:
            return


def _peaks(task: Task) -> list[_Peak]:
    """With each of ``_PARTS_OF_BOUND`` and all of given offsets, but those that are all buffers, next to none, or the
    same as others."""
    pieces, found = task.pieces, dict[bytes, _Peak]()
    crowd, given = pieces.crowd(), pieces.fixed_at >= 0
    for load, size in _PARTS_OF_BOUND:
        buffers = np.flatnonzero(given | ((crowd >= load * task.bound) & (pieces.size >= size * task.bound)))
        if 1 < len(buffers) < len(pieces.size):
            found.setdefault(buffers.tobytes(), _Peak(buffers, task))
    return list(found.values())


class _Peak:
    """Some buffers, and the exact search for layouts of them. ``extra``: by how much all buffers needed more."""

    def __init__(self, buffers: Integers, task: Task) -> None:
        pieces = task.pieces.taken(buffers)
        self._buffers, self._bound = buffers, pieces.bound()
        placed = place_in_gaps(_orders(pieces)["size"], pieces, smallest_gap=False)
        assert placed is not None
        self._search = exact_search.ExactSearch(pieces, placed, 0.0)
        self._extra = 0

    def layouts(self, turn: Task, orders: Sequence[Integers], least: int) -> Iterator[Integers]:
        """Offsets of all buffers, lower than ``least`` and then than those before. The search is for layouts of the
        turn's capacity, and of less by ``extra``. The next call goes on where this one ended."""
        search = self._search
        search.nodes_left = turn.visits / len(search.offsets) if turn.deadline == float("inf") else float("inf")
        search.deadline, search.tick = turn.deadline, lambda: turn.tick(0, turn.bound)
        while (aim := turn.capacity - self._extra) >= self._bound and not search.done():
            for proven, _ in exact_search.lower_layouts(search, self._bound, aim):
                self._bound = max(self._bound, proven)
            lowest = self._with_others(turn, orders) if search.height <= aim else None
            if lowest is None:
                return
            height = int((lowest + turn.pieces.size).max())
            self._extra = height - search.height
            if height < least:
                least = height
                yield lowest
            if height <= turn.capacity:
                return

    def _with_others(self, turn: Task, orders: Sequence[Integers]) -> Integers | None:
        """The lowest of one layout an order; None where the time is over."""
        fixed_at = turn.pieces.fixed_at.copy()
        fixed_at[self._buffers] = self._search.offsets
        pieces, lowest, limit = replace(turn.pieces, fixed_at=fixed_at), None, None
        for order in orders:
            offsets = place_in_gaps(order, pieces, smallest_gap=False, limit=limit, deadline=turn.deadline)
            if offsets is not None:
                lowest, limit = offsets, int((offsets + pieces.size).max()) - 1
        return lowest


def _improvements(
    task: Task, orders: dict[str, Integers], heights: dict[str, int], least: int, bound: int
) -> Iterator[Attempt]:
    """Reinsertion, from the order of the best skyline, and from that of long-lived-first, which goes furthest on hard
    sets.

    ``least``: the lowest layout so far, by any method.
    """
    begin, end, size = task.pieces.begin, task.pieces.end, task.pieces.size
    tries = min(_TRIES, _PLACEMENTS // len(size))
    starts = dict.fromkeys((min(heights, key=heights.__getitem__), "lifetime"))
    for key in starts:
        own = tries // len(starts)
        layouts = reinsert(orders[key], begin, end, size, bound=bound, tries=own, deadline=task.deadline)
        while least > task.capacity and not task.late:
            offsets = next(layouts, None)
            if offsets is None:
                break
            least = min(least, int((offsets + size).max()))
            yield Attempt(f"skyline by {key} + reinsertion", offsets)

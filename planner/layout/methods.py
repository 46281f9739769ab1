"""The ways to lay out, each alone and ``auto``, which is all of them but the program in turn.

A method gets a ``Task`` and yields what it finds, the caller decides when it is enough.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from monet.errors import ConfigError, SolverError
from monet.planner.layout import exact_search
from monet.planner.layout.heuristics import fit, skyline
from monet.planner.layout.load import Integers
from monet.planner.layout.pieces import Pieces
from monet.planner.layout.program import locate
from monet.planner.layout.reinsertion import improve
from monet.planner.solvers.finder import solver as find_solver

# Local improvement: so many tries, or so many placements of one buffer (about 3 s), whichever is less.
_TRIES = 1000
_PLACEMENTS = 250_000
# First and best fit compare all buffers with all others: up to so many of them (about 10 s), where there is a skyline.
_FITTED_BUFFERS = 30_000
# Exact search: problems of up to so many buffers; and without a time limit, so many buffers looked at (about 3 s).
_EXACT_BUFFERS = 5000
_EXACT_VISITS = 300_000_000


@dataclass(frozen=True, slots=True)
class Task:
    """What a method is asked. Units are those of ``pieces``.

    ``bound``: no layout is lower. ``capacity``: a layout of this height is enough. ``deadline``: of
    ``time.monotonic()``, infinite where the answer must not depend on time. ``tick``: called now and then by what
    takes long, with the best height and bound known there, 0 for what is not; what it raises ends the method.
    """

    pieces: Pieces
    bound: int
    capacity: int
    deadline: float = float("inf")
    solver: str = "HIGHS"
    tick: Callable[[int, int], None] = lambda height, bound: None

    @property
    def hopeless(self) -> bool:
        """No layout fits the capacity."""
        return self.capacity < self.bound


@dataclass(frozen=True, slots=True)
class Attempt:
    """A method's name, its offsets, and a bound that was proven on the way; a proof may come without offsets."""

    method: str
    offsets: Integers | None
    bound: int = 0


def auto(task: Task) -> Iterator[Attempt]:
    """What each heuristic makes, the most promising first; where none is low enough, the exact search and then the
    local improvement."""
    orders = _orders(task.pieces)
    heights: dict[str, int] = {}
    least, bound = -1, task.bound
    for attempt in _placements(task.pieces, orders, heights):
        height = _height(task, attempt)
        least = height if least < 0 else min(least, height)
        yield attempt
    if task.hopeless or least <= task.capacity:
        return
    if len(task.pieces.size) <= _EXACT_BUFFERS and exact_search.available():
        for attempt in _search(task, least):
            bound = max(bound, attempt.bound)
            least = least if attempt.offsets is None else _height(task, attempt)
            yield attempt
    if task.pieces.whole and bound <= task.capacity:
        yield from _improvements(task, orders, heights, least, bound)


def long_lived_first(task: Task) -> Iterator[Attempt]:
    """The heuristic of Sekiyama et al. (2018), as published: the lowest stretch of the skyline, the earliest of
    equals, takes the buffer with the longest lifetime of those that fit into it, the largest of equals.

    It is made for plain lifetimes. Raises ConfigError where a buffer has gaps or an offset that is given.
    """
    if not task.pieces.whole:
        raise ConfigError("the method long-lived-first knows no gaps and no given offsets; choose another one")
    pieces = task.pieces
    yield Attempt("long-lived-first", skyline(_orders(pieces)["lifetime"], pieces.begin, pieces.end, pieces.size))


def first_fit_by_size(task: Task) -> Iterator[Attempt]:
    """Greedy by size: the largest first, the longest-lived of equals, each at the lowest offset that is free."""
    yield Attempt("first-fit-by-size", fit(_orders(task.pieces)["size"], task.pieces, smallest_gap=False))


def search(task: Task) -> Iterator[Attempt]:
    """The exact search alone, from all buffers stacked up.

    Raises SolverError where there are too many buffers, or no compiler to build it.
    """
    count = len(task.pieces.size)
    if count > _EXACT_BUFFERS:
        raise SolverError(f"the exact search takes up to {_EXACT_BUFFERS} buffers, not {count}; take the method auto")
    if not exact_search.available():
        raise SolverError("the exact search needs a C++ compiler (set CXX, or install g++); take the method auto")
    stacked = Attempt("stacked", _stacked(task.pieces))
    yield stacked
    yield from _search(task, _height(task, stacked))


def program(task: Task) -> Iterator[Attempt]:
    """The integer program for location, from the best heuristic layout.

    Raises SolverError where it has too many pairs of buffers, or the solver is missing or fails.
    """
    find_solver(task.solver)  # an unknown one is said so whatever the heuristics find
    best: Integers | None = None
    least = 0
    for attempt in _placements(task.pieces, _orders(task.pieces), {}):
        height = _height(task, attempt)
        if best is None or height < least:
            best, least = attempt.offsets, height
        yield attempt
    if task.hopeless or least <= task.capacity:
        return
    assert best is not None
    found = locate(
        task.pieces, best, least=task.capacity, deadline=task.deadline, solver=task.solver, tick=task.tick
    )  # fmt: skip
    yield Attempt("program", found.offsets, found.bound)
    if found.interrupted:
        raise KeyboardInterrupt


METHODS: dict[str, Callable[[Task], Iterator[Attempt]]] = {
    "auto": auto,
    "long-lived-first": long_lived_first,
    "first-fit-by-size": first_fit_by_size,
    "search": search,
    "program": program,
}


def _height(task: Task, attempt: Attempt) -> int:
    assert attempt.offsets is not None
    return int((attempt.offsets + task.pieces.size).max())


def _orders(pieces: Pieces) -> dict[str, Integers]:
    """Buffers by several keys; np.lexsort: the last key counts most, and equals keep their order."""
    size, begin = pieces.size, pieces.begin[pieces.first[:-1]]
    length = pieces.per_buffer(np.add, pieces.end - pieces.begin)
    area = size.astype(np.float64) * length
    return {
        "lifetime": np.lexsort((-size, -length)),
        "size": np.lexsort((-length, -size)),
        "area": np.lexsort((-size, -area)),
        "begin": np.lexsort((-size, begin)),
    }


def _placements(pieces: Pieces, orders: dict[str, Integers], heights: dict[str, int]) -> Iterator[Attempt]:
    """One placement after another; ``heights`` gets those of the skyline."""
    size = pieces.size
    if pieces.whole:
        for key in ("lifetime", "size", "area"):
            offsets = skyline(orders[key], pieces.begin, pieces.end, size)
            heights[key] = int((offsets + size).max())
            yield Attempt(f"skyline by {key}", offsets)
        if len(size) > _FITTED_BUFFERS:
            return
    least = min(heights.values(), default=None)
    for key, order in orders.items():
        for name, smallest_gap in (("first fit", False), ("best fit", True)):
            limit = None if least is None else least - 1
            found = fit(order, pieces, smallest_gap=smallest_gap, limit=limit)
            if found is not None:
                least = int((found + size).max())
                yield Attempt(f"{name} by {key}", found)


def _stacked(pieces: Pieces) -> Integers:
    """Every buffer that may move above all before it and all that may not."""
    fixed = pieces.pinned >= 0
    tops = np.cumsum(np.where(fixed, 0, pieces.size)) + int((pieces.pinned + pieces.size)[fixed].max(initial=0))
    return np.where(fixed, pieces.pinned, tops - pieces.size)


def _search(task: Task, height: int) -> Iterator[Attempt]:
    """The exact search for layouts below ``height``."""
    pieces, bound = task.pieces, task.bound
    nodes = _EXACT_VISITS / len(pieces.size) if task.deadline == float("inf") else float("inf")
    asked = exact_search.CanonicalSearch(pieces, nodes, task.deadline, lambda: task.tick(0, bound))
    for proven, offsets in exact_search.exact(asked, bound, height, task.capacity):
        bound = max(bound, proven)
        yield Attempt("proof" if offsets is None else "canonical search", offsets, bound)


def _improvements(
    task: Task, orders: dict[str, Integers], heights: dict[str, int], least: int, bound: int
) -> Iterator[Attempt]:
    """Improves the best skyline, and long-lived-first, from which improvement goes furthest on hard sets.

    ``least``: the lowest layout so far, by any method.
    """
    begin, end, size = task.pieces.begin, task.pieces.end, task.pieces.size
    tries = min(_TRIES, _PLACEMENTS // len(size))
    starts = dict.fromkeys((min(heights, key=heights.__getitem__), "lifetime"))
    for key in starts:
        found = improve(orders[key], begin, end, size, bound=bound, tries=tries // len(starts))
        while least > task.capacity and time.monotonic() < task.deadline and (better := next(found, None)) is not None:
            least = min(least, int((better + size).max()))
            yield Attempt(f"skyline by {key} + reinsertion", better)

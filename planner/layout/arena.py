"""Layout: an offset in one arena for every buffer, and how far the arena is from the proven least size.

The problem is dynamic storage allocation: buffers are rectangles, [begin, end) in ticks by
[offset, offset + bytes), that may slide in offset only and must not intersect. NP-hard in the strong
sense, but training steps are kind: some heuristic is usually within a few thousandths of the max load.
So: fast heuristics, one after the other until one meets the bound; then an exact search that asks whether there is a
layout at the bound; then local improvement of the best. ``methods.py`` has each.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from monet.errors import ConfigError
from monet.planner.layout.lifetimes import InvalidLifetime, Lifetime, check, pieces_of
from monet.planner.layout.load import Integers
from monet.planner.layout.methods import METHODS as _METHODS
from monet.planner.layout.methods import Attempt, Task
from monet.planner.progress import Progress

__all__ = ["METHODS", "InvalidLifetime", "Layout", "Lifetime", "layout"]

_log = logging.getLogger(__name__)

METHODS: Mapping[str, str] = {name: method.about for name, method in _METHODS.items()}
"""By the names that ``--layout`` takes, with a line for the help."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where each buffer lies, in bytes from the start of the arena, in the order of the input.

    ``arena_bytes``: the end of the highest buffer, rounded up to the alignment. ``bound_bytes``: no
    layout with this alignment has a smaller arena: the largest sum of aligned bytes alive at a tick, or more where a
    search has proven more. ``method``: what made the layout. ``interrupted``: Ctrl-C ended the work.
    """

    offsets: tuple[int, ...]
    arena_bytes: int
    bound_bytes: int
    method: str
    interrupted: bool = False


def layout(
    lifetimes: Sequence[Lifetime],
    *,
    alignment: int = 64,
    capacity_bytes: int | None = None,
    time_limit_s: float | None = None,
    method: str = "auto",
    solver: str = "HIGHS",
    progress: Progress | None = None,
) -> Layout:
    """Give every buffer an offset, a multiple of ``alignment``, so that none alive at the same tick overlap.

    Returns the smallest arena of all that was tried. Trying ends at the bound, after ``time_limit_s`` seconds, or,
    without a limit, after a fixed number of tries: then the same input gives the same layout. With ``capacity_bytes``,
    it also ends once the arena fits, and once the bound shows that none can; the caller compares whether it does.
    One heuristic is made whatever the limit: 0.7 s for 20k buffers, 7 s for 200k. All of them take about 0.03 s for 1k
    buffers, 5 s for 20k, and 20 s for 200k, since only skylines are made above 30k; without a limit, search and
    improvement take about 6 s more.

    ``method``: one of ``METHODS``. ``auto`` is described above; ``long-lived-first`` and ``first-fit-by-size`` are one
    published heuristic each, ``search`` is the exact search without heuristics, and ``program`` the integer program of
    Sekiyama et al. (2018) and MODeL, from the best heuristic layout, by the solver called ``solver``.
    ``progress`` is called with (bytes, bound, gap, seconds); an error that it raises ends the work.

    Ctrl-C ends the work, too: the best layout so far is returned, as ``interrupted``.

    Raises:
        InvalidLifetime: (also a ValueError) a lifetime has begin >= end, no bytes or a negative number, its gaps or
            its offset make no sense, an id occurs twice, two buffers of given offsets overlap, or ``alignment`` < 1.
        ConfigError: there is no such method, or there are gaps or given offsets, and the method knows neither.
        SolverError: the problem is too large for the method, or the solver is missing or fails.
        KeyboardInterrupt: on Ctrl-C before there is any layout.
    """
    if method not in METHODS:
        raise ConfigError(f"there is no layout method {method!r}; choose one of {', '.join(METHODS)}")
    begun = time.monotonic()
    check(lifetimes, alignment)
    if not lifetimes:
        return Layout((), 0, 0, "empty")
    pieces, factor = pieces_of(lifetimes, alignment).reduced()
    unit = alignment * factor
    bound = pieces.bound()
    best = BestLayout(pieces.size, bound, unit, begun, progress)
    task = Task(
        pieces,
        bound,
        capacity=bound if capacity_bytes is None else capacity_bytes // unit,
        deadline=float("inf") if time_limit_s is None else begun + time_limit_s,
        solver=solver,
        tick=best.tell,
    )
    interrupted = False
    try:
        for attempt in _METHODS[method].attempts(task):
            if best.take(attempt):
                break
    except KeyboardInterrupt:
        if best.placement is None:
            raise
        interrupted = True
    lowest = best.placement
    assert lowest is not None, "every method begins with a layout"
    offsets = tuple(int(at) * unit for at in lowest.offsets)
    return Layout(offsets, lowest.height * unit, best.bound * unit, lowest.method, interrupted)


@dataclass(frozen=True, slots=True)
class Placement:
    """``offsets``, the ``height`` that they take, and the ``method`` that they are from."""

    offsets: Integers
    height: int
    method: str


@dataclass(slots=True)
class BestLayout:
    """The lowest placement so far and the best bound, in units of ``unit`` bytes; reports both to ``progress``.

    ``placement`` is replaced as a whole, so that an interrupt at any moment finds offsets with their own height.
    """

    size: Integers
    bound: int
    unit: int
    begun: float
    progress: Progress | None
    placement: Placement | None = None

    def take(self, attempt: Attempt) -> bool:
        """Takes what is better in ``attempt``, offsets and bound. True if no layout can be lower than the best."""
        self.bound = max(self.bound, attempt.bound)
        if attempt.offsets is not None:
            height = int((attempt.offsets + self.size).max())
            if self.placement is None or height < self.placement.height:
                self.placement = Placement(attempt.offsets, height, attempt.method)
                _log.debug("layout: %s: %.4f of the bound", attempt.method, height / self.bound)
        self.tell(0, 0)
        return self.placement is not None and self.placement.height <= self.bound

    def tell(self, height: int, bound: int) -> None:
        """Reports the better of our best and the caller's (0: the caller has none)."""
        if self.progress is None or self.placement is None:
            return
        best = float(min(height or self.placement.height, self.placement.height) * self.unit)
        least = float(max(bound, self.bound) * self.unit)
        self.progress(best, least, 1 - least / best, time.monotonic() - self.begun)

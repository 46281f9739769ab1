"""Layout: an offset in one arena for every buffer, and how far the arena is from the proven least size.

The problem is dynamic storage allocation: buffers are rectangles, [begin, end) in ticks by
[offset, offset + bytes), that may slide in offset only and must not intersect. NP-hard in the strong
sense, but training steps are kind: some heuristic is usually within a few thousandths of the max load.
So: a portfolio of fast heuristics, in a fixed order and until one meets the bound; then an exact search that asks
whether there is a layout at the bound; then local improvement of the best. ``layout_methods`` has each.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass

from monet.errors import ConfigError
from monet.planner.layout.lifetimes import InvalidLifetime, Lifetime, check, pieces_of
from monet.planner.layout.load import Integers
from monet.planner.layout.methods import METHODS as _METHODS
from monet.planner.layout.methods import Attempt, Task
from monet.planner.progress import Progress

__all__ = ["METHODS", "InvalidLifetime", "Layout", "Lifetime", "layout"]

_log = logging.getLogger(__name__)

METHODS = tuple(_METHODS)


@dataclass(frozen=True, slots=True)
class Layout:
    """Where each buffer lies, in bytes from the start of the arena, in the order of the input.

    ``arena_bytes``: the end of the highest buffer, rounded up to the alignment. ``bound_bytes``: no
    layout with this alignment has a smaller arena: the largest sum of aligned bytes alive at a tick, or more where a
    search has shown that this is not enough. ``method``: what found it. ``interrupted``: Ctrl-C ended the work.
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

    Returns the smallest arena that was found; it equals the bound, or was improved for ``time_limit_s`` seconds, or,
    without a limit, for a bounded number of tries: then the same input gives the same layout. With
    ``capacity_bytes``, nothing more is tried once the arena fits, nor when the bound
    shows that none can; whether it fits is for the caller to compare. Heuristics take about 0.03 s for 1k buffers,
    5 s for 20k, and above 30k, where there are fewer, 20 s for 200k; what follows about 6 s where there is no limit.

    ``method``: one of ``METHODS``. ``auto`` is described above; ``long-lived-first`` and ``first-fit-by-size`` are one
    heuristic as published, ``search`` the exact search without heuristics, and ``program`` the integer program of
    Sekiyama et al. (2018) and MODeL by the solver called ``solver``, from the best heuristic layout.
    ``progress`` is called with (bytes, bound, gap, seconds); what it raises ends the work.

    Ctrl-C ends the work, too: what is returned then is the best so far, and ``interrupted``.

    Raises:
        InvalidLifetime: (also a ValueError) a lifetime has begin >= end, no bytes or a negative number, its gaps or
            its offset make no sense, an id occurs twice, two buffers that must lie somewhere overlap, or
            ``alignment`` < 1.
        ConfigError: there is no such method, or it knows no gaps and offsets where there are some.
        SolverError: the problem is too large for the method, or the solver is missing or fails.
        KeyboardInterrupt: on Ctrl-C before there is any layout.
    """
    if method not in METHODS:
        raise ConfigError(f"there is no layout method {method!r}; choose one of {', '.join(METHODS)}")
    check(lifetimes, alignment)
    if not lifetimes:
        return Layout((), 0, 0, "empty")
    begun = time.monotonic()
    pieces, factor = pieces_of(lifetimes, alignment).reduced()
    unit = alignment * factor
    bound = pieces.bound()
    best = _Best(pieces.size, bound, unit, begun, progress)
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
        for attempt in _METHODS[method](task):
            if best.take(attempt):
                break
    except KeyboardInterrupt:
        if best.found is None:
            raise
        interrupted = True
    assert best.found is not None, "every method begins with a layout"
    height, name, offsets = best.found
    return Layout(tuple(int(at) * unit for at in offsets), height * unit, best.bound * unit, name, interrupted)


@dataclass(slots=True)
class _Best:
    """The lowest layout so far and the best bound, in units of ``unit`` bytes, and who is told of them."""

    size: Integers
    bound: int
    unit: int
    begun: float
    progress: Progress | None
    found: tuple[int, str, Integers] | None = None
    """Height, method and offsets, together: Ctrl-C may come at any moment."""

    def take(self, attempt: Attempt) -> bool:
        """Whether the best layout is now proven to be."""
        self.bound = max(self.bound, attempt.bound)
        if attempt.offsets is not None:
            height = int((attempt.offsets + self.size).max())
            if self.found is None or height < self.found[0]:
                self.found = height, attempt.method, attempt.offsets
                _log.debug("layout: %s: %.4f of the bound", attempt.method, height / self.bound)
        self.tell(0, 0)
        return self.found is not None and self.found[0] <= self.bound

    def tell(self, height: int, bound: int) -> None:
        """Passes on the best that is known, here or where this is called from (0: nothing is)."""
        if self.progress is None or self.found is None:
            return
        best = float(min(height or self.found[0], self.found[0]) * self.unit)
        least = float(max(bound, self.bound) * self.unit)
        self.progress(best, least, 1 - least / best, time.monotonic() - self.begun)

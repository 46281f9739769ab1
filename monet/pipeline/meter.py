"""Who is told how far a solve is: the pipeline solves several times, and each solve has a time limit and a unit."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from monet.base.progress_line import ProgressLine
from monet.planner.progress import Progress


class Meter(Protocol):
    """Gives what one solve reports to, for as long as it takes. ``unit``: of what it minimises, ``s`` or ``bytes``."""

    def __call__(self, time_limit_s: float, unit: str = "s") -> AbstractContextManager[Progress | None]: ...


def silent(time_limit_s: float, unit: str = "s") -> AbstractContextManager[Progress | None]:
    """Nobody is told."""
    return nullcontext()


def on_stderr(time_limit_s: float, unit: str = "s") -> AbstractContextManager[Progress | None]:
    """A line on stderr for each solve."""
    return ProgressLine(True, time_limit_s, unit)


def reporting_to(progress: Progress) -> Meter:
    """Every solve reports to ``progress``."""

    def meter(time_limit_s: float, unit: str = "s") -> AbstractContextManager[Progress | None]:
        return nullcontext(progress)

    return meter

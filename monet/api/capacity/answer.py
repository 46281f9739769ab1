"""What ``monet fit`` has found out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

AS_IT_IS, PLANNED, TOO_LARGE, UNKNOWN = "as it is", "planned", "too large", "unknown"
"""Whether the step fits: eager's does; a plan's does; no plan that was found does; the search ended before that."""
COMPLETE, INTERRUPTED = "complete", "interrupted"


@dataclass(frozen=True, slots=True)
class Point:
    """What a budget costs. ``overhead``: predicted seconds beyond eager's, relative (0.1: 10 %); None where no plan was
    found in time, and ``message`` says why. ``peak_bytes``: of the plan."""

    budget_bytes: int
    overhead: float | None
    peak_bytes: int | None = None
    message: str | None = None


@dataclass(frozen=True, slots=True)
class Smallest:
    """The smallest budget that was found: no plan needs less than ``bound_bytes`` by the program of ``bound_scope``."""

    budget_bytes: int
    bound_bytes: int
    bound_scope: str | None
    overhead: float


@dataclass(frozen=True, slots=True)
class Batch:
    """The largest batch that was planned and fits; None where none does. ``tried``: batch → whether it fits."""

    largest: int | None
    overhead: float | None
    tried: Mapping[int, bool]
    message: str | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """Whether a step fits into ``memory_bytes``.

    ``eager_peak_bytes``, ``eager_s``: of PyTorch's own step. ``points``: by rising budget. What is None was not asked
    for, or not reached before the search was interrupted. ``estimated``: where the costs come from, if nothing was run:
    then every figure here is an estimate.
    """

    name: str
    memory_bytes: int
    eager_peak_bytes: int
    eager_s: float
    smallest: Smallest | None = None
    points: tuple[Point, ...] = ()
    batch: Batch | None = None
    estimated: str | None = None
    status: str = COMPLETE

    @property
    def fits(self) -> str:
        """``AS_IT_IS``, ``PLANNED``, ``TOO_LARGE`` or ``UNKNOWN``."""
        if self.eager_peak_bytes <= self.memory_bytes:
            return AS_IT_IS
        if self.smallest is None:
            return UNKNOWN
        return PLANNED if self.smallest.budget_bytes <= self.memory_bytes else TOO_LARGE

    @property
    def overhead(self) -> float | None:
        """What fitting costs: 0 for eager's step; None where nothing fits, or it is not known."""
        if self.fits == AS_IT_IS:
            return 0.0
        if self.fits != PLANNED or self.smallest is None:
            return None
        within = [p.overhead for p in self.points if p.budget_bytes <= self.memory_bytes and p.overhead is not None]
        return min([*within, self.smallest.overhead])

    def as_json(self) -> dict[str, Any]:
        """All fields, and what follows from them."""
        return {"fits": self.fits, "overhead": self.overhead, **asdict(self)}

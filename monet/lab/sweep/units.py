"""Amounts, seconds and shares as tables and pictures show them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

_DECIMAL = (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3))
_BINARY = (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))


@dataclass(frozen=True, slots=True)
class MemoryUnit:
    """``name`` of ``bytes`` bytes."""

    name: str
    bytes: int

    def of(self, count: int) -> float:
        return count / self.bytes

    def show(self, count: int | float | None) -> str:
        """``count`` bytes with the unit, such as ``5.50 GB``; a dash for None."""
        if count is None:
            return "–"
        return f"{count / self.bytes:.{self._digits(count)}f} {self.name}"

    def show_budget(self, count: int) -> str:
        """As short as it can be told: ``5 GB``, ``5.5 GB``."""
        return f"{count / self.bytes:.6g} {self.name}" if count % self.bytes == 0 else self.show(count)

    def _digits(self, count: int | float) -> int:
        return 2 if abs(count) >= 10 * self.bytes else 3


def unit_of(budgets: Iterable[int]) -> MemoryUnit:
    """The unit for a sweep of these budgets: binary where all of them are whole MiB and not whole MB."""
    counts = tuple(budgets)
    binary = bool(counts) and all(count % 2**20 == 0 for count in counts) and any(count % 10**6 for count in counts)
    largest = max(counts, default=0)
    name, size = next(((n, s) for n, s in (_BINARY if binary else _DECIMAL) if largest >= s), ("B", 1))
    return MemoryUnit(name, size)


@dataclass(frozen=True, slots=True)
class StepUnit:
    """Step times of one sweep are all shown in ``name``, of ``seconds`` seconds."""

    name: str
    seconds: float
    digits: int

    def show(self, step_s: float | int | None) -> str:
        """``step_s`` seconds with the unit, such as ``1.023 s``; a dash for None."""
        return "–" if step_s is None else f"{step_s / self.seconds:.{self.digits}f} {self.name}"


def step_unit_of(baseline_s: float) -> StepUnit:
    """The unit for steps of about ``baseline_s`` seconds."""
    units = (StepUnit("s", 1.0, 3), StepUnit("ms", 1e-3, 2))
    return next((unit for unit in units if baseline_s >= 0.5 * unit.seconds), StepUnit("µs", 1e-6, 1))


def show_duration(seconds: float | None) -> str:
    """How long planning took: ``0.42 s``, ``61.5 s``, ``24.0 h``; a dash for None."""
    if seconds is None:
        return "–"
    if seconds >= 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds:.{2 if seconds < 10 else 1 if seconds < 100 else 0}f} s"


def show_percent(share: float | None, signed: bool = False) -> str:
    """``4.2 %``; a dash for None."""
    if share is None:
        return "–"
    text = f"{share * 100:{'+' if signed else ''}.1f} %"
    return text.replace("-", "−")

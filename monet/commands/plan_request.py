"""What ``monet plan`` was asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from monet.amounts import ByteBudget


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """The options of the command, read; see its help."""

    config: str | None
    profile: Path | None
    budget: ByteBudget | None
    minimise: str | None
    batch: int | None
    max_batch: bool
    max_overhead: float | None
    measure: bool
    output: Path | None
    json_path: Path | None
    reserve: int
    variant: str
    density: float
    solver: str
    window: int | None
    time_limit: float
    gap: float
    prove: bool
    threads: int | None
    no_cache: bool
    exact: bool
    quiet: bool

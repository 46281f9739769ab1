"""What ``monet plan`` was asked for."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import click

from monet.byte_count import ByteBudget


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


def check_target(path: Path | None, option: str) -> None:
    """Refuse a file that cannot be written before the work is done rather than after it."""
    if path is None:
        return
    folder = path.absolute().parent
    if path.is_dir():
        raise click.BadParameter(f"{path} is a folder, not a file", param_hint=option)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise click.BadParameter(f"{folder} is not a folder that can be written to", param_hint=option)

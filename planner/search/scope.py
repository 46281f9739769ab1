"""Which program is planned: its windows and the stages offered besides."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from monet.planner.problem import Problem
from monet.planner.program.constraints import build_program
from monet.planner.program.memory_rows import add_memory_rows
from monet.planner.program.peaks import after_peaks
from monet.planner.program.program import Program
from monet.planner.program.readback import earlier
from monet.planner.program.windows import windows
from monet.planner.solution import Runs

log = logging.getLogger(__name__)
FULL_STAGES = 40
"""Up to so many backward operators the full program is planned; above, a windowed one."""
WINDOW = 16


@dataclass(frozen=True, slots=True)
class Scope:
    """Which program is planned: ``window`` and ``after_peaks`` as for ``windows``."""

    window: int | None
    after_peaks: frozenset[int]


def scope_of(problem: Problem, window: int | None) -> Scope:
    """``window``: as a person gives it; None chooses by size, and one that spans all stages is the full program."""
    stages = len(problem.backward)
    if window is None:
        window = stages if stages <= FULL_STAGES else WINDOW
    if window >= stages:
        return Scope(None, frozenset())
    return Scope(window, after_peaks(windows(problem, None)))


def build(problem: Problem, budget_bytes: int, scope: Scope, also_at: Mapping[str, frozenset[int]]) -> Program:
    """The program with its memory rows; ``also_at`` as for ``windows``."""
    program = build_program(problem, budget_bytes, scope.window, also_at, scope.after_peaks)
    add_memory_rows(program)
    return program


def needed_besides(problem: Problem, runs: Runs | None, scope: Scope) -> Mapping[str, frozenset[int]]:
    """Stages outside the windows that a program must offer to contain ``runs``; nothing if that is too much."""
    if runs is None:
        return {}
    index = windows(problem, scope.window, None, scope.after_peaks)
    also_at = earlier(index, runs)
    plain = sum(last + 1 - index.start[name] for name, last in index.last.items())
    # A thrifty plan recomputes everything everywhere: room for it would undo the windows.
    return also_at if sum(map(len, also_at.values())) <= plain else {}

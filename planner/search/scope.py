"""Which program is planned: its windows and the stages offered besides."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from monet.planner.problem import Problem
from monet.planner.program.constraints import build_program
from monet.planner.program.given import GivenMoves
from monet.planner.program.index import Index
from monet.planner.program.memory_rows import add_memory_rows
from monet.planner.program.moves import MoveOffers
from monet.planner.program.peaks import after_peaks
from monet.planner.program.program import Program
from monet.planner.program.readback import earlier
from monet.planner.program.windows import NO_STAGES, windows
from monet.planner.solution import Runs

log = logging.getLogger(__name__)
FULL_STAGES = 40
"""Up to so many backward operators the full program is planned; above, a windowed one."""
WINDOW = 16
LARGEST, LARGEST_WINDOWED = 3_000_000, 400_000
"""Entries of the memory rows of the largest program with few stages (around plans that move), and with windows, that is
built."""


@dataclass(frozen=True, slots=True)
class Scope:
    """Which program is planned: ``window`` and ``after_peaks`` as for ``windows``."""

    window: int | None
    after_peaks: frozenset[int]


def scope_of(index: Index, window: int | None) -> Scope:
    """``window``: as a person gives it; None chooses by size, and one that spans all stages is the full program."""
    stages = len(index.problem.backward)
    if window is None:
        window = stages if stages <= FULL_STAGES else WINDOW
    if window >= stages:
        return Scope(None, frozenset())
    return Scope(window, after_peaks(index))


def is_within(index: Index, scope: Scope, most: int, also_at: Mapping[str, frozenset[int]] | None = None) -> bool:
    """Whether the memory rows of a program have about ``most`` entries or less: they are most of what it takes to build
    and solve it."""
    stages = len(index.reads)
    change, rows = np.zeros(stages + 1, dtype=np.int64), np.ones(stages, dtype=np.int64)
    for name, last in index.last.items():
        if name not in index.pinned:
            change[0] += 1
            change[last + 1] -= 1
    present = np.cumsum(change)[:stages]
    if int(present.sum()) > most:  # one row a stage is too much: on deep networks the windows are not looked at
        return False
    for running in windows(index.problem, scope.window, also_at, scope.after_peaks).stages_again:
        rows[list(running)] += 1
    return int(present @ rows) <= most


def build(
    problem: Problem,
    budget_bytes: int,
    scope: Scope,
    also_at: Mapping[str, frozenset[int]],
    given: GivenMoves | None = None,
    moves: MoveOffers | None = None,
) -> Program:
    """The program with its memory rows; ``also_at`` as for ``windows``, ``given`` and ``moves`` as for
    ``build_program``."""
    program = build_program(problem, budget_bytes, scope.window, also_at, scope.after_peaks, given=given, moves=moves)
    add_memory_rows(program)
    return program


def with_first_uses(index: Index, also_at: Mapping[str, frozenset[int]]) -> Mapping[str, frozenset[int]]:
    """``also_at`` with the first stage that reads each tensor that may be moved: it is back from there on."""
    first = {name: frozenset({index.uses[name][0]}) for name in index.movable if name in index.uses}
    return {name: also_at.get(name, NO_STAGES) | first.get(name, NO_STAGES) for name in (*also_at, *first)}


def few_stages(index: Index, runs: Runs) -> Mapping[str, frozenset[int]] | None:
    """``also_at`` of a program with windows of one stage, which offers recomputation where ``runs`` has it; None where
    that is larger than ``LARGEST``."""
    also_at = earlier(windows(index.problem, 1), runs)
    return also_at if is_within(index, Scope(1, NO_STAGES), LARGEST, also_at) else None


def needed_besides(problem: Problem, runs: Runs | None, scope: Scope) -> Mapping[str, frozenset[int]]:
    """Stages outside the windows that a program must offer to contain ``runs``; nothing if that is too much."""
    if runs is None:
        return {}
    index = windows(problem, scope.window, None, scope.after_peaks)
    also_at = earlier(index, runs)
    plain = sum(last + 1 - index.start[name] for name, last in index.last.items())
    # A thrifty plan recomputes everything everywhere: room for it would undo the windows.
    return also_at if sum(map(len, also_at.values())) <= plain else {}

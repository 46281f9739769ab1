"""The 0-1 program: what to keep, what to run again and when, and by which implementation.

MONeT (Shah et al., "Memory Optimization for Deep Networks", ICLR 2021) joins recomputation and
operator implementations in one integer program; Checkmate (Jain et al., MLSys 2020) has the
recomputation part. This is their program with two changes: recomputation variables exist only in a
window (``windows.py``), and memory is exact instead of bounded (``memory_rows.py``). Legend:

====================  =========================================================  ==================
here                  meaning                                                    MONeT / Checkmate
====================  =========================================================  ==================
``keep[k]``           k survives the forward pass                                s(N, k) / S
``again[i, q, t]``    forward operator i runs again by q at stage t              r(t, i, q) / R
``make[v, t]``        intermediate v is made again at stage t                    (part of δ)
``resident[k, t]``    k is in memory while the backward operator of t runs       s(t-1, k) / S
``local[k, t]``       k is in memory for (part of) the recomputation of t        l, Appendix B
``forward[i, q]``     i runs by q in the forward pass                            δ
``backward[t, q]``    the backward operator of t runs by q                       δ̂
====================  =========================================================  ==================

Costs are seconds, memory is in bytes; ``solvers/scaling.py`` brings both to a solver's liking.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from monet.planner.problem import Problem
from monet.planner.program.given import GivenMoves
from monet.planner.program.moves import Moves
from monet.planner.program.windows import Windows
from monet.planner.solvers.rows import ABSENT, Presence, Rows

Levels = tuple[tuple[int, Presence], ...]
"""(position p, presence): in memory up to and including the run of operator p; ascending."""


@dataclass(slots=True)
class Program:
    """Columns and rows of one problem, and which column means what.

    ``resident`` answers for every (tensor, stage) at which the tensor may be needed; equal states share a column.
    ``local`` is absent where it equals ``resident``. ``peak``: where the least memory is looked for, the column that
    is the peak as a share of ``budget_bytes``. ``memory``: the rows that are about bytes. ``given``: moves to a second
    memory that are decided; ``moves``: the columns of those that are not.

    ``relaxed``: the relaxation of the full program, which alone has columns in ``brief`` and ``early``
    (``relaxation.py``). ``brief[k]``: k survives the forward pass and is dropped before its window begins.
    ``early[k]``: k is made again before its window begins; absent where k never can be. Each holds every tensor and
    intermediate that has stages before its window, pinned ones left out.
    """

    windows: Windows
    budget_bytes: int
    relaxed: bool = False
    rows: Rows = field(default_factory=Rows)
    keep: dict[str, Presence] = field(default_factory=dict)
    brief: dict[str, Presence] = field(default_factory=dict)
    early: dict[str, Presence] = field(default_factory=dict)
    forward: dict[tuple[int, str], int] = field(default_factory=dict)
    again: dict[tuple[int, str, int], int] = field(default_factory=dict)
    make: dict[tuple[str, int], int] = field(default_factory=dict)
    resident: dict[tuple[str, int], Presence] = field(default_factory=dict)
    local: dict[tuple[str, int], Levels] = field(default_factory=dict)
    backward: dict[tuple[int, str], int] = field(default_factory=dict)
    peak: int | None = None
    memory: list[int] = field(default_factory=list)
    given: GivenMoves | None = None
    moves: Moves | None = None

    @property
    def problem(self) -> Problem:
        return self.windows.problem

    @property
    def scope(self) -> str:
        """The name of the program that a bound is about: ``full`` or ``window N``; ``+ K stages`` after peaks, ``+ K
        known reruns`` of single tensors that a plan to begin with makes elsewhere; with columns for moves, ``+ moves``:
        of tensors that are written when they are made, at the times offered."""
        moves = "" if self.moves is None else " + moves"
        if self.relaxed or self.windows.window is None:
            return f"full{moves}"
        more = f" + {len(self.windows.after_peaks)} stages" if self.windows.after_peaks else ""
        more += f" + {self.windows.also_at} known reruns" if self.windows.also_at else ""
        return f"window {self.windows.window}{more}{moves}"

    def kept(self, name: str) -> Presence:
        """Survives the forward pass and stays until its window begins."""
        return self.keep.get(name, ABSENT)

    def survives(self, name: str) -> Presence:
        """Survives the forward pass."""
        return self.kept(name) + self.brief.get(name, ABSENT)

    def lingers(self, name: str, i: int) -> Presence:
        """In memory while forward operator i runs, though neither it nor a later one reads ``name``."""
        return self.survives(name) + (ABSENT if self.moves is None else self.moves.leaving(name, i))

    def readable(self, name: str, stage: int) -> bool:
        """Whether ``name`` can be read at ``stage``, as far as given moves are concerned."""
        return self.given is None or self.given.readable(name, stage)

    def before(self, name: str, stage: int) -> Presence:
        """In memory when ``stage`` begins, to be read."""
        if not self.readable(name, stage):
            return ABSENT
        if name in self.early and stage <= self.windows.start[name]:
            again = self.kept(name) + self.early[name]
            return again if stage == self.windows.start[name] else again + self.brief[name]
        held = self.kept(name) if stage == 0 else self.resident.get((name, stage - 1), ABSENT)
        return held if self.moves is None else held + self.moves.returned(name, stage)

    def runs(self, operator: int, stage: int) -> Presence:
        """Any recomputation of ``operator`` at ``stage``."""
        return tuple(
            self.again[operator, q.name, stage]
            for q in self.windows.runs_again[operator]
            if (operator, q.name, stage) in self.again
        )

    def runs_making(self, name: str, stage: int) -> Presence:
        """Recomputations at ``stage`` after which ``name`` may stay in memory."""
        if name in self.windows.pinned or not self.own_decision(name, stage):
            return ABSENT
        if (name, stage) in self.make:
            return (self.make[name, stage],)
        i = self.windows.producer[name]
        return tuple(
            self.again[i, q.name, stage]
            for q in self.windows.runs_again[i]
            if (i, q.name, stage) in self.again and name not in q.recompute_reads
        )

    def runs_reading(self, operator: int, name: str, stage: int) -> Presence:
        """Recomputations of ``operator`` at ``stage`` that read ``name``."""
        always = name in self.problem.forward[operator].inputs
        return tuple(
            self.again[operator, q.name, stage]
            for q in self.windows.runs_again[operator]
            if (operator, q.name, stage) in self.again and (always or name in q.recompute_reads)
        )

    def own_decision(self, name: str, stage: int) -> bool:
        """Whether ``stage`` is in the window of ``name``; before it, ``keep`` decides."""
        return self.windows.needed(name, stage) and stage >= self.windows.start[name]

    def present(self, name: str, stage: int, operator: int) -> Presence:
        """In memory at ``stage`` while ``operator`` (the producer of ``name`` or a later one) runs again."""
        for position, presence in self.local.get((name, stage), ()):
            if position >= operator:
                return presence
        return self.resident.get((name, stage), ABSENT)

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

Costs are seconds, memory is in bytes; ``scaling.py`` brings both to a solver's liking.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from monet.planner.problem import ForwardImplementation, Problem
from monet.planner.relaxation import add_early_columns, resident_early
from monet.planner.rows import ABSENT, ALWAYS, Presence, Rows, Sum
from monet.planner.windows import Windows, recompute_cost, windows

Levels = tuple[tuple[int, Presence], ...]
"""(position p, presence): in memory up to and including the run of operator p; ascending."""


@dataclass(slots=True)
class Program:
    """Columns and rows of one problem, and which column means what.

    ``resident`` answers for every (tensor, stage) at which the tensor may be needed; equal states
    share a column. ``local`` is absent where it equals ``resident``. ``peak``: where the least memory is
    looked for, the column that is the peak as a share of ``budget_bytes``.
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

    @property
    def problem(self) -> Problem:
        return self.windows.problem

    @property
    def scope(self) -> str:
        """The name of the program that a bound is about."""
        if self.relaxed or self.windows.window is None:
            return "full"
        more = f" + {self.windows.everywhere} stages" if self.windows.everywhere else ""
        return f"window {self.windows.window}{more}"

    def kept(self, name: str) -> Presence:
        """Survives the forward pass and stays until its window begins."""
        return self.keep.get(name, ABSENT)

    def survives(self, name: str) -> Presence:
        """Survives the forward pass."""
        return self.kept(name) + self.brief.get(name, ABSENT)

    def before(self, name: str, stage: int) -> Presence:
        """In memory when ``stage`` begins."""
        if name in self.early and stage <= self.windows.start[name]:
            again = self.kept(name) + self.early[name]
            return again if stage == self.windows.start[name] else again + self.brief[name]
        return self.kept(name) if stage == 0 else self.resident.get((name, stage - 1), ABSENT)

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


def build_program(
    problem: Problem,
    budget_bytes: int,
    window: int | None,
    also: Mapping[str, frozenset[int]] | None = None,
    everywhere: frozenset[int] = frozenset(),
    relaxed: bool = False,
) -> Program:
    """The program of ``problem``, without its memory rows; ``also`` and ``everywhere`` as for ``windows``.

    With ``window=None`` it is the full program: recomputation of anything at any stage.

    ``relaxed``: a relaxation of the full program (see ``relaxation.py``) instead of the windowed one.
    """
    every_stage = relaxed or window is None
    program = Program(windows(problem, window, also, everywhere, every_stage), budget_bytes, relaxed)
    _keep_columns(program)
    _forward_choice(program)
    _recompute_columns(program)
    if relaxed:
        add_early_columns(program)
    _resident_columns(program)
    _local_columns(program)
    _backward_choice(program)
    _availability(program)
    _inputs(program)
    _intermediates(program)
    _in_place(program)
    return program


def _keep_columns(program: Program) -> None:
    """One column for everything the backward pass can need; pinned tensors always survive."""
    made_by = {v.id: v for made in program.windows.intermediates for v in made}
    for name in program.windows.producer:
        if name not in program.windows.last:
            continue
        cost = made_by[name].time_s if name in made_by else 0.0
        program.keep[name] = ALWAYS if name in program.windows.pinned else (program.rows.column(cost),)


def _forward_choice(program: Program) -> None:
    """Σ_q forward[i, q] = 1"""
    for i, implementations in enumerate(program.windows.runs_forward):
        total = Sum()
        for q in implementations:
            program.forward[i, q.name] = program.rows.column(q.time_s)
            total.add((program.forward[i, q.name],))
        program.rows.exactly(total, 1.0)


def _recompute_columns(program: Program) -> None:
    """Σ_q again[i, q, t] ≤ 1, in the window of i; an in-place q needs its victim's window too."""
    for i, stages in enumerate(program.windows.stages_again):
        for stage in sorted(stages):
            for q in program.windows.runs_again[i]:
                if q.overwrites is None or program.own_decision(q.overwrites, stage):
                    program.again[i, q.name, stage] = program.rows.column(recompute_cost(q)[0])
            program.rows.excludes(program.runs(i, stage))
            for v in program.windows.intermediates[i]:
                if program.own_decision(v.id, stage):
                    program.make[v.id, stage] = program.rows.column(v.time_s)


def _resident_columns(program: Program) -> None:
    """A column wherever residency can differ from the stage before; elsewhere it is the same one."""
    index = program.windows
    for name, last in index.last.items():
        for stage in range(last + 1):
            before = program.before(name, stage)
            if name in program.early and stage < index.start[name]:
                program.resident[name, stage] = resident_early(program, name, stage)
            elif name in index.pinned or stage < index.start[name]:
                program.resident[name, stage] = before
            elif stage == last and name not in index.reads[stage]:
                continue  # only the recomputation of this stage can read it
            elif (stage > 0 and name in index.reads[stage - 1]) or _moves(program, name, stage):
                program.resident[name, stage] = (program.rows.column(),)
            else:
                program.resident[name, stage] = before


def _moves(program: Program, name: str, stage: int) -> bool:
    """Whether ``stage`` may make ``name`` again or run something again that reads it."""
    index = program.windows
    return stage in index.stages_again[index.producer[name]] or bool(_readers(program, name, stage))


def _readers(program: Program, name: str, stage: int) -> list[int]:
    return [c for c in program.windows.readers_again.get(name, ()) if stage in program.windows.stages_again[c]]


def _local_columns(program: Program) -> None:
    """local[k, t] ≥ resident[k, t], ≥ the recomputation of k and of everything that reads it.

    With several readers there is one column from each reader to the next, so that a tensor stops
    counting after its last reader that does run. If recomputing an operator makes only k, running it
    without a use of k is pointless, and ``local`` of the first reader (or ``resident``) covers the
    making as well.
    """
    index = program.windows
    for name, last in index.last.items():
        if name in index.pinned or name not in index.size:
            continue
        i = index.producer[name]
        intermediate = name not in index.problem.forward[i].outputs
        alone = len(index.problem.forward[i].outputs) == 1 and not index.intermediates[i]
        if name in program.early and not intermediate:
            for stage in range(index.start[name]):
                levels = _levels(program, name, stage)
                if levels:
                    program.local[name, stage] = tuple(reversed(levels))
        for stage in range(index.start[name], last + 1):
            if intermediate:
                program.rows.implies(program.runs_making(name, stage), program.resident.get((name, stage), ABSENT))
                continue
            levels = _levels(program, name, stage)
            following = levels[-1][1] if levels else program.resident.get((name, stage), ABSENT)
            runs = program.runs(i, stage)
            if runs and alone:
                program.rows.implies(runs, following)
            elif runs:
                levels.append((i, _either(program, runs, following)))
            if levels:
                program.local[name, stage] = tuple(reversed(levels))


def _levels(program: Program, name: str, stage: int) -> list[tuple[int, Presence]]:
    """One level for each reader that may run at ``stage``, last reader first."""
    levels: list[tuple[int, Presence]] = []
    following = program.resident.get((name, stage), ABSENT)
    for reader in reversed(_readers(program, name, stage)):
        if reader != program.windows.producer[name]:
            following = _either(program, program.runs_reading(reader, name, stage), following)
            levels.append((reader, following))
    return levels


def _either(program: Program, one: Presence, other: Presence) -> Presence:
    """A presence that is at least both."""
    if not one or not other:
        return one or other
    column: Presence = (program.rows.column(),)
    program.rows.implies(one, column)
    program.rows.implies(other, column)
    return column


def _backward_choice(program: Program) -> None:
    """Σ_q backward[t, q] = 1, and backward[t, q] ≤ resident[k, t] for every k that q reads."""
    for stage, implementations in enumerate(program.windows.runs_backward):
        total = Sum()
        for q in implementations:
            program.backward[stage, q.name] = program.rows.column(q.time_s)
            total.add((program.backward[stage, q.name],))
        program.rows.exactly(total, 1.0)
        for name in sorted(program.windows.reads[stage]):
            readers = tuple(program.backward[stage, q.name] for q in implementations if name in q.reads)
            program.rows.implies(readers, program.resident[name, stage])


def _availability(program: Program) -> None:
    """resident[k, t] ≤ before[k, t] + Σ_q again[k, q, t]"""
    for (name, stage), presence in program.resident.items():
        before = program.before(name, stage)
        if presence != before and not (name in program.early and stage < program.windows.start[name]):
            program.rows.implies(presence, before, program.runs_making(name, stage))


def _inputs(program: Program) -> None:
    """Σ_q again[i, q, t] ≤ before[p, t] + Σ_q again[p, q, t] for every tensor p that i reads."""
    for i, stages in enumerate(program.windows.stages_again):
        inputs = tuple(dict.fromkeys(program.problem.forward[i].inputs))
        for stage in sorted(stages):
            for name in inputs:
                program.rows.implies(
                    program.runs(i, stage), program.before(name, stage), program.runs_making(name, stage)
                )
            extra = dict.fromkeys(name for q in program.windows.runs_again[i] for name in q.recompute_reads)
            for name in extra:
                own = program.windows.producer[name] == i
                made = ABSENT if own else program.runs_making(name, stage)
                reading = program.runs_reading(i, name, stage)
                program.rows.implies(reading, program.before(name, stage), made)


def _intermediates(program: Program) -> None:
    """make[v, t] ≤ Σ_q again[i, q, t] for the operator i that v belongs to."""
    for (name, stage), column in program.make.items():
        program.rows.implies((column,), program.runs(program.windows.producer[name], stage))


def _in_place(program: Program) -> None:
    """A run that overwrites u excludes keep[u] (forward) or resident[u, t] (recomputation).

    It also excludes an intermediate whose making reads u.
    """
    index = program.windows
    for i, made in enumerate(index.intermediates):
        for q in index.runs_forward[i]:
            if q.overwrites is not None:
                program.rows.excludes((program.forward[i, q.name],), program.survives(q.overwrites))
                for v in made:
                    if q.overwrites in v.reads:
                        program.rows.excludes((program.forward[i, q.name],), program.survives(v.id))
        for q, stage, column in _in_place_again(program, i):
            victim = q.overwrites or ""
            program.rows.excludes((column,), program.resident.get((victim, stage), ABSENT))
            for v in made:
                if victim in v.reads and (v.id, stage) in program.make:
                    program.rows.excludes((column,), (program.make[v.id, stage],))


def _in_place_again(program: Program, operator: int) -> list[tuple[ForwardImplementation, int, int]]:
    return [
        (q, stage, program.again[operator, q.name, stage])
        for q in program.windows.runs_again[operator]
        for stage in sorted(program.windows.stages_again[operator])
        if q.overwrites is not None and (operator, q.name, stage) in program.again
    ]

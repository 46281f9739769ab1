"""The rows of the 0-1 program, one function a family; ``program.py`` has the legend of its columns."""

from __future__ import annotations

from collections.abc import Mapping

from monet.planner.problem import ForwardImplementation, Problem, recompute_cost
from monet.planner.program.channel_rows import add_channel_rows
from monet.planner.program.given import GivenMoves
from monet.planner.program.move_rows import add_move_rows
from monet.planner.program.moves import MoveOffers, moves_of
from monet.planner.program.program import Program
from monet.planner.program.relaxation import add_early_columns, resident_early
from monet.planner.program.windows import NO_STAGES, windows
from monet.planner.solvers.rows import ABSENT, ALWAYS, Presence, Sum


def build_program(
    problem: Problem,
    budget_bytes: int,
    window: int | None,
    also_at: Mapping[str, frozenset[int]] | None = None,
    after_peaks: frozenset[int] = NO_STAGES,
    relaxed: bool = False,
    given: GivenMoves | None = None,
    moves: MoveOffers | None = None,
) -> Program:
    """The program of ``problem`` but for its memory rows, which ``memory_rows.add_memory_rows`` adds.

    ``window``, ``also_at`` and ``after_peaks`` as for ``windows``. With ``window=None`` it is the full program:
    recomputation of anything at any stage. ``relaxed``: instead of the windowed program, a relaxation of the full one
    (``relaxation.py``). ``given``: moves to a second memory that are decided; what they move is pinned in ``problem``.
    ``moves``: those that the program decides on (``moves.py``); None is none. Not in a relaxation.
    """
    index = windows(problem, window, also_at, after_peaks, offer_idle_stages=relaxed or window is None)
    program = Program(index, budget_bytes, relaxed, given=given)
    if moves is not None:
        program.moves = moves_of(index, program.rows, moves)
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
    add_move_rows(program)
    if moves is not None:
        add_channel_rows(program, moves)
    return program


def _keep_columns(program: Program) -> None:
    """keep[k] for everything that the backward pass can need; 1 for a pinned k, which always survives."""
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
    """Σ_q again[i, q, t] ≤ 1 where i may run again at t, and a column make[v, t] for each intermediate v of i.

    An in-place q is offered only where its victim has a decision of its own, too.
    """
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
    """resident[k, t]: a column wherever it can differ from the stage before; elsewhere it is the same one."""
    index = program.windows
    for name, last in index.last.items():
        for stage in range(last + 1):
            before = program.before(name, stage)
            if name in program.early and stage < index.start[name]:
                program.resident[name, stage] = resident_early(program, name, stage)
            elif name in index.pinned:
                program.resident[name, stage] = ALWAYS
            elif stage < index.start[name]:
                program.resident[name, stage] = before
            elif stage == last and name not in index.reads[stage]:
                continue  # only the recomputation of this stage can read it
            elif (stage > 0 and name in index.reads[stage - 1]) or _moves(program, name, stage):
                program.resident[name, stage] = (program.rows.column(),)
            else:
                program.resident[name, stage] = before


def _moves(program: Program, name: str, stage: int) -> bool:
    """Whether ``stage`` may make ``name`` again, run something again that reads it, or have it back."""
    index = program.windows
    if program.moves is not None and program.moves.returned(name, stage):
        return True
    return stage in index.stages_again[index.producer[name]] or bool(_readers(program, name, stage))


def _readers(program: Program, name: str, stage: int) -> list[int]:
    """Operators that may run again at ``stage`` and read ``name``, in forward order."""
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
    """One level for each reader that may run again at ``stage``, last reader first."""
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
            there = program.resident[name, stage] if program.readable(name, stage) else ABSENT
            program.rows.implies(readers, there)


def _availability(program: Program) -> None:
    """resident[k, t] ≤ before[k, t] + Σ_q again[k, q, t]"""
    for (name, stage), presence in program.resident.items():
        if name in program.windows.pinned:
            continue
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
    """(implementation, stage, column) of every recomputation of ``operator`` that overwrites something."""
    return [
        (q, stage, program.again[operator, q.name, stage])
        for q in program.windows.runs_again[operator]
        for stage in sorted(program.windows.stages_again[operator])
        if q.overwrites is not None and (operator, q.name, stage) in program.again
    ]

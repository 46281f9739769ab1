"""Moving tensors to a second memory, in the program of moments: ``gone[k]``, and what the channel has time for.

====================  ======================================================================================
``gone[k]``           k is in the second memory at the turnaround, and may be read back after it
``timely[k]``         the same, and it is not made again before the first stage that must read it
``waiting[pass]``     how long the step waits for copies in the forward and in the backward pass, as a share
====================  ======================================================================================

Copies of one direction come one after the other, so every set of them that must fit between two points of the step is
a row (Hall's condition; here all sets that end with the forward pass, and all that begin with the backward pass)::

    Σ_{k made by p or later} write_s(k) · gone[k]            ≤  seconds of the forward operators after p + waiting
    Σ_{k that a stage up to u must read} read_s(k) · timely[k]  ≤  seconds of what comes before u + waiting

What is gone takes memory until it is written, so at a moment of the forward pass, before operator i, for every p::

    memory + Σ_{k made by p or later, last read before i} bytes(k) · gone[k]
                                                        ≤  budget + rate · (seconds from p to i + waiting)

Each is true of every plan, so whichever are left out, the program stays a relaxation. What it runs again it counts once
a segment; a plan that runs it twice has that much less to wait, at the same seconds. AutoTM (Hildebrand et al., ASPLOS
2020) has a sum of both directions for each operator instead, and a barrier.

Copies that the step waits for at once (``synchronous``) cost their seconds. In a memory that operators can address
(``static``) they cost those of each operator that certainly reads the tensor, at least.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate

from monet.planner.moments.columns import MomentProgram
from monet.planner.problem import ASYNCHRONOUS, STATIC, SecondMemory
from monet.planner.program.index import Index
from monet.planner.solvers.rows import Sum

MOST_ROWS, MOST_MEMORY_ROWS = 48, 6
"""Rows for each direction, and for each moment of the forward pass, at most: of more, those are left out that say
nearly the same."""
FORWARD_SHARES = (0.5, 0.7, 0.85, 0.95, 1.0)
"""Of the forward pass, by time: where memory is counted from the beginning, with what is not written yet."""


def add_gone_columns(program: MomentProgram) -> None:
    """``gone``; what is gone is not held at the turnaround as well."""
    index, second = program.index, program.index.problem.second
    if second is None:
        return
    for name in sorted(index.movable, key=lambda n: (index.producer[n], n)):
        column = program.gone[name] = program.rows.column(_seconds(index, second, name))
        program.rows.excludes((column,), program.holds(name, 0))
    if second.limit_bytes is not None:
        total = Sum()
        for name, column in program.gone.items():
            total.add((column,), index.size[name])
        program.rows.at_most(total, float(second.limit_bytes))


def _seconds(index: Index, second: SecondMemory, name: str) -> float:
    """What moving a tensor takes, whatever else is decided."""
    size = index.size[name]
    if second.mode == ASYNCHRONOUS:
        return 2 * size * second.slowdown_s
    if second.mode == STATIC:
        certain = sum(all(name in q.reads for q in index.runs_backward[stage]) for stage in index.uses.get(name, ()))
        reads = len(index.consumers.get(name, ())) + certain
        return second.write_s(size) + reads * second.read_s(size)
    return second.write_s(size) + second.read_s(size)


def add_copy_rows(program: MomentProgram) -> None:
    """The channel's rows, and the columns of waiting; only where copies run beside the step."""
    second = program.index.problem.beside
    if second is None or not program.gone:
        return
    sizes = [program.index.size[name] for name in program.gone]
    _write_rows(program, second, sum(map(second.write_s, sizes)))
    _read_rows(program, second, sum(map(second.read_s, sizes)))


def forward_moments(index: Index) -> tuple[int, ...]:
    """Forward operators at which memory is counted in any case, where copies run beside them; none elsewhere."""
    if index.problem.beside is None or not index.movable:
        return ()
    seconds = list(accumulate(runs[0].time_s for runs in index.runs_forward))
    return tuple(sorted({bisect_left(seconds, share * seconds[-1]) for share in FORWARD_SHARES}))


def under_way(program: MomentProgram, i: int, total: Sum, final: Mapping[str, int]) -> Iterator[Sum]:
    """``total``, what forward operator i needs, with what is still being written; ``final``: of each tensor the last
    operator that reads it."""
    index, second = program.index, program.index.problem.beside
    if second is None or not program.waiting:
        return
    waiting = program.waiting[0]
    made = sorted({index.producer[name] for name in program.gone if index.producer[name] < i})
    for p in _spread(made, MOST_MEMORY_ROWS):
        more = total.copy()
        for name, column in program.gone.items():
            if p <= index.producer[name] < i and final[name] < i:
                more.add((column,), index.size[name])
        seconds = _seconds_of_forward(program, p + 1, i)
        more.constant += second.write_rate * seconds.constant
        for column, value in seconds.terms.items():
            more.add((column,), second.write_rate * value)
        yield more.add((waiting,), -second.write_rate * program.rows.costs[waiting])


def _seconds_of_forward(program: MomentProgram, begin: int, end: int) -> Sum:
    """Minus the seconds of the forward operators [begin, end), with the intermediates that they make."""
    index, total = program.index, Sum()
    for i in range(begin, end):
        _take_off(total, [(program.forward.get((i, q.name)), q.time_s) for q in index.runs_forward[i]])
        for v in index.intermediates[i]:
            total.add(program.holds(v.id, 0), -v.time_s)
    return total


def _waiting(program: MomentProgram, most_s: float) -> int:
    column = program.rows.share()
    program.rows.costs[column] = most_s
    program.waiting.append(column)
    return column


def _write_rows(program: MomentProgram, second: SecondMemory, most_s: float) -> None:
    index = program.index
    waiting = _waiting(program, most_s)
    producers = sorted({index.producer[name] for name in program.gone})
    for p in _spread(producers):
        total = _seconds_of_forward(program, p + 1, len(index.runs_forward)).add((waiting,), -most_s)
        for name, column in program.gone.items():
            if index.producer[name] >= p:
                total.add((column,), second.write_s(index.size[name]))
        program.rows.at_most(total, 0.0)


def _read_rows(program: MomentProgram, second: SecondMemory, most_s: float) -> None:
    """Also one for all that is gone and the whole of the backward pass."""
    index = program.index
    waiting = _waiting(program, most_s)
    end = len(index.runs_backward)
    first = {name: _first_certain(index, name) for name in program.gone}
    timely = {name: _timely(program, name, stage) for name, stage in first.items() if stage is not None}
    for u in (*_spread(sorted({stage for stage in first.values() if stage is not None})), end):
        total = Sum().add((waiting,), -most_s)
        for name, column in program.gone.items():
            stage = first[name]
            if u == end:
                total.add((column,), second.read_s(index.size[name]))
            elif stage is not None and stage <= u:
                total.add((timely[name],), second.read_s(index.size[name]))
        for stage in range(u):
            runs = index.runs_backward[stage]
            _take_off(total, [(program.backward.get((stage, q.name)), q.time_s) for q in runs])
        segment = program.segment(min(u, end - 1))
        for columns in (program.run, program.make):
            for (_, at), column in columns.items():
                if at <= segment:
                    total.add((column,), -program.rows.costs[column])
        program.rows.at_most(total, 0.0)


def _first_certain(index: Index, name: str) -> int | None:
    """The first stage that reads ``name`` by whichever implementation."""
    uses = (stage for stage in index.uses.get(name, ()) if all(name in q.reads for q in index.runs_backward[stage]))
    return next(uses, None)


def _timely(program: MomentProgram, name: str, stage: int) -> int:
    """timely[k] ≥ gone[k] − Σ run[producer of k, j] over the segments up to the stage's; gone[k] where it cannot run"""
    index = program.index
    i = index.producer[name]
    runs = tuple(
        program.run[i, segment] for segment in range(1, program.segment(stage) + 1) if (i, segment) in program.run
    )
    if not runs:
        return program.gone[name]
    column = program.rows.share()
    program.rows.implies((program.gone[name],), (column,), runs)
    return column


def _take_off(total: Sum, offered: Sequence[tuple[int | None, float]]) -> None:
    """Takes off the seconds of what is chosen from ``offered``: (column, seconds), without a column where there is no
    choice."""
    for column, seconds in offered:
        if column is None:
            total.constant -= seconds
        else:
            total.add((column,), -seconds)


def _spread(positions: Sequence[int], most: int = MOST_ROWS) -> Iterable[int]:
    """All of them, or ``most`` evenly from the first to the last."""
    if len(positions) <= most:
        return positions
    step = (len(positions) - 1) / (most - 1)
    return [positions[round(n * step)] for n in range(most)]

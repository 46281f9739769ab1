"""Moving tensors to a second memory, in the checkpoint program: ``gone[k]``, and what the channel has time for.

====================  ======================================================================================
``gone[k]``           k is in the second memory at the turnaround, and may be read back after it
``late[k, j, u]``     the same, and it is read back after checkpoint j, for stage u or one before it
``waiting[j]``        how long the step waits for copies in segment j of the forward or backward pass, as a share
====================  ======================================================================================

Copies of one direction come one after the other, so every set of them that must fit between two points of the step is
a row (Hall's condition; here all sets that end with the forward pass, and all that begin with a checkpoint)::

    Σ_{k made by p or later} write_s(k) · gone[k]       ≤  seconds of the forward operators after p + waiting then
    Σ_{k that a stage up to u may read after j} read_s(k) · late[k, j, u]
                                                        ≤  seconds of what is between j and u + waiting then

What is on its way back takes memory, and counts as held: what a checkpoint does not hold, and is not made again after
it, is asked for after it.

What is gone takes memory until it is written, so at a checkpoint of the forward pass, before operator i, for every p::

    memory + Σ_{k made by p or later, last read before i} bytes(k) · gone[k]
                                                        ≤  budget + rate · (seconds from p to i + waiting then)

Each is true of every plan, so whichever are left out, the program stays a relaxation. What it runs again it counts once
a segment; a plan that runs it twice has that much less to wait, at the same seconds. AutoTM (Hildebrand et al., ASPLOS
2020) has a sum of both directions for each operator instead, and a barrier.

Copies that the step waits for at once (``synchronous``) cost their seconds. In a memory that operators can address
(``static``) they cost those of each operator that certainly reads the tensor, at least.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate

from monet.planner.checkpoints.columns import CheckpointProgram
from monet.planner.problem import ASYNCHRONOUS, STATIC, SecondMemory, StateTensor
from monet.planner.program.index import Index
from monet.planner.solvers.rows import ABSENT, ALWAYS, Sum

MOST_ROWS, MOST_LATER_ROWS, MOST_MEMORY_ROWS = 48, 8, 6
"""Rows for each direction, of reads after each later checkpoint, for the stages that come next, and for each checkpoint
of the forward pass, at most: of more, those are left out that say nearly the same."""
FORWARD_SHARES = (0.5, 0.7, 0.85, 0.95, 1.0)
"""Of the forward pass, by time: where memory is counted from the beginning, with what is not written yet."""


def add_gone_columns(program: CheckpointProgram) -> None:
    """``gone``; what is gone is not held at the turnaround as well."""
    index, second = program.index, program.index.problem.second
    if second is None:
        return
    for name in sorted(index.movable, key=lambda n: (index.producer[n], n)):
        column = program.gone[name] = program.rows.column(_seconds(index, second, name))
        program.rows.excludes((column,), program.holds(name, 0))


def add_room(program: CheckpointProgram) -> None:
    """What is gone, and what is carried, fits into the second memory."""
    second = program.index.problem.second
    if second is None or second.limit_bytes is None:
        return
    total = Sum()
    for name, column in program.gone.items():
        total.add((column,), program.index.size[name])
    for tensor in program.state:
        total.add((program.carried[tensor.id],), tensor.bytes)
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


def add_copy_rows(program: CheckpointProgram) -> None:
    """The channel's rows, and the columns of waiting; only where copies run beside the step."""
    second = program.index.problem.beside
    if second is None or not (program.gone or program.carried):
        return
    sizes = [program.index.size[name] for name in program.gone]
    state_s = sum(value for value in copied_state(program, second).terms.values() if value > 0)
    _write_rows(program, second, state_s + sum(map(second.write_s, sizes)))
    _read_rows(program, second, state_s + sum(map(second.read_s, sizes)))


def copied_s(second: SecondMemory, tensor: StateTensor) -> float:
    """What a step copies of a tensor that is carried takes, at least."""
    return second.read_s(tensor.bytes) + (second.write_s(tensor.written_bytes) if tensor.written_bytes else 0.0)


def copied_state(program: CheckpointProgram, second: SecondMemory) -> Sum:
    """Seconds of the channel for what is carried: it is read once, and again where it has not stayed, and written."""
    total, again_s = Sum(), {tensor.id: second.read_s(tensor.bytes) for tensor in program.state}
    for tensor in program.state:
        total.add((program.carried[tensor.id],), copied_s(second, tensor))
    for (name, _), column in program.stays.items():
        total.add((program.carried[name],), again_s[name]).add((column,), -again_s[name])
    return total


def _waiting(program: CheckpointProgram, segments: int, most_s: float) -> list[int]:
    """Columns of waiting in each segment of a pass."""
    columns = [program.rows.share() for _ in range(segments)]
    for column in columns:
        program.rows.costs[column] = most_s
    return columns


def wait_forward(program: CheckpointProgram, total: Sum, begin: int, end: int, factor: float) -> Sum:
    """Adds ``factor`` times the seconds of waiting at the ends of the forward operators [begin, end)."""
    boundaries = program.checkpoints.forward
    for segment in range(bisect_right(boundaries, begin), bisect_right(boundaries, end - 1) + 1):
        column = program.waiting_forward[segment]
        total.add((column,), factor * program.rows.costs[column])
    return total


def forward_checkpoints(index: Index) -> tuple[int, ...]:
    """Forward operators at which memory is counted in any case, where copies run beside them; none elsewhere."""
    if index.problem.beside is None or not index.movable:
        return ()
    seconds = list(accumulate(runs[0].time_s for runs in index.runs_forward))
    return tuple(sorted({bisect_left(seconds, share * seconds[-1]) for share in FORWARD_SHARES}))


def under_way(program: CheckpointProgram, i: int, total: Sum, final: Mapping[str, int]) -> Iterator[Sum]:
    """``total``, what forward operator i needs, with what is still being written; ``final``: of each tensor the last
    operator that reads it."""
    index, second = program.index, program.index.problem.beside
    if second is None or not program.waiting:
        return
    rate = second.write_rate * (1 - second.taken)
    made = sorted({index.producer[name] for name in program.gone if index.producer[name] < i})
    for p in _spread(made, MOST_MEMORY_ROWS):
        more = total.copy().plus(seconds_of_forward(program, p + 1, i), rate)
        for name, column in program.gone.items():
            if p <= index.producer[name] < i and final[name] < i:
                more.add((column,), index.size[name])
        yield wait_forward(program, more, p, i, -rate)


def seconds_of_forward(program: CheckpointProgram, begin: int, end: int) -> Sum:
    """Minus the seconds of the forward operators [begin, end), with the intermediates that they make."""
    index, total = program.index, Sum()
    for i in range(begin, end):
        _take_off(total, [(program.forward.get((i, q.name)), q.time_s) for q in index.runs_forward[i]])
        for v in index.intermediates[i]:
            total.add(program.holds(v.id, 0), -v.time_s)
    return total


def _write_rows(program: CheckpointProgram, second: SecondMemory, most_s: float) -> None:
    index, end = program.index, len(program.index.runs_forward)
    program.waiting_forward = _waiting(program, len(program.checkpoints.forward) + 1, most_s)
    producers = sorted({index.producer[name] for name in program.gone})
    for p in _spread(producers):
        total = wait_forward(program, seconds_of_forward(program, p + 1, end), p, end, -1.0)
        for name, column in program.gone.items():
            if index.producer[name] >= p:
                total.add((column,), second.write_s(index.size[name]))
        program.rows.at_most(total, 0.0)


def _read_rows(program: CheckpointProgram, second: SecondMemory, most_s: float) -> None:
    """From each checkpoint on; from the turnaround on also one for all that is gone and the whole of the backward
    pass."""
    index = program.index
    program.waiting_backward = _waiting(program, len(program.at), most_s)
    end = len(index.runs_backward)
    uses = sorted({stage for name in program.gone for stage in index.uses.get(name, ())})
    for checkpoint, begin in enumerate(program.at):
        after = uses[bisect_right(uses, begin) :]
        ends = after[:MOST_LATER_ROWS] if checkpoint else list(_spread(after))
        late = {name: _late(program, name, checkpoint, ends[-1]) for name in program.gone} if ends else {}
        for u in ends:
            total = seconds_of_backward(program, checkpoint, u)
            for name, columns in late.items():
                last = max((stage for stage in columns if stage <= u), default=None)
                if last is not None:
                    total.add((columns[last],), second.read_s(index.size[name]))
            program.rows.at_most(total, 0.0)
    total = seconds_of_backward(program, 0, end)
    for name, column in program.gone.items():
        total.add((column,), second.read_s(index.size[name]))
    program.rows.at_most(total, 0.0)


def seconds_of_backward(program: CheckpointProgram, checkpoint: int, end: int) -> Sum:
    """Minus the seconds of what comes after the backward operator of a checkpoint and before that of stage ``end``,
    with waiting."""
    index, total = program.index, Sum()
    for stage in range(program.at[checkpoint] + 1, end):
        _take_off(total, [(program.backward.get((stage, q.name)), q.time_s) for q in index.runs_backward[stage]])
    segment = program.segment(min(end, len(index.runs_backward) - 1))
    for columns in (program.run, program.make):
        for (_, at), column in columns.items():
            if checkpoint < at <= segment:
                total.add((column,), -program.rows.costs[column])
    for column in program.waiting_backward[checkpoint:segment]:
        total.add((column,), -program.rows.costs[column])
    return total


def _late(program: CheckpointProgram, name: str, checkpoint: int, end: int) -> dict[int, int]:
    """By the stages u up to ``end`` that may read ``name`` after a checkpoint, as far as the first that does so
    whatever is chosen, the column of its having been read back between the two::

        late[k, j, u] ≥ gone[k] + Σ_{q reads k} backward[u, q] − 1 − held[k, j] − Σ_{segments from j to u} run
        late[k, j, u] ≥ late[k, j, u'] for u' before u
    """
    index, rows, gone = program.index, program.rows, program.gone[name]
    i, held = index.producer[name], program.holds(name, checkpoint) if checkpoint else ABSENT
    late: dict[int, int] = {}
    known: int | None = None
    for stage in index.uses.get(name, ()):
        if not program.at[checkpoint] < stage <= end:
            continue
        segments = range(checkpoint + 1, program.segment(stage) + 1)
        runs = tuple(program.run[i, segment] for segment in segments if (i, segment) in program.run)
        readers = program.readers(stage, name)
        if readers is None and not runs and not held:
            late[stage] = gone
            break
        late[stage] = column = rows.share()
        chosen = ALWAYS if readers is None else readers
        rows.at_most(Sum(-1.0).add((gone,)).add(chosen).add((column, *held, *runs), -1.0), 0.0)
        if known is not None:
            rows.implies((known,), (column,))
        if readers is None:
            break
        known = column
    return late


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

"""The checkpoint program: a step whose memory is counted at a few checkpoints only.

The first checkpoint is the *turnaround*, between the forward and the backward pass; others are during backward
operators, and during forward ones. What is read after a checkpoint and is not in memory then must be made again after
it, at least once. So every plan is a point of this program that costs no more than the plan does, and a bound on this
program is a bound on every plan. It is linear in the size of the network, and without choices of implementations it is
a minimum cut with a knapsack row for each checkpoint: its linear relaxation is strong where the windowed program's is
weak.

Checkpoints divide the backward pass into segments::

    forward        | segment 1     m1 | segment 2      m2 | segment 3
    turnaround ────┘ stages 0 … m1 ───┘ m1+1 … m2 ────────┘ m2+1 … last

====================  ======================================================================================
``held[k, j]``        k is in memory at checkpoint j (0 is the turnaround, j the j-th stage that is a checkpoint)
``run[i, j]``         forward operator i runs again in segment j
``make[v, j]``        intermediate v is made again in segment j
``after[i, j]``       i runs again after checkpoint j, in any segment
``made[v, j]``        intermediate v is made again after checkpoint j, in any segment
``forward[i, q]``     i runs by q in the forward pass; no column where there is no choice
``backward[t, q]``    the backward operator of stage t runs by q; likewise
====================  ======================================================================================

Where there is a second memory, ``copies.py`` adds what may be moved to it: wherever a row below asks for ``k`` to be
there or made again, k may be ``gone`` instead, and is read back; ``carried_state.py`` adds which parameters and which
of an optimiser's state are there from step to step.

``after``, ``made`` and their rows are implied by what they mean, and needed: without them a run in halves, one in each
of two segments, is cheaper in the linear relaxation than a whole one, and more checkpoints would make the bound weaker.

What makes it a relaxation: an operator counts at most once a segment, at its least cost; memory between checkpoints,
and of recomputation, is not counted; a pinned tensor counts only as long as every plan reads it.
"""

from __future__ import annotations

from collections.abc import Iterable

from monet.planner.checkpoints.carried_state import add_carried_columns, add_channel_rows, leave_out_carried
from monet.planner.checkpoints.columns import TURNAROUND, Checkpoint, CheckpointProgram, Checkpoints
from monet.planner.checkpoints.copies import add_copy_rows, add_gone_columns, add_room, under_way
from monet.planner.problem import StateTensor, recompute_cost
from monet.planner.program.index import Index
from monet.planner.solvers.rows import ABSENT, Presence, Sum


def checkpoint_program(
    index: Index, budget_bytes: int, checkpoints: Checkpoints | None = None, state: tuple[StateTensor, ...] = ()
) -> CheckpointProgram:
    """The program of ``index``'s problem for these checkpoints; None is the turnaround alone. ``state``: what it
    decides to carry or not; it is part of the problem's fixed bytes."""
    program = CheckpointProgram(index, budget_bytes, checkpoints or Checkpoints(), state)
    shared = tuple(index.shared_reads(i) for i in range(len(index.problem.forward)))
    _columns(program)
    add_gone_columns(program)
    add_carried_columns(program)
    add_room(program)
    _chosen(program)
    for segment in range(1, len(program.at) + 1):
        _segment_rows(program, segment, shared)
    for checkpoint in range(len(program.at) - 1):
        _after_rows(program, checkpoint, shared)
    _reads(program, shared)
    _in_place(program)
    for checkpoint in range(len(program.at)):
        _memory(program, checkpoint)
    add_copy_rows(program)
    add_channel_rows(program)
    _forward_memory(program)
    return program


def _columns(program: CheckpointProgram) -> None:
    index, rows = program.index, program.rows
    making_s = {v.id: v.time_s for made in index.intermediates for v in made}
    for name, last in index.last.items():
        if name in index.pinned:
            continue
        for checkpoint, stage in enumerate(program.at):
            if last >= stage:
                program.held[name, checkpoint] = rows.column(making_s.get(name, 0.0) if checkpoint == 0 else 0.0)
    for i, runs in enumerate(index.runs_again):
        if not runs:
            continue
        least_s = min(recompute_cost(q)[0] for q in runs)
        last = max(index.last.get(name, -1) for name in index.remade(i))
        for segment in range(1, len(program.at) + 1):
            begin = program.at[segment - 1]
            if last <= begin:
                continue
            column = program.run[i, segment] = rows.column(least_s)
            for v in index.intermediates[i]:
                if index.last.get(v.id, -1) > begin:
                    program.make[v.id, segment] = rows.column(v.time_s)
                    rows.implies((program.make[v.id, segment],), (column,))


def _chosen(program: CheckpointProgram) -> None:
    """Σ_q forward[i, q] = 1 and Σ_q backward[t, q] = 1, at what a choice costs beyond the fastest."""
    index = program.index
    forward = [[(q.name, q.time_s) for q in runs] for runs in index.runs_forward]
    backward = [[(q.name, q.time_s) for q in runs] for runs in index.runs_backward]
    for offered, columns in ((forward, program.forward), (backward, program.backward)):
        for position, runs in enumerate(offered):
            least_s = min((seconds for _, seconds in runs), default=0.0)
            program.base_s += least_s
            if len(runs) > 1:
                total = Sum()
                for name, seconds in runs:
                    columns[position, name] = program.rows.column(seconds - least_s)
                    total.add((columns[position, name],))
                program.rows.exactly(total, 1.0)


def _made(program: CheckpointProgram, name: str, segment: int, shared: tuple[frozenset[str], ...]) -> Presence:
    """Runs of a segment after which ``name`` can be there."""
    index = program.index
    i = index.producer[name]
    if name not in index.problem.forward[i].outputs:
        column = program.make.get((name, segment))
    else:
        column = None if name in shared[i] else program.run.get((i, segment))
    return ABSENT if column is None else (column,)


def _inputs(program: CheckpointProgram, i: int, shared: tuple[frozenset[str], ...]) -> list[str]:
    """What every run of i reads and is not there anyway."""
    names = (*program.index.problem.forward[i].inputs, *sorted(shared[i]))
    return [name for name in dict.fromkeys(names) if name not in program.index.pinned]


def _segment_rows(program: CheckpointProgram, segment: int, shared: tuple[frozenset[str], ...]) -> None:
    """run[i, j] ≤ held[p, j−1] + run[producer of p, j]; held[k, j] ≤ held[k, j−1] + run[producer of k, j]"""
    rows = program.rows
    for i in range(len(program.index.problem.forward)):
        column = program.run.get((i, segment))
        if column is None:
            continue
        for name in _inputs(program, i, shared):
            # What i makes itself, as its statistics, is not made before it runs.
            made = ABSENT if program.index.producer[name] == i else _made(program, name, segment, shared)
            rows.implies((column,), program.holds(name, segment - 1), made, program.away(name))
    for name in program.index.last:
        if (held := program.held.get((name, segment))) is not None:
            made = _made(program, name, segment, shared)
            rows.implies((held,), program.holds(name, segment - 1), made, program.away(name))


def _after_rows(program: CheckpointProgram, checkpoint: int, shared: tuple[frozenset[str], ...]) -> None:
    """after[i, j] ≤ Σ_{segments after j} run; after[i, j] ≤ held[p, j] + after[producer of p, j]; made[v, j] ≤
    Σ_{segments after j} make, ≤ after[producer of v, j]"""
    later = range(checkpoint + 1, len(program.at) + 1)
    for i in range(len(program.index.problem.forward)):
        runs = tuple(program.run[i, segment] for segment in later if (i, segment) in program.run)
        if runs:
            column = program.after[i, checkpoint] = program.rows.column()
            program.rows.implies((column,), runs)
        for v in program.index.intermediates[i] if runs else ():
            makes = tuple(program.make[v.id, segment] for segment in later if (v.id, segment) in program.make)
            if makes:
                remade = program.made[v.id, checkpoint] = program.rows.column()
                program.rows.implies((remade,), makes)
                program.rows.implies((remade,), (program.after[i, checkpoint],))
    for i in range(len(program.index.problem.forward)):
        if (i, checkpoint) in program.after:
            for name in _inputs(program, i, shared):
                made = ABSENT if program.index.producer[name] == i else _made_after(program, name, checkpoint, shared)
                there = program.holds(name, checkpoint)
                program.rows.implies((program.after[i, checkpoint],), there, made, program.away(name))


def _made_after(program: CheckpointProgram, name: str, checkpoint: int, shared: tuple[frozenset[str], ...]) -> Presence:
    """``name`` is made again in some segment after a checkpoint."""
    index = program.index
    i = index.producer[name]
    if name not in index.problem.forward[i].outputs:
        column = program.made.get((name, checkpoint))
        return ABSENT if column is None else (column,)
    column = None if name in shared[i] else program.after.get((i, checkpoint))
    return ABSENT if column is None else (column,)


def _reads(program: CheckpointProgram, shared: tuple[frozenset[str], ...]) -> None:
    """Σ_{q reads k} backward[t, q] ≤ held[k, j] at a checkpoint, else ≤ held[k, j−1] + run[producer of k, j]; and
    ≤ held[k, j'] + after[producer of k, j'] for every checkpoint j' before."""
    index = program.index
    for stage in range(len(index.runs_backward)):
        segment = program.segment(stage)
        at_checkpoint = segment < len(program.at) and program.at[segment] == stage
        for name in sorted(index.reads[stage]):
            if name in index.pinned:
                continue
            readers, away = program.readers(stage, name), program.away(name)
            if at_checkpoint:
                _implied(program, readers, program.holds(name, segment), away if index.problem.in_place else ABSENT)
            else:
                made = _made(program, name, segment, shared)
                _implied(program, readers, program.holds(name, segment - 1), made, away)
            for checkpoint in range(min(segment, len(program.at) - 1)):
                if (checkpoint, segment) != (segment - 1, len(program.at)):  # the last segment's are these very rows
                    made = _made_after(program, name, checkpoint, shared)
                    _implied(program, readers, program.holds(name, checkpoint), made, away)


def _implied(program: CheckpointProgram, readers: Presence | None, *causes: Presence) -> None:
    """readers ≤ Σ causes, where None is 1"""
    if readers is not None:
        program.rows.implies(readers, *causes)
    else:
        total = Sum(1.0)
        for cause in causes:
            total.add(cause, -1.0)
        program.rows.at_most(total, 0.0)


def _in_place(program: CheckpointProgram) -> None:
    """A run that overwrites u excludes held[u, 0], and an intermediate whose making reads u."""
    index = program.index
    for i, runs in enumerate(index.runs_forward):
        for q in runs if len(runs) > 1 else ():
            if q.overwrites is not None:
                spoilt = (q.overwrites, *(v.id for v in index.intermediates[i] if q.overwrites in v.reads))
                for name in spoilt:
                    program.rows.excludes((program.forward[i, q.name],), program.holds(name, 0), program.away(name))


def _certain_reads(index: Index) -> dict[str, int]:
    """The last stage that reads each pinned tensor whatever the plan; −1 without one."""
    certain: dict[str, int] = {}
    for stage, runs in enumerate(index.runs_backward):
        for name in index.reads[stage] & index.pinned:
            if all(name in q.reads for q in runs):
                certain[name] = stage
    return certain


def _memory(program: CheckpointProgram, checkpoint: int) -> None:
    """fixed + gradients + Σ_q backward[t, q]·(workspace − aliased) + Σ_k held[k, j]·bytes ≤ budget"""
    index, stage = program.index, program.at[checkpoint]
    total = Sum(program.index.problem.fixed_bytes)
    if stage == TURNAROUND:
        total.constant += index.problem.backward[0].live_before_bytes if index.problem.backward else 0
    else:
        total.constant += index.problem.backward[stage].live_during_bytes
        runs = index.runs_backward[stage]
        _add_chosen(total, [(program.backward.get((stage, q.name)), q.workspace_bytes - q.aliased_bytes) for q in runs])
    for name, last in _certain_reads(index).items():
        total.constant += index.size[name] if last >= stage else 0
    for name in index.last:
        total.add(program.holds(name, checkpoint), index.size[name])
    leave_out_carried(program, total, (True, stage))
    _fit(program, total, (True, stage))


def _forward_memory(program: CheckpointProgram) -> None:
    """fixed + outputs of i + Σ_q forward[i, q]·(workspace − aliased) + what is needed later ≤ budget"""
    index, problem = program.index, program.index.problem
    certain = _certain_reads(index)
    final = {name: (index.consumers.get(name) or (i,))[-1] for name, i in index.producer.items()}
    for i in program.checkpoints.forward:
        operator = problem.forward[i]
        total = Sum(problem.fixed_bytes + sum(index.size[name] for name in operator.outputs))
        for name, made in index.producer.items():
            if made >= i:
                continue
            intermediate = name not in problem.forward[made].outputs
            if not intermediate and (final[name] >= i or name in certain):
                total.constant += index.size[name]
            else:
                total.add(program.holds(name, 0), index.size[name])
        runs = index.runs_forward[i]
        _add_chosen(total, [(program.forward.get((i, q.name)), q.workspace_bytes - q.aliased_bytes) for q in runs])
        leave_out_carried(program, total, (False, i))
        _fit(program, total, (False, i))
        for more in under_way(program, i, total, final):
            _fit(program, more, (False, i))


def _add_chosen(total: Sum, offered: Iterable[tuple[int | None, int]]) -> None:
    """Adds the bytes of what is chosen from ``offered``: (column, bytes), without a column where there is no choice."""
    for column, size in offered:
        if column is None:
            total.constant += size
        else:
            total.add((column,), size)


def _fit(program: CheckpointProgram, total: Sum, checkpoint: Checkpoint) -> None:
    """total ≤ budget; the row is remembered, unless no point can break it."""
    row = len(program.rows.lower)
    program.rows.at_most(total, float(program.budget_bytes))
    if len(program.rows.lower) > row:
        program.memory[row] = checkpoint

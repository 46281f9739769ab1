"""Parameters and an optimiser's state in the checkpoint program.

====================  ======================================================================================
``carried[s]``        s is in the second memory from step to step, and in memory for the operators that use it
``stays[s, u]``       s is carried, and in memory from use u to its next one; where checkpoints are between the two
``there[s]``          s is carried, is used in the backward pass, and in memory from the turnaround to that use
====================  ======================================================================================

What is carried takes no memory at a checkpoint whose operator does not use it, unless it stays over it or is there.
Each step reads it, again for each use until which it has not stayed, and writes what it changes, once at least::

    memory at c − Σ_{s that the operator of c may do without} bytes(s) · carried[s]
                + Σ_{s} bytes(s) · (stays[s, u over c], or there[s])                 ≤  budget
    Σ_s copied_s(s) · carried[s] + Σ_{s, u} read_s(s) · (carried[s] − stays[s, u])
                                 + Σ_k (write_s(k) + read_s(k)) · gone[k]            ≤  seconds of the step + waiting

In the backward pass it reads what was not there at its beginning, and writes what the updates change::

    Σ_s (write_s(s) · carried[s] + read_s(s) · (carried[s] − there[s]))
      + Σ_{s, u in it} read_s(s) · (carried[s] − stays[s, u]) + Σ_k read_s(k) · gone[k]  ≤  its seconds + waiting

All are true of every plan, whatever it carries. One channel is both directions', and all copies are over when the step
is. Copies that the step waits for at once cost their seconds instead of the last two rows.
"""

from __future__ import annotations

from itertools import pairwise

from monet.planner.checkpoints.columns import Checkpoint, CheckpointProgram
from monet.planner.checkpoints.copies import (
    copied_s,
    copied_state,
    seconds_of_backward,
    seconds_of_forward,
    wait_forward,
)
from monet.planner.problem import ASYNCHRONOUS, StateTensor
from monet.planner.solvers.rows import Sum


def add_carried_columns(program: CheckpointProgram) -> None:
    """``carried`` and ``stays``, at what copies cost whatever else is decided."""
    second, rows = program.index.problem.second, program.rows
    checkpoints = [*((False, i) for i in program.checkpoints.forward), *((True, stage) for stage in program.at)]
    for tensor in program.state:
        assert second is not None, "nothing is carried without a second memory"
        seconds, again_s = copied_s(second, tensor), second.read_s(tensor.bytes)
        if second.mode == ASYNCHRONOUS:
            seconds = (tensor.bytes + tensor.written_bytes) * second.slowdown_s
            again_s = tensor.bytes * second.slowdown_s
        column = program.carried[tensor.id] = rows.column(seconds)
        if tensor.backward:
            program.there[tensor.id] = rows.column()
            rows.implies((program.there[tensor.id],), (column,))
        for use, following in pairwise(uses(tensor)):
            if not any(use < checkpoint < following for checkpoint in checkpoints):
                continue
            stays = program.stays[tensor.id, use] = rows.column(-again_s)
            rows.costs[column] += again_s
            rows.implies((stays,), (program.there[tensor.id] if use == last_forward(tensor) else column,))


def uses(tensor: StateTensor) -> list[Checkpoint]:
    """In order of time."""
    return [*((False, i) for i in sorted(tensor.forward)), *((True, stage) for stage in sorted(tensor.backward))]


def last_forward(tensor: StateTensor) -> Checkpoint | None:
    """The last use in the forward pass of what the backward pass uses, too: what stays after it is there at the
    turnaround."""
    return (False, max(tensor.forward)) if tensor.forward and tensor.backward else None


def leave_out_carried(program: CheckpointProgram, total: Sum, checkpoint: Checkpoint) -> None:
    """Takes off ``total`` what is carried, not used at a checkpoint, and not in memory all the same."""
    for tensor in program.state:
        used = uses(tensor)
        if checkpoint in used:
            continue
        total.add((program.carried[tensor.id],), -tensor.bytes)
        before = max((use for use in used if use < checkpoint), default=None)
        if checkpoint[0] and tensor.backward and checkpoint[1] < min(tensor.backward):
            total.add((program.there[tensor.id],), tensor.bytes)
        elif before is not None and (tensor.id, before) in program.stays:
            total.add((program.stays[tensor.id, before],), tensor.bytes)


def add_channel_rows(program: CheckpointProgram) -> None:
    """What the channel copies in a step takes no longer than that, nor what it copies in the backward pass than that,
    where copies run beside operators."""
    index = program.index
    second = index.problem.beside
    if second is None or not program.carried:
        return
    end = len(index.runs_forward)
    in_backward = seconds_of_backward(program, 0, len(index.runs_backward))
    in_step = wait_forward(program, seconds_of_forward(program, 0, end), 0, end, -1.0)
    in_step.plus(in_backward).plus(copied_state(program, second))
    again_s = {tensor.id: second.read_s(tensor.bytes) for tensor in program.state}
    for tensor in program.state:
        if tensor.backward:
            in_backward.add((program.carried[tensor.id],), copied_s(second, tensor))
            in_backward.add((program.there[tensor.id],), -again_s[tensor.id])
    for (name, (backward, _)), column in program.stays.items():
        if backward:
            in_backward.add((program.carried[name],), again_s[name]).add((column,), -again_s[name])
    for name, column in program.gone.items():
        in_step.add((column,), second.write_s(index.size[name]) + second.read_s(index.size[name]))
        in_backward.add((column,), second.read_s(index.size[name]))
    program.rows.at_most(in_step, 0.0)
    program.rows.at_most(in_backward, 0.0)

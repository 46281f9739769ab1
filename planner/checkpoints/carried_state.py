"""Parameters and an optimiser's state in the checkpoint program: ``carried[s]``.

====================  ======================================================================================
``carried[s]``        s is in the second memory from step to step, and in memory for the operators that use it
====================  ======================================================================================

It takes no memory at a checkpoint whose operator does not use it, and each step reads it and writes what it changes,
once at least::

    memory at c − Σ_{s that the operator of c may do without} bytes(s) · carried[s]  ≤  budget
    Σ_s copied_s(s) · carried[s] + Σ_k (write_s(k) + read_s(k)) · gone[k]            ≤  seconds of the step + waiting

Both are true of every plan, whatever it carries: one that reads a tensor twice, or keeps it longer than it is used,
takes more of both. One channel is both directions', and all copies are over when the step is. Copies that the step
waits for at once cost their seconds instead of the second row.
"""

from __future__ import annotations

from monet.planner.checkpoints.columns import Checkpoint, CheckpointProgram
from monet.planner.checkpoints.copies import copied_s, seconds_of_backward, seconds_of_forward, wait_forward
from monet.planner.problem import ASYNCHRONOUS
from monet.planner.solvers.rows import Sum


def add_carried_columns(program: CheckpointProgram) -> None:
    """``carried``, at what copies cost whatever else is decided."""
    second = program.index.problem.second
    for tensor in program.state:
        assert second is not None, "nothing is carried without a second memory"
        seconds = copied_s(second, tensor)
        if second.mode == ASYNCHRONOUS:
            seconds = (tensor.bytes + tensor.written_bytes) * second.slowdown_s
        program.carried[tensor.id] = program.rows.column(seconds)


def leave_out_carried(program: CheckpointProgram, total: Sum, checkpoint: Checkpoint) -> None:
    """Takes off ``total`` what is carried and not used at a checkpoint."""
    backward, position = checkpoint
    for tensor in program.state:
        if position not in (tensor.backward if backward else tensor.forward):
            total.add((program.carried[tensor.id],), -tensor.bytes)


def add_channel_row(program: CheckpointProgram) -> None:
    """All that the channel copies in a step takes no longer than that, where copies run beside it."""
    index = program.index
    second = index.problem.beside
    if second is None or not program.carried:
        return
    end = len(index.runs_forward)
    total = wait_forward(program, seconds_of_forward(program, 0, end), 0, end, -1.0)
    backward = seconds_of_backward(program, 0, len(index.runs_backward))
    total.constant += backward.constant
    for column, value in backward.terms.items():
        total.add((column,), value)
    for tensor in program.state:
        total.add((program.carried[tensor.id],), copied_s(second, tensor))
    for name, column in program.gone.items():
        total.add((column,), second.write_s(index.size[name]) + second.read_s(index.size[name]))
    program.rows.at_most(total, 0.0)

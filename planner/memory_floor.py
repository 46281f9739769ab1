"""A bound from below on the memory of every plan in the captured order: what each operator must have beside it."""

from __future__ import annotations

from monet.planner.problem import Problem


def floor_bytes(problem: Problem) -> int:
    """No plan's peak is less in the captured order, whatever it keeps or runs again: inputs and outputs of one operator
    by its leanest implementation, what the backward pass holds by then, and the fixed bytes."""
    size = {tensor.id: tensor.bytes for tensor in problem.tensors}
    size |= {made.id: made.bytes for made in problem.intermediates}
    forward = (
        sum(size[n] for n in {*operator.inputs, *operator.outputs})
        + min(q.workspace_bytes - q.aliased_bytes for q in operator.implementations)
        for operator in problem.forward
    )
    backward = (
        operator.live_during_bytes
        + min(
            q.workspace_bytes - q.aliased_bytes + sum(size[n] for n in set(q.reads)) for q in operator.implementations
        )
        for operator in problem.backward
    )
    return problem.fixed_bytes + max((*forward, *backward), default=0)

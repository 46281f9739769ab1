"""Bounds from below that need no search: on the memory of every plan in the problem's order, by what each operator
needs to run at all, and on its seconds."""

from __future__ import annotations

import math

from monet.planner.problem import Problem


def floor_s(problem: Problem) -> float:
    """No plan in any order of these operators takes fewer seconds: each runs once, by its fastest implementation."""
    forward_s = sum(min(q.time_s for q in operator.implementations) for operator in problem.forward)
    return forward_s + sum(min(q.time_s for q in operator.implementations) for operator in problem.backward)


def floor_bytes(problem: Problem) -> int:
    """No plan in the problem's order has a smaller peak, whatever it keeps or runs again: the fixed bytes, and the most
    that any one operator needs by its leanest implementation.

    A forward operator needs its inputs and outputs, a backward operator what it reads and the gradients of that time;
    but for what operators may read and write in a second memory.
    """
    smallest = problem.second.smallest_bytes if problem.second is not None and problem.in_place else math.inf
    size = {tensor.id: tensor.bytes if tensor.bytes < smallest else 0 for tensor in problem.tensors}
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

"""A valid plan of as many buffers as wanted, without a layout: a forward pass keeps, a backward pass frees."""

from __future__ import annotations

from monet.plans.format import Buffer, PlanStep
from monet.plans.plan import Plan


def large_plan(buffers: int) -> Plan:
    """Half of the buffers are values on top of each other, the others temporaries above them all."""
    count, size = buffers // 4, 64
    top, ticks = 2 * count * size, 4 * count
    steps, made = [], []
    for k in range(2 * count):
        is_forward = k < count
        partner = 2 * count - 1 - k
        kind, node = ("forward", f"relu_{k}") if is_forward else ("backward", f"relu_backward_{k}")
        value, end, last = (node, ticks - 2 * k, partner) if is_forward else (node, 2 * k + 2, k)
        first = 2 * k
        number = 2 * k
        offset = k * size if is_forward else (count + partner) * size
        made.append(Buffer(number, value, size, offset, first, end, k, last))
        made.append(Buffer(number + 1, f"{node}.temporary", size, top, first + 1, first + 2, k, k))
        reads = {} if is_forward else {f"relu_{partner}": 2 * partner}
        steps.append(PlanStep(kind, node, "aten", reads, {node: number}, (number, number + 1), (size, size), first))
    arena = top + size
    return Plan(
        budget_bytes=2 * arena, arena_bytes=arena, arena_bound_bytes=arena, fixed_bytes=640, fixed={"parameters": 640},
        steps=tuple(steps), buffers=tuple(made), model={"name": "large", "fingerprint": "f"},
        solver={"eager_peak_bytes": 3 * arena, "baseline_s": 1.0, "objective_s": 1.1},
    )  # fmt: skip

"""What a region is run by: its calls one after another, as they were, or one kernel. And which records regions have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from monet.base.graph import Operator, Value, operator_inputs
from monet.ops.fusion import loss_head
from monet.ops.fusion.compiling import kernel_of
from monet.ops.fusion.fused import Fused
from monet.ops.kernel_names import kernel
from monet.ops.offers.context import Context
from monet.ops.offers.implementation import Implementation
from monet.ops.offers.record import Record

# A compiler contracts a product and a sum to one rounding, and has an exp of its own (1 unit in the last place): some
# roundings of the coarsest format that a region has inside, relative to the terms of its sums.
TOLERANCE = {torch.float32: 16 * 2.0**-24, torch.bfloat16: 16 * 2.0**-9, torch.float16: 16 * 2.0**-12}


@kernel("in_turn")
def in_turn(fused: Fused, *inputs: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
    """The results of the region's calls, made one after another."""
    results = fused.run(*inputs)
    return results[0] if len(results) == 1 else tuple(results)


def offers(op: Operator, context: Context) -> list[Implementation]:
    """Both; what is inside of a region is no operator of the step, so nothing is in place."""
    assert isinstance(op.target, Fused)
    dtypes = {context.value(name).dtype for name in (*operator_inputs(op), *op.outputs) if name is not None}
    tolerance = max(TOLERANCE.get(dtype, 0.0) for dtype in dtypes)
    made: dict[str, Any] = {"outputs": op.outputs, "single": op.single, "exact": False, "tolerance": tolerance}
    calls = Implementation("in-turn", in_turn, (op.target, *op.args), (), **made)
    return [calls, Implementation("fused", op.target, op.args, (), **made)]


def make_ready(run: Implementation, values: Mapping[str, Value]) -> None:
    """Has the kernels that ``run`` calls compiled."""
    if isinstance(run.call, Fused):
        inputs = [values[argument.name] for argument in run.args]
        kernel_of(run.call, tuple((v.dtype, v.shape, v.stride, v.device) for v in inputs))
    elif run.call is loss_head.loss_head:
        for geometry in loss_head.geometries(run, values):
            kernel_of(run.args[0].of_block, geometry)


def recompute(op: Operator, context: Context) -> list[Implementation] | None:
    """As ``offers``; None where an input has changed since."""
    return None if context.reads_written(op) else offers(op, context)


RECORD = Record(
    name="region",
    family="regions",
    forward_targets=(),
    backward_targets=(),
    equations="PyTorch's compiler (Inductor) makes one kernel of several calls",
    samples=(),
    forward=offers,
    recompute=recompute,
    backward=offers,
)


def record(op: Operator) -> Record | None:
    """Of an operator that ``with_regions`` has made; None for any other."""
    if isinstance(op.target, Fused):
        return RECORD
    return loss_head.RECORD if isinstance(op.target, loss_head.Head | loss_head.Scaled) else None

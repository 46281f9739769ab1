"""What a region is run by: its calls one after another, as they were, or one kernel. And which records regions have."""

from __future__ import annotations

from collections.abc import Mapping
from operator import getitem
from typing import Any

import torch

from monet.base.graph import Operator, Ref, Value, operator_inputs
from monet.ops.fusion import loss_head
from monet.ops.fusion.compiling_ahead import Wanted
from monet.ops.fusion.fused import Fused, Slot, Step, step_of
from monet.ops.kernel_names import kernel
from monet.ops.offers.context import Context
from monet.ops.offers.implementation import Implementation
from monet.ops.offers.record import Record
from monet.ops.strides import contiguous, same

aten = torch.ops.aten

# A compiler contracts a product and a sum to one rounding, and has an exp of its own (1 unit in the last place): some
# roundings of the coarsest format that a region has inside, relative to the terms of its sums.
TOLERANCE = {torch.float32: 16 * 2.0**-24, torch.bfloat16: 16 * 2.0**-9, torch.float16: 16 * 2.0**-12}
LEAST_ALONE = 1 << 18
"""Elements of an operator that gets a kernel of its own: of fewer, aten's takes a tenth of a millisecond."""


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


def kernels(run: Implementation, values: Mapping[str, Value]) -> list[Wanted]:
    """Those that ``run`` calls, with the geometries of their inputs."""
    if isinstance(run.call, Fused):
        inputs = [values[argument.name] for argument in run.args]
        return [(run.call, tuple((v.dtype, v.shape, v.stride, v.device) for v in inputs))]
    if run.call is loss_head.loss_head:
        return [(run.args[0].of_block, geometry) for geometry in loss_head.geometries(run, values)]
    return []


def is_compiled(run: Implementation) -> bool:
    """Whether ``run`` calls a kernel of the compiler."""
    return isinstance(run.call, Fused) or run.call is loss_head.loss_head


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


def alone(op: Operator, context: Context) -> list[Implementation]:
    """One kernel for one operator, where aten's is slow: layer norm of images with channels first, of which it makes a
    copy, and the forward pass of batch norm on them, of which it makes several sweeps (a half to a fifth of the time).
    """
    if not _is_slow(op, context):
        return []
    inputs = operator_inputs(op)
    made = tuple(name for name in op.outputs if name is not None)
    slots = {name: number for number, name in enumerate(inputs)}
    picked = [Step(getitem, (Slot(len(inputs)), k), ()) for k, name in enumerate(op.outputs) if name is not None]
    outputs = tuple(len(inputs) + 1 + k for k in range(len(picked)))
    program = Fused(len(inputs), (step_of(op, slots), *picked), outputs)
    args = tuple(Ref(name) for name in inputs)
    tolerance = TOLERANCE.get(context.value(made[0]).dtype, 0.0)
    return [
        Implementation("fused", program, args, outputs=made, single=len(made) == 1, exact=False, tolerance=tolerance)
    ]


def _is_slow(op: Operator, context: Context) -> bool:
    large = _LARGE.get(op.target, ())
    given = [context.value(op.args[k].name) for k in large]
    if not any(op.outputs) or any(value.numel < LEAST_ALONE for value in given):
        return False
    are_contiguous = [same(value.shape, value.stride, contiguous(value.shape)) for value in given]
    if op.target is aten.native_batch_norm.default:
        return bool(op.args[5]) and all(are_contiguous)  # in training
    return not all(are_contiguous)


_LARGE: dict[Any, tuple[int, ...]] = {
    aten.native_layer_norm.default: (0,),
    aten.native_layer_norm_backward.default: (0, 1),
    aten.native_batch_norm.default: (0,),
}
"""Positions of the arguments that are as large as the result."""


def record(op: Operator) -> Record | None:
    """Of an operator that ``with_regions`` has made; None for any other."""
    if isinstance(op.target, Fused):
        return RECORD
    return loss_head.RECORD if isinstance(op.target, loss_head.Head | loss_head.Scaled) else None

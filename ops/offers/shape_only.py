"""Operators that read only the shape of an argument, and stand-ins for such arguments.

Many of aten's backward kernels take the forward input for its sizes, its dtype and its memory format. A stand-in has
all of these, and no memory: it lies in a range of addresses that is reserved, readable and never written to,
so the system has no page for it. Where a kernel reads it after all, it reads zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from monet.base.graph import Operator, Ref, references
from monet.ops.kernel_names import kernel
from monet.ops.kernels.stand_in import stand_in
from monet.ops.offers.context import Context, plain
from monet.ops.offers.implementation import Implementation
from monet.ops.strides import same

aten = torch.ops.aten
# By operator, the positions of arguments of which it reads the shape alone. ``test_shape_only`` fills them with NaN.
SHAPE_ONLY: dict[Callable[..., Any], tuple[int, ...]] = {
    aten.max_pool2d_with_indices_backward.default: (1,),
    aten.max_pool3d_with_indices_backward.default: (1,),
    aten.adaptive_max_pool2d_backward.default: (1,),
    aten.adaptive_max_pool3d_backward.default: (1,),
    aten.fractional_max_pool2d_backward.default: (1,),
    aten.fractional_max_pool3d_backward.default: (1,),
    aten.avg_pool2d_backward.default: (1,),
    aten.avg_pool3d_backward.default: (1,),
    aten._adaptive_avg_pool2d_backward.default: (1,),
    aten._adaptive_avg_pool3d_backward.default: (1,),
    aten.reflection_pad1d_backward.default: (1,),
    aten.reflection_pad2d_backward.default: (1,),
    aten.reflection_pad3d_backward.default: (1,),
    aten.replication_pad1d_backward.default: (1,),
    aten.replication_pad2d_backward.default: (1,),
    aten.replication_pad3d_backward.default: (1,),
    aten.nll_loss_backward.default: (1,),
    aten.nll_loss2d_backward.default: (1,),
    aten.zeros_like.default: (0,),
    aten.ones_like.default: (0,),
    aten.full_like.default: (0,),
    aten.new_zeros.default: (0,),
    aten.new_ones.default: (0,),
    aten.new_full.default: (0,),
}


def shape_only(op: Operator, context: Context, positions: Sequence[int]) -> Implementation:
    """The operator's aten kernel on stand-ins for the arguments at ``positions``, so that it does not read them."""
    where: list[Any] = []
    for position in positions:
        argument = op.args[position]
        value = context.value(argument.name) if isinstance(argument, Ref) else None
        if value is None or value.device.type != "cpu":
            continue
        where.append((position, list(value.shape), list(value.stride), value.dtype))
    if not where:
        return plain(op)
    args = [a for i, a in enumerate(op.args) if i not in {position for position, *_ in where}]
    holds = tuple(references([op.args[position] for position, *_ in where]))
    result = op.outputs[0] if op.single else None
    stride = list(context.value(result).stride) if result is not None else []
    call = (op.target, where, stride, *args)
    return Implementation("aten", on_stand_ins, call, op.kwargs, op.outputs, op.single, holds=holds)


@kernel("on_stand_ins")
def on_stand_ins(
    target: Callable[..., Any], where: Sequence[Any], wanted: Sequence[int], *args: Any, **kwargs: Any
) -> Any:
    """``target`` with stand-ins inserted among its arguments. ``where``: position, shape, stride and dtype of each.

    ``wanted``: strides of the result, if it is one tensor. Some kernels return others than torch traced them with
    (reflection padding's gradient in channels-last), and what comes after is planned for these.
    """
    filled = list(args)
    for position, shape, stride, dtype in where:
        filled.insert(position, stand_in(shape, stride, dtype))
    result = target(*filled, **kwargs)
    if wanted and not same(result.shape, result.stride(), wanted):
        return torch.empty_strided(result.shape, list(wanted), dtype=result.dtype).copy_(result)
    return result


def forward(op: Operator, context: Context) -> list[Implementation]:
    """The aten kernel, on stand-ins where the operator reads no more than a shape."""
    return [shape_only(op, context, SHAPE_ONLY.get(op.target, ()))]


def recompute(op: Operator, context: Context) -> list[Implementation] | None:
    """As ``forward``: these read no contents, so none can have changed."""
    return forward(op, context) if op.target in SHAPE_ONLY else None


def backward(op: Operator, context: Context) -> list[Implementation]:
    """The same for a backward operator."""
    return forward(op, context)

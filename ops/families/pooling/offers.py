"""Max pooling's gradient needs one byte an output, the cell in the window, not an int64 and the input."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from monet.base.graph import Operator, Ref, Value
from monet.ops.kernels import pool_index
from monet.ops.offers import shape_only
from monet.ops.offers.context import Context
from monet.ops.offers.implementation import Implementation, SavedIntermediate
from monet.ops.strides import channels_inside, channels_last, contiguous, same, without_gaps

aten = torch.ops.aten

# Dimensions of a plane.
RANK: dict[Callable[..., Any], int] = {
    aten.max_pool2d_with_indices.default: 2,
    aten.max_pool3d_with_indices.default: 3,
    aten.adaptive_max_pool2d.default: 2,
    aten.adaptive_max_pool3d.default: 3,
}
_DTYPES = (torch.float32, torch.bfloat16)
# One byte tells the cells of a window apart.
MOST_CELLS = 256


def _sizes(value: Any, default: int, rank: int) -> list[int]:
    numbers = [value] if isinstance(value, int) else list(value)
    return [default] * rank if not numbers else numbers * rank if len(numbers) == 1 else numbers


def _geometry(op: Operator, context: Context) -> list[list[int]]:
    """Of a forward pooling, each with one number a dimension: the input's sizes, (largest) window, stride (none:
    adaptive windows), padding, dilation."""
    rank = RANK[op.target]
    sizes, args = list(context.value(op.args[0].name).shape[-rank:]), op.args[1:]
    if op.target in (aten.adaptive_max_pool2d.default, aten.adaptive_max_pool3d.default):
        counts = _sizes(args[0], 1, rank)
        spans = [
            max(((o + 1) * size + count - 1) // count - o * size // count for o in range(count))
            for size, count in zip(sizes, counts, strict=True)
        ]
        return [sizes, spans, [], [0] * rank, [1] * rank]
    kernel = _sizes(args[0], 1, rank)
    stride = _sizes(args[1], 0, rank) if len(args) > 1 and args[1] else kernel
    padding = _sizes(args[2], 0, rank) if len(args) > 2 else [0] * rank
    dilation = _sizes(args[3], 1, rank) if len(args) > 3 else [1] * rank
    return [sizes, kernel, stride, padding, dilation]


def _cells(op: Operator, context: Context) -> Value | None:
    """The 8-bit index of a forward max pooling; None where a window has over 256 cells."""
    result, indices = op.outputs
    if result is None or indices is None or pool_index.library() is None:
        return None
    out = context.value(indices)
    geometry = _geometry(op, context)
    if context.value(result).dtype not in _DTYPES or out.device.type != "cpu" or math.prod(geometry[1]) > MOST_CELLS:
        return None
    if 0 in out.shape or not _one_block(out, len(geometry[0])):
        return None
    name = f"{op.name}.cells"
    return Value(name, out.shape, out.stride, 0, torch.uint8, out.device, name, out.numel)


def _one_block(value: Value, rank: int) -> bool:
    """Contiguous or channels-last, without gaps."""
    formats = [contiguous(value.shape), channels_last(value.shape) if len(value.shape) - rank == 2 else None]
    return without_gaps(value) and any(same(value.shape, value.stride, stride) for stride in formats)


def intermediates(op: Operator, context: Context) -> list[SavedIntermediate]:
    """The 8-bit index, made from aten's."""
    cells = _cells(op, context)
    if cells is None or op.outputs[1] is None:
        return []
    make = Implementation(
        "cells", pool_index.pool_pack, (Ref(op.outputs[1]), _geometry(op, context)), (), (cells.name,)
    )
    return [SavedIntermediate(cells, make, "pool-index")]


def backward(op: Operator, context: Context) -> list[Implementation]:
    """aten's own, of whose input only the shape matters, and from the 8-bit index."""
    found = shape_only.backward(op, context)
    maker = context.producer.get(op.args[-1].name)
    cells = _cells(maker, context) if maker is not None and maker.target in RANK else None
    if cells is None or maker is None or op.outputs[0] is None:
        return found
    result = context.value(op.outputs[0])
    if result.dtype is context.value(op.args[0].name).dtype and _same_format(result, cells, RANK[maker.target]):
        call = (op.args[0], Ref(cells.name), list(result.shape), list(result.stride), _geometry(maker, context))
        found.append(Implementation("from-cells", pool_index.pool_gradient, call, (), op.outputs))
    return found


def _same_format(result: Value, cells: Value, rank: int) -> bool:
    """The kernel writes the gradient in the cells' memory format."""
    last = len(cells.shape) - rank == 2 and channels_inside(cells.shape, cells.stride, rank)
    wanted = channels_last(result.shape) if last else contiguous(result.shape)
    return without_gaps(result) and same(result.shape, result.stride, wanted)

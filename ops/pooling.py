"""Max pooling: the gradient needs one byte an output, the cell in the window, not an int64 and the input."""

from __future__ import annotations

from typing import Any

import torch

from monet.graph import Operator, Ref, Value
from monet.ops import native
from monet.ops.implementation import Context, Implementation, SavedIntermediate
from monet.ops.record import Record
from monet.ops.sample import Sample
from monet.ops.shape import of_shape

aten = torch.ops.aten


def _pair(value: Any, default: int) -> list[int]:
    numbers = [value] if isinstance(value, int) else list(value)
    return [default, default] if not numbers else numbers * 2 if len(numbers) == 1 else numbers


def _geometry(args: tuple[Any, ...]) -> list[int]:
    """kernel, stride, padding, dilation, each (h, w), from the arguments after the tensors."""
    kernel = _pair(args[0], 1)
    stride = _pair(args[1], 0) if len(args) > 1 and args[1] else kernel
    padding = _pair(args[2], 0) if len(args) > 2 else [0, 0]
    dilation = _pair(args[3], 1) if len(args) > 3 else [1, 1]
    return [*kernel, *stride, *padding, *dilation]


def _cells(op: Operator, context: Context) -> Value | None:
    """The 8-bit index of a forward max pooling; None where a window has over 256 cells."""
    result, indices = op.outputs
    if result is None or indices is None or native.library() is None:
        return None
    out, x = context.value(result), context.value(op.args[0].name)
    geometry = _geometry(op.args[1:])
    if out.dtype is not torch.float32 or out.device.type != "cpu" or geometry[0] * geometry[1] > 256:
        return None
    if out.storage_bytes != 4 * out.numel or x.stride[-1] != 1 or x.stride[-2] != x.shape[-1]:
        return None
    name = f"{op.name}.cells"
    return Value(name, out.shape, out.stride, 0, torch.uint8, out.device, name, out.numel)


def intermediates(op: Operator, context: Context) -> list[SavedIntermediate]:
    cells = _cells(op, context)
    if cells is None or op.outputs[1] is None:
        return []
    shape = list(context.value(op.args[0].name).shape)
    make = Implementation(
        "cells", native.pool_pack, (Ref(op.outputs[1]), shape, _geometry(op.args[1:])), (), (cells.name,)
    )
    return [SavedIntermediate(cells, make, "pool-index")]


def backward(op: Operator, context: Context) -> list[Implementation]:
    """aten's own, of whose input only the shape matters, and from the 8-bit index."""
    gradient, x, *rest, indices = op.args
    shape = list(context.value(x.name).shape)
    found = [Implementation("from-indices", from_indices, (gradient, shape, rest, indices), op.kwargs, op.outputs)]
    maker = context.producer.get(indices.name)
    cells = (
        _cells(maker, context) if maker is not None and maker.target is aten.max_pool2d_with_indices.default else None
    )
    if cells is not None:
        call = (gradient, Ref(cells.name), shape, _geometry(tuple(rest)))
        found.append(Implementation("from-cells", native.pool_gradient, call, (), op.outputs))
    return found


def from_indices(gradient: torch.Tensor, shape: list[int], rest: list[Any], indices: torch.Tensor) -> torch.Tensor:
    """aten's kernel on a tensor of the input's shape that owns no memory."""
    result: torch.Tensor = aten.max_pool2d_with_indices_backward.default(
        gradient, of_shape(gradient, shape), *rest, indices
    )
    return result


RECORDS = (
    Record(
        name="max_pool2d",
        family="pooling",
        forward_targets=(aten.max_pool2d_with_indices.default,),
        backward_targets=(aten.max_pool2d_with_indices_backward.default,),
        equations="Gist, section 4: the cell in the window instead of the index in the plane",
        samples=(Sample("max_pool2d", lambda x: torch.nn.functional.max_pool2d(x, 3, 2, 1), ((2, 3, 11, 13),)),),
        intermediates=intermediates,
        backward=backward,
    ),
)

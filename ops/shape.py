"""Operators that read only the shape of an argument, and stand-ins for such arguments.

Many of aten's backward kernels take the forward input for its sizes, its dtype and its memory format. A stand-in has
all of these, and no memory: it lies in a range of addresses that is reserved, readable and never written to,
so the system has no page for it. Where a kernel reads it after all, it reads zeros.
"""

from __future__ import annotations

import mmap
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from monet.errors import ExecutionError
from monet.graph import Operator, Ref, references
from monet.ops.implementation import Context, Implementation, plain
from monet.ops.memory_format import same

aten = torch.ops.aten

# Which arguments of an operator do not change its results, besides by their shape. ``test_shape_only`` fills them
# with NaN.
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

# More than most stand-ins, so that few processes reserve twice; little enough for a limited address space (ulimit -v).
_LEAST_RESERVED_BYTES = 1 << 30
_reserved: torch.Tensor | None = None


def _reserve(size: int) -> torch.Tensor:
    """A read-only range of at least ``size`` addresses as bytes; the process has one, made anew where too small."""
    global _reserved
    if _reserved is None or _reserved.numel() < size:
        _reserved = None  # gives its addresses back
        try:
            _reserved = _mapped(1 << (max(size, _LEAST_RESERVED_BYTES) - 1).bit_length())
        except OSError:  # no room for more than is needed
            _reserved = _mapped_exactly(size)
    return _reserved


def _mapped(size: int) -> torch.Tensor:
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
    memory = mmap.mmap(-1, size, flags=flags, prot=mmap.PROT_READ)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that the memory is not writable: that is the point
        return torch.frombuffer(memory, dtype=torch.uint8)


def _mapped_exactly(size: int) -> torch.Tensor:
    """Raises ``ExecutionError`` where the system refuses: memory in its place would be outside the plan."""
    try:
        return _mapped(size)
    except OSError as error:
        raise ExecutionError(
            f"the system refuses {size} bytes of address space (no memory) for an argument of which only the shape is "
            f"read: {error.strerror}; raise the limit of address space (ulimit -v unlimited, or the batch system's), "
            "or take a smaller batch"
        ) from error


def stand_in(shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """A CPU tensor of this geometry that takes no memory; reading gives 0, writing ends the process.

    Raises ``ExecutionError`` where the system does not even give addresses for it.
    """
    last = sum((size - 1) * step for size, step in zip(shape, stride, strict=True)) if 0 not in shape else 0
    reserved = _reserve((last + 1) * dtype.itemsize)
    return reserved[: (last + 1) * dtype.itemsize].view(dtype).as_strided(list(shape), list(stride))


def stand_in_elsewhere(like: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """A tensor of ``shape`` on the device and in the dtype of ``like``, one element that is repeated; on devices where
    no addresses can be had without memory. Its strides are 0, so kernels take it for a contiguous one."""
    return like.new_zeros(1).expand(list(shape))


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
    """As ``forward``: nothing that these read can have changed."""
    return forward(op, context) if op.target in SHAPE_ONLY else None


def backward(op: Operator, context: Context) -> list[Implementation]:
    """The same for a backward operator."""
    return forward(op, context)

"""How a tensor's elements lie in memory: contiguous or channels-last, with or without gaps."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from monet.base.graph import Value
from monet.errors import ExecutionError


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a contiguous tensor."""
    return _in_order(shape, range(len(shape)))


def channels_last(shape: Sequence[int]) -> tuple[int, ...] | None:
    """The strides of a batch of images or volumes with the channels next to each other; None for other ranks, which
    torch has no such format for."""
    return _in_order(shape, (0, *range(2, len(shape)), 1)) if len(shape) in (4, 5) else None


def _in_order(shape: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    strides, step = [0] * len(shape), 1
    for dimension in reversed(order):
        strides[dimension] = step
        step *= max(shape[dimension], 1)
    return tuple(strides)


def same(shape: Sequence[int], one: Sequence[int], other: Sequence[int] | None) -> bool:
    """Whether strides put elements at the same places: the step of a dimension of one element means nothing, nor any in
    an empty tensor."""
    if other is None:
        return False
    return 0 in shape or all(a == b or size == 1 for a, b, size in zip(one, other, shape, strict=True))


def channels_inside(shape: Sequence[int], stride: Sequence[int], rank: int) -> bool:
    """Whether the planes of ``rank`` dimensions of a dense tensor (..., C, *plane) are interleaved by channels."""
    return shape[-rank - 1] > 1 and stride[-rank - 1] == 1 and math.prod(shape[-rank:]) > 1


def reach(shape: Sequence[int], stride: Sequence[int]) -> int:
    """Elements of memory from a tensor's first to its last."""
    return 0 if 0 in shape else 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))


def is_dense(shape: Sequence[int], stride: Sequence[int]) -> bool:
    """Whether the elements have a place each, without gaps, in whatever order of dimensions."""
    expected = 1
    for step, size in sorted((step, size) for size, step in zip(shape, stride, strict=True) if size != 1):
        if step != expected:
            return False
        expected *= size
    return True


def without_gaps(value: Value) -> bool:
    """Whether a value has as many elements as its storage has room for."""
    return value.storage_bytes == value.numel * value.dtype.itemsize


def has_strides(tensor: torch.Tensor, stride: Sequence[int]) -> bool:
    """``same`` of a tensor's own strides."""
    return same(tensor.shape, tensor.stride(), stride)


def require_strides(tensor: torch.Tensor, stride: Sequence[int], what: str) -> None:
    """Raises ``ExecutionError`` where a kernel that reads memory in order would take elements for others."""
    if not has_strides(tensor, stride):
        raise ExecutionError(
            f"{what} of shape {tuple(tensor.shape)} has strides {tensor.stride()}, planned for {tuple(stride)}; "
            "plan again for inputs of this memory format, or make it contiguous in the model"
        )


def require_contiguous(
    tensor: torch.Tensor, what: str, memory_format: torch.memory_format = torch.contiguous_format
) -> None:
    """``require_strides`` of memory that is contiguous in a format."""
    if not tensor.is_contiguous(memory_format=memory_format):
        raise ExecutionError(
            f"{what} of shape {tuple(tensor.shape)} has strides {tensor.stride()}, planned {memory_format}; "
            "plan again for inputs of this memory format, or make it contiguous in the model"
        )

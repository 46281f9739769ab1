"""Where the elements of a tensor lie, against where they were planned to."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from monet.errors import ExecutionError


def has_strides(tensor: torch.Tensor, stride: Sequence[int]) -> bool:
    """Whether the elements lie so: the step of a dimension of one element means nothing, nor any in an empty tensor."""
    return tensor.numel() == 0 or all(
        found == meant for found, meant, size in zip(tensor.stride(), stride, tensor.shape, strict=True) if size > 1
    )


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

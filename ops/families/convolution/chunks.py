"""Convolution by oneDNN on equal chunks of the batch, and its input gradient on channels-last copies.

oneDNN reorders contiguous tensors into blocked layouts of its own, in workspaces as large as the tensors; on one
chunk at a time these shrink with the chunk (MONeT, section 4.1, chooses among cuDNN's algorithms in the same way). The
input gradient of a strided convolution takes twice as much that way as in channels-last, copies included.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from monet.ops.kernel_names import kernel
from monet.ops.kernels.stand_in import stand_in, stand_in_elsewhere

aten = torch.ops.aten


@kernel("convolution_in_chunks")
def forward(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    geometry: Sequence[Any],
    shape: Sequence[int],
    stride: Sequence[int],
    count: int,
) -> torch.Tensor:
    """Convolution of x (N, C, ...) in ``count`` chunks. ``geometry``: stride to groups, as aten's ``convolution``
    takes them. ``shape``, ``stride``: of the result."""
    out = torch.empty_strided(list(shape), list(stride), dtype=x.dtype)
    size = shape[0] // count
    for start in range(0, shape[0], size):
        out[start : start + size] = aten.convolution.default(x[start : start + size], weight, bias, *geometry)
    return out


@kernel("convolution_input_gradient")
def input_gradient(
    gradient: torch.Tensor, weight: torch.Tensor, geometry: Sequence[Any], shape: Sequence[int], stride: Sequence[int]
) -> torch.Tensor:
    """The input gradient alone, on the CPU; of the input only ``shape`` and ``stride`` are needed. ``geometry``: the
    bias's sizes, then stride to groups."""
    return _input_gradient(gradient, stand_in(shape, stride, gradient.dtype), weight, geometry)


@kernel("convolution_input_gradient_elsewhere")
def input_gradient_elsewhere(
    gradient: torch.Tensor, weight: torch.Tensor, geometry: Sequence[Any], shape: Sequence[int]
) -> torch.Tensor:
    """The same on any device, where the input is contiguous."""
    return _input_gradient(gradient, stand_in_elsewhere(gradient, shape), weight, geometry)


def _input_gradient(
    gradient: torch.Tensor, like: torch.Tensor, weight: torch.Tensor, geometry: Sequence[Any]
) -> torch.Tensor:
    result: torch.Tensor = aten.convolution_backward.default(gradient, like, weight, *geometry, [True, False, False])[0]
    return result


@kernel("convolution_input_gradient_in_chunks")
def input_gradient_in_parts(
    gradient: torch.Tensor,
    weight: torch.Tensor,
    geometry: Sequence[Any],
    shape: Sequence[int],
    stride: Sequence[int],
    result_stride: Sequence[int],
    count: int,
) -> torch.Tensor:
    """The same in ``count`` chunks. ``stride``: of the input that oneDNN is told of, which decides on the layout it
    computes in."""
    out = torch.empty_strided(list(shape), list(result_stride), dtype=gradient.dtype)
    size = shape[0] // count
    for start in range(0, shape[0], size):
        part = gradient[start : start + size]
        out[start : start + size] = input_gradient(part, weight, geometry, [size, *shape[1:]], stride)
    return out


@kernel("convolution_parameter_gradient_in_chunks")
def parameter_gradient(
    gradient: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    geometry: Sequence[Any],
    with_bias: bool,
    stride: Sequence[int],
    count: int,
) -> Any:
    """Gradient of the weight, of ``stride``, and of the bias, summed over chunks of the batch in float32 at least."""
    size = x.shape[0] // count
    of_weight: torch.Tensor | None = None
    of_bias: torch.Tensor | None = None
    wide = torch.promote_types(gradient.dtype, torch.float32)
    mask = [False, True, with_bias]
    for start in range(0, x.shape[0], size):
        _, part, bias_part = aten.convolution_backward.default(
            gradient[start : start + size], x[start : start + size], weight, *geometry, mask
        )
        if of_weight is None:
            of_weight, of_bias = part.to(wide), bias_part.to(wide) if with_bias else None
        else:
            of_weight.add_(part)
            if of_bias is not None:
                of_bias.add_(bias_part)
        del part, bias_part
    assert of_weight is not None
    if of_weight.stride() != tuple(stride) or of_weight.dtype is not gradient.dtype:
        of_weight = torch.empty_strided(of_weight.shape, list(stride), dtype=gradient.dtype).copy_(of_weight)
    return (of_weight, of_bias.to(gradient.dtype)) if of_bias is not None else of_weight

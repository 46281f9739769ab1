"""Convolution of one image at a time as a matrix product with the windows of the image as columns.

With X the columns of an image, one row for each weight of a filter and one column for each output, and W the filters
as rows: output = W X, weight gradient = sum over images of G X^T, and columns of the input gradient = W^T G, which
are added where the windows lie (Chellapilla et al., 2006; Caffe). A 1 x 1 filter of stride 1 without padding
needs no columns: the image is X itself, and the only memory beside the result is the product's own.

A transposed convolution is the input gradient of a convolution: the same three with the roles exchanged.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import Any

import torch

from monet.ops.kernel_names import kernel


def temporary_numbers(
    channels: int,
    sizes: Sequence[int],
    out: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
) -> int:
    """Elements of the padded image and its columns."""
    if pointwise(kernel, stride, padding):
        return 0
    padded = math.prod(size + 2 * p for size, p in zip(sizes, padding, strict=True)) if any(padding) else 0
    return channels * (math.prod(kernel) * math.prod(out) + padded)


def pointwise(kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int]) -> bool:
    """Whether an image is its own matrix of columns."""
    return all(n == 1 for n in (*kernel, *stride)) and not any(padding)


def _columns(
    image: torch.Tensor, out: Sequence[int], kernel: Sequence[int], geometry: Sequence[Sequence[int]], groups: int
) -> torch.Tensor:
    """image (C, *sizes) → (groups, C / groups * cells, outputs); ``out``: the output's sizes."""
    stride, padding, dilation = geometry
    if pointwise(kernel, stride, padding):
        return image.reshape(groups, image.shape[0] // groups, -1)
    if any(padding):
        sizes = [size + 2 * p for size, p in zip(image.shape[1:], padding, strict=True)]
        padded = image.new_zeros([image.shape[0], *sizes])
        _inside(padded, image.shape[1:], padding).copy_(image)
        image = padded
    steps = image.stride()
    windows = image.as_strided(
        (image.shape[0], *kernel, *out),
        (
            steps[0],
            *(d * s for d, s in zip(dilation, steps[1:], strict=True)),
            *(n * s for n, s in zip(stride, steps[1:], strict=True)),
        ),
        image.storage_offset(),
    )
    return windows.reshape(groups, image.shape[0] // groups * math.prod(kernel), -1)


def _inside(padded: torch.Tensor, sizes: Sequence[int], padding: Sequence[int]) -> torch.Tensor:
    inside: list[slice] = [slice(p, p + size) for p, size in zip(padding, sizes, strict=True)]
    return padded[(slice(None), *inside)]


def _add_columns(
    columns: torch.Tensor,
    image: torch.Tensor,
    out: Sequence[int],
    kernel: Sequence[int],
    geometry: Sequence[Sequence[int]],
    bias: torch.Tensor | None,
) -> None:
    """Sets image (C, *sizes) to the sum of the windows that ``columns`` (as ``_columns`` makes) holds and of ``bias``,
    in float32 at least: each addition in bfloat16 would round once more."""
    stride, padding, dilation = geometry
    sizes = image.shape[1:]
    windows = columns.view(image.shape[0], *kernel, *out)
    padded = image.new_zeros(
        [image.shape[0], *(size + 2 * p for size, p in zip(sizes, padding, strict=True))],
        dtype=torch.promote_types(image.dtype, torch.float32),
    )
    for cell in product(*(range(k) for k in kernel)):
        begins = [c * d for c, d in zip(cell, dilation, strict=True)]
        places: list[slice] = [slice(b, b + (o - 1) * s + 1, s) for b, o, s in zip(begins, out, stride, strict=True)]
        padded[(slice(None), *places)].add_(windows[(slice(None), *cell)])  # type: ignore[index]
    inside = _inside(padded, sizes, padding)
    if bias is not None:
        inside += bias.view(-1, *[1] * len(kernel))
    image.copy_(inside)


def _flat(weight: torch.Tensor, groups: int) -> torch.Tensor:
    """weight (O, I / groups, *kernel) → (groups, O / groups, I / groups * cells)."""
    return weight.reshape(groups, weight.shape[0] // groups, -1)


@kernel("im2col_convolution")
def forward(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    shape: Sequence[int],
    stride: Sequence[int],
    geometry: Sequence[Sequence[int]],
    groups: int,
) -> torch.Tensor:
    """Convolution of x (N, C, *sizes), a dense tensor. ``shape``, ``stride``: of the result. ``geometry``: stride,
    padding and dilation by dimension."""
    result = torch.empty_strided(list(shape), list(stride), dtype=x.dtype)
    matrix, kernel = _flat(weight, groups), weight.shape[2:]
    for image, out in zip(x, result, strict=True):
        columns = _columns(image, shape[2:], kernel, geometry, groups)
        torch.bmm(matrix, columns, out=out.view(groups, shape[1] // groups, -1))
        del columns
        if bias is not None:
            out += bias.view(-1, *[1] * len(kernel))
    return result


@kernel("im2col_input_gradient")
def input_gradient(
    gradient: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    shape: Sequence[int],
    stride: Sequence[int],
    geometry: Sequence[Sequence[int]],
    groups: int,
) -> torch.Tensor:
    """Gradient of the input, of ``shape`` and ``stride``, from the output's (N, O, *sizes); ``bias`` is added where
    this is a transposed convolution."""
    result = torch.empty_strided(list(shape), list(stride), dtype=gradient.dtype)
    matrix, kernel = _flat(weight, groups).mT, weight.shape[2:]
    direct = pointwise(kernel, *geometry[:2])
    for part, image in zip(gradient, result, strict=True):
        part = part.reshape(groups, part.shape[0] // groups, -1)
        if direct:
            torch.bmm(matrix, part, out=image.view(groups, shape[1] // groups, -1))
            if bias is not None:
                image += bias.view(-1, *[1] * len(kernel))
        else:
            columns = torch.bmm(matrix, part)
            _add_columns(columns, image, gradient.shape[2:], kernel, geometry, bias)
            del columns
    return result


@kernel("im2col_weight_gradient")
def weight_gradient(
    gradient: torch.Tensor,
    x: torch.Tensor,
    shape: Sequence[int],
    stride: Sequence[int],
    geometry: Sequence[Sequence[int]],
    groups: int,
    summed: Sequence[torch.Tensor],
) -> Any:
    """Gradient of the weight (O, I / groups, *kernel), of ``shape`` and ``stride``, summed over images in float32 at
    least. ``summed``: the tensor whose sum is the bias's gradient, or none."""
    kernel = shape[2:]
    total = gradient.new_zeros(
        [groups, shape[0] // groups, shape[1] * math.prod(kernel)],
        dtype=torch.promote_types(gradient.dtype, torch.float32),
    )
    for part, image in zip(gradient, x, strict=True):
        columns = _columns(image, gradient.shape[2:], kernel, geometry, groups)
        part = part.reshape(groups, part.shape[0] // groups, -1)
        if total.dtype is gradient.dtype:
            total.baddbmm_(part, columns.mT)
        else:
            total += torch.bmm(part, columns.mT)
        del columns
    of_weight = total.view(list(shape))
    if of_weight.stride() != tuple(stride) or of_weight.dtype is not gradient.dtype:
        of_weight = torch.empty_strided(list(shape), list(stride), dtype=gradient.dtype).copy_(of_weight)
    if not summed:
        return of_weight
    return of_weight, summed[0].sum([0, *range(2, gradient.dim())])

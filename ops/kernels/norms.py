"""Normalizations from saved statistics, and their gradients from the output; calls into ``norms.cpp``.

Data are float32, bfloat16 or float16, on the CPU, contiguous or else channels-last; parameters and statistics are in
the data's format or in float32.
"""

from __future__ import annotations

import ctypes
from functools import cache
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from monet.native.library import build, declare, required
from monet.ops.kernel_names import kernel
from monet.ops.kernels.formats import FORMATS
from monet.ops.strides import require_contiguous

Results = tuple[Tensor | None, Tensor | None, Tensor | None]


@cache
def library(data: torch.dtype) -> ctypes.PyDLL | None:
    """The kernels for data of this dtype, or None (said once) where they cannot be built; then nothing that needs them
    is offered."""
    defines = (f"MONET_DATA={FORMATS[data]}",)
    lib = build(Path(__file__).parent / "norms.cpp", with_torch=False, openmp=True, defines=defines)
    if lib is None:
        return None
    p, n, i = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
    signatures = {
        "monet_channel_norm_apply": (None, [*[p] * 6, *[n] * 4, *[i] * 4]),
        "monet_row_norm_apply": (None, [*[p] * 6, n, n, i, i]),
        "monet_row_norm_gradient": (None, [*[p] * 7, n, n, i]),
        "monet_row_norm_parameters": (None, [*[p] * 6, n, n, i]),
        "monet_group_norm_gradient": (None, [*[p] * 9, *[n] * 4, i]),
    }
    declare(lib, signatures)
    return lib


def _call(name: str, data: torch.dtype, parameters: torch.dtype, *arguments: Tensor | int | None) -> None:
    """A function of ``norms.cpp`` for these dtypes: tensors go as their addresses (None: a null pointer)."""
    plain = [argument.data_ptr() if isinstance(argument, Tensor) else argument for argument in arguments]
    getattr(required(library(data)), f"monet_{name}")(*plain, FORMATS[parameters])


_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}
"""Of what is not contiguous, by dimensions."""


def channel_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, rstd: Tensor, groups: int | None, variant: int
) -> Tensor:
    """Batch norm (``groups`` None) or group norm of x (N, C, ...) from saved statistics, in one of the roundings that
    ``norm_variants`` tries."""
    require_contiguous(x, "an input", _FORMATS.get(0 if x.is_contiguous() else x.dim(), torch.contiguous_format))
    y = torch.empty_like(x)
    _call(
        "channel_norm_apply", x.dtype, mean.dtype, x, weight, bias, mean, rstd, y, x.shape[0], x.shape[1],
        prod(x.shape[2:]), x.shape[1] // (groups or 1), groups is not None, not x.is_contiguous(), variant,
    )  # fmt: skip
    return y


def row_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, rstd: Tensor, variant: int) -> Tensor:
    """Layer norm of contiguous x from saved statistics of its rows, likewise."""
    require_contiguous(x, "an input")
    y = torch.empty_like(x)
    rows = mean.numel()
    sizes = (rows, x.numel() // max(rows, 1))
    _call("row_norm_apply", x.dtype, mean.dtype, x, weight, bias, mean, rstd, y, *sizes, variant)
    return y


@kernel("layer_norm_gradient_from_output")
def layer_norm_from_output(
    gradient: Tensor, y: Tensor, weight: Tensor | None, bias: Tensor | None, rstd: Tensor, mask: list[bool]
) -> Results:
    """Gradients of layer norm's input, weight and bias, as ``mask`` asks, from its output y; all contiguous."""
    return _layer_norm(gradient, y, weight, bias, rstd, mask, torch.empty_like(gradient) if mask[0] else None)


@kernel("layer_norm_gradient_from_output_in_place")
def layer_norm_from_output_(
    gradient: Tensor, y: Tensor, weight: Tensor | None, bias: Tensor | None, rstd: Tensor, mask: list[bool]
) -> Results:
    """``layer_norm_from_output`` with the input's gradient in place of the incoming one."""
    return _layer_norm(gradient, y, weight, bias, rstd, mask, gradient)


def _layer_norm(
    gradient: Tensor, y: Tensor, weight: Tensor | None, bias: Tensor | None, rstd: Tensor, mask: list[bool],
    dx: Tensor | None,
) -> Results:  # fmt: skip
    require_contiguous(gradient, "a gradient")
    require_contiguous(y, "an output")
    rows = rstd.numel()
    sizes, dtypes = (rows, y.numel() // max(rows, 1)), (y.dtype, rstd.dtype)
    of_weight, of_bias = (torch.empty_like(weight) if wanted and weight is not None else None for wanted in mask[1:])
    inverse = None if weight is None else weight.reciprocal() if weight.dtype is torch.float32 else _reciprocal(weight)
    # The parameters' first: the input's may lie where the incoming gradient is.
    if of_weight is not None or of_bias is not None:
        _call("row_norm_parameters", *dtypes, gradient, y, inverse, bias, of_weight, of_bias, *sizes)
    if dx is not None:
        _call("row_norm_gradient", *dtypes, gradient, y, weight, inverse, bias, rstd, dx, *sizes)
    return dx, of_weight, of_bias


def _reciprocal(weight: Tensor) -> Tensor:
    return weight.float().reciprocal_()


@kernel("group_norm_gradient_from_output")
def group_norm_from_output(
    gradient: Tensor, y: Tensor, weight: Tensor | None, bias: Tensor | None, rstd: Tensor, mask: list[bool]
) -> Results:
    """Gradients of group norm's input, weight and bias, as ``mask`` asks, from its output y (N, C, ...); contiguous."""
    return _group_norm(gradient, y, weight, bias, rstd, mask, torch.empty_like(gradient) if mask[0] else None)


@kernel("group_norm_gradient_from_output_in_place")
def group_norm_from_output_(
    gradient: Tensor, y: Tensor, weight: Tensor | None, bias: Tensor | None, rstd: Tensor, mask: list[bool]
) -> Results:
    """``group_norm_from_output`` with the input's gradient in place of the incoming one."""
    return _group_norm(gradient, y, weight, bias, rstd, mask, gradient)


def _group_norm(
    gradient: Tensor, y: Tensor, weight: Tensor | None, bias: Tensor | None, rstd: Tensor, mask: list[bool],
    dx: Tensor | None,
) -> Results:  # fmt: skip
    require_contiguous(gradient, "a gradient")
    require_contiguous(y, "an output")
    of_weight, of_bias = (torch.empty_like(weight) if wanted and weight is not None else None for wanted in mask[1:])
    sums = torch.empty((2, y.shape[0], y.shape[1]), dtype=torch.float32)
    _call(
        "group_norm_gradient", y.dtype, rstd.dtype, gradient, y, weight, bias, rstd, sums, dx, of_weight, of_bias,
        y.shape[0], y.shape[1], prod(y.shape[2:]), rstd.shape[-1],
    )  # fmt: skip
    return dx, of_weight, of_bias

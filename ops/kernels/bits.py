"""One bit an element instead of a tensor, for gradients with two branches; calls into ``bits.cpp``.

Tensors are dense, float32, bfloat16 or float16, on the CPU. A bit array is uint8 of shape (ceil(n / 8),); bit j of byte
i is for element 8 i + j in the order of memory.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch

from monet.base.graph import Value
from monet.native.library import build, required
from monet.ops.kernel_names import kernel
from monet.ops.kernels.formats import FORMATS
from monet.ops.strides import require_strides, without_gaps


@cache
def library() -> ctypes.PyDLL | None:
    """The kernels, or None (said once) where they cannot be built; then nothing that needs them is offered."""
    lib = build(Path(__file__).parent / "bits.cpp", with_torch=False, openmp=True)
    if lib is None:
        return None
    p, n, f, i = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float, ctypes.c_int
    lib.monet_inside_bits.argtypes = [p, p, n, f, f, i, i, i]
    lib.monet_mask_bits.argtypes = [p, p, n]
    lib.monet_pass_gradient.argtypes = [p, p, p, n, i]
    lib.monet_scale_gradient.argtypes = [p, p, p, n, f, f, i, i]
    for name in ("inside_bits", "mask_bits", "pass_gradient", "scale_gradient"):
        getattr(lib, f"monet_{name}").restype = None
    return lib


def _kernels() -> ctypes.PyDLL:
    return required(library())


def dense(value: Value) -> bool:
    """Whether the kernels can read the value: its elements fill its memory."""
    return value.dtype in FORMATS and value.device.type == "cpu" and without_gaps(value)


def bit_value(name: str, like: Value) -> Value:
    """A bit array for the elements of ``like``."""
    size = (like.numel + 7) // 8
    return Value(name, (size,), (1,), 0, torch.uint8, like.device, name, size)


@kernel("inside_bits")
def inside_bits(x: torch.Tensor, low: float, high: float | None, nan: bool, stride: Sequence[int]) -> torch.Tensor:
    """Bits of low < x < high; for a NaN what ``nan`` says. ``stride``: of x, or ``ExecutionError``."""
    require_strides(x, stride, "an activation")
    bits = torch.empty((x.numel() + 7) // 8, dtype=torch.uint8)
    _kernels().monet_inside_bits(
        x.data_ptr(), bits.data_ptr(), x.numel(), low, high or 0.0, int(high is not None), int(nan), FORMATS[x.dtype]
    )
    return bits


@kernel("mask_bits")
def mask_bits(mask: torch.Tensor, stride: Sequence[int]) -> torch.Tensor:
    """Bits of a dense boolean tensor of ``stride``, or ``ExecutionError``."""
    require_strides(mask, stride, "a mask")
    bits = torch.empty((mask.numel() + 7) // 8, dtype=torch.uint8)
    _kernels().monet_mask_bits(mask.data_ptr(), bits.data_ptr(), mask.numel())
    return bits


@kernel("branch_gradient")
def branch_gradient(
    gradient: torch.Tensor, bits: torch.Tensor, inside: float, outside: float | None, stride: Sequence[int]
) -> torch.Tensor:
    """``gradient * inside`` where the bit is set, else ``gradient * outside`` (None: +0); a new dense tensor.

    ``stride``: of what the bits were made from, in whose order they are. Raises ``ExecutionError`` for a gradient of
    another.
    """
    require_strides(gradient, stride, "a gradient")
    return _branch(gradient, bits, torch.empty_like(gradient), inside, outside)


@kernel("branch_gradient_in_place")
def branch_gradient_(
    gradient: torch.Tensor, bits: torch.Tensor, inside: float, outside: float | None, stride: Sequence[int]
) -> torch.Tensor:
    """``branch_gradient`` in place."""
    require_strides(gradient, stride, "a gradient")
    return _branch(gradient, bits, gradient, inside, outside)


def _branch(
    gradient: torch.Tensor, bits: torch.Tensor, out: torch.Tensor, inside: float, outside: float | None
) -> torch.Tensor:
    where = (gradient.data_ptr(), bits.data_ptr(), out.data_ptr(), gradient.numel())
    if inside == 1.0 and outside is None:
        _kernels().monet_pass_gradient(*where, FORMATS[gradient.dtype])
    else:
        _kernels().monet_scale_gradient(*where, inside, outside or 0.0, int(outside is None), FORMATS[gradient.dtype])
    return out

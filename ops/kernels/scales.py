"""What a guard of a plan asks of a normalization's parameters before each step; calls into ``scales.cpp``."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

from torch import Tensor

from monet.native.library import build, declare
from monet.ops.kernels.formats import FORMATS


@cache
def library() -> ctypes.PyDLL | None:
    """The kernel, or None (said once) where it cannot be built."""
    lib = build(Path(__file__).parent / "scales.cpp", with_torch=False, openmp=False)
    if lib is None:
        return None
    p, n, i = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
    declare(lib, {"monet_smallest_scale": (ctypes.c_float, [p, p, n, n, n, i, i])})
    return lib


def _even(tensor: Tensor) -> bool:
    """Whether its elements are at even distances."""
    return tensor.dim() == 1 or tensor.is_contiguous()


def smallest_scale(scale: Tensor, shift: Tensor | None) -> float:
    """What ``Guard.least`` bounds; infinity for a scale without elements, NaN where one is NaN.

    Each step calls this before its first operator. So it asks for no memory where the tensors are such as
    ``least_scale.source_of`` finds, on the CPU.
    """
    tensors = [scale] if shift is None else [scale, shift]
    lib = library()
    if lib is not None and all(_even(t) and t.device.type == "cpu" and t.dtype in FORMATS for t in tensors):
        steps, formats = [t.stride(0) if t.dim() == 1 else 1 for t in tensors], [FORMATS[t.dtype] for t in tensors]
        address = None if shift is None else shift.data_ptr()
        sizes = (scale.numel(), steps[0], steps[-1])
        return float(lib.monet_smallest_scale(scale.data_ptr(), address, *sizes, formats[0], formats[-1]))
    size = scale.detach().abs()
    if shift is not None:
        size = size / shift.detach().abs().to(size.dtype).clamp_min(1.0)
    return float(size.min()) if size.numel() else float("inf")

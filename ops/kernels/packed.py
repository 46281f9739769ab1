"""Storages that take less memory: values without their zeros, and 16-bit values; calls into ``packed.cpp``.

Tensors are dense, float32, on the CPU. Allocation happens in torch, computation in the kernels.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch

from monet.errors import ExecutionError
from monet.native.library import build, required
from monet.ops.kernel_names import kernel


@cache
def library() -> ctypes.PyDLL | None:
    """The kernels, or None (said once) where they cannot be built; then nothing that needs them is offered."""
    lib = build(Path(__file__).parent / "packed.cpp", with_torch=False, openmp=True)
    if lib is None:
        return None
    p, n = ctypes.c_void_p, ctypes.c_int64
    lib.monet_sparse_pack.argtypes = [p, p, n, n]
    lib.monet_sparse_unpack.argtypes = [p, p, n, n]
    lib.monet_half_pack.argtypes = [p, p, n]
    lib.monet_half_unpack.argtypes = [p, p, n]
    for name in ("half_pack", "half_unpack"):
        getattr(lib, f"monet_{name}").restype = None
    for name in ("sparse_pack", "sparse_unpack"):
        getattr(lib, f"monet_{name}").restype = n
    return lib


def _kernels() -> ctypes.PyDLL:
    return required(library())


def sparse_words(count: int) -> int:
    """32-bit words of the mask of ``count`` elements."""
    return (count + 31) // 32


@kernel("sparse_pack")
def sparse_pack(x: torch.Tensor, capacity: int) -> torch.Tensor:
    """The elements of dense x that are not +0 (bit by bit: -0 and NaN are kept), in the order of memory.

    Returns int32 of shape (ceil(n / 32) + capacity,): a mask, then the values. Raises
    ``ExecutionError`` where there are more than ``capacity``.
    """
    count = x.numel()
    packed = torch.empty(sparse_words(count) + capacity, dtype=torch.int32)
    kept = _kernels().monet_sparse_pack(x.data_ptr(), packed.data_ptr(), count, capacity)
    if kept > capacity:
        raise ExecutionError(
            f"a ReLU's output of shape {tuple(x.shape)} has {_percent(kept, count)} non-zero values, "
            f"planned for {_percent(capacity, count)}; plan with a larger density, or without sparse storage"
        )
    return packed


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.3g} % ({part})"


def sparse_unpack(packed: torch.Tensor, shape: Sequence[int], stride: Sequence[int]) -> torch.Tensor:
    """The dense float32 tensor of ``shape`` and ``stride`` that ``sparse_pack`` packed."""
    out = torch.empty_strided(list(shape), list(stride), dtype=torch.float32)
    capacity = packed.numel() - sparse_words(out.numel())
    if _kernels().monet_sparse_unpack(packed.data_ptr(), out.data_ptr(), out.numel(), capacity) > capacity:
        raise RuntimeError("internal: the mask of a sparse storage keeps more values than it has")
    return out


@kernel("half_pack")
def half_pack(x: torch.Tensor) -> torch.Tensor:
    """Dense x times 2^k in float16, then k; shape (n + 1,). k takes the largest finite |x| to [2^14, 2^15)."""
    packed = torch.empty(x.numel() + 1, dtype=torch.float16)
    _kernels().monet_half_pack(x.data_ptr(), packed.data_ptr(), x.numel())
    return packed


def half_unpack(packed: torch.Tensor, shape: Sequence[int], stride: Sequence[int]) -> torch.Tensor:
    """The dense float32 tensor of ``shape`` and ``stride`` that ``half_pack`` packed, rounded to 11 bits."""
    out = torch.empty_strided(list(shape), list(stride), dtype=torch.float32)
    _kernels().monet_half_unpack(packed.data_ptr(), out.data_ptr(), out.numel())
    return out

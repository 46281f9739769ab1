"""8-bit indices of max pooling; calls into ``pool_index.cpp`` on dense CPU tensors.

Pooled gradients are in any format of ``formats.FORMATS``. Allocation happens in torch, computation in the kernels.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch

from monet.native.library import build, required
from monet.ops.kernel_names import kernel
from monet.ops.kernels.formats import FORMATS
from monet.ops.strides import channels_inside

# Of one plane of a pooled tensor: the input's sizes, window, stride (none: adaptive), padding, dilation.
PoolGeometry = Sequence[Sequence[int]]


@cache
def library() -> ctypes.PyDLL | None:
    """The kernels, or None (said once) where they cannot be built; then nothing that needs them is offered."""
    lib = build(Path(__file__).parent / "pool_index.cpp", with_torch=False, openmp=True)
    if lib is None:
        return None
    p = ctypes.c_void_p
    lib.monet_pool_pack.argtypes = [p, p, p]
    lib.monet_pool_gradient.argtypes = [p, p, p, p, ctypes.c_int]
    for name in ("pool_pack", "pool_gradient"):
        getattr(lib, f"monet_{name}").restype = None
    return lib


def _kernels() -> ctypes.PyDLL:
    return required(library())


class _Windows(ctypes.Structure):
    _fields_ = (
        ("planes", ctypes.c_int64),
        ("inner", ctypes.c_int64),
        ("sizes", ctypes.c_int64 * 3),
        ("out", ctypes.c_int64 * 3),
        ("kernel", ctypes.c_int64 * 3),
        ("dilation", ctypes.c_int64 * 3),
        ("begin", ctypes.POINTER(ctypes.c_int64) * 3),
    )


@cache
def _windows(shape: tuple[int, ...], stride: tuple[int, ...], geometry: tuple[tuple[int, ...], ...]) -> _Windows:
    """``pool_index.cpp``'s description of the windows of a pooled tensor; ``shape``, ``stride``: the result's."""
    sizes, kernel, step, padding, dilation = geometry
    rank, free = len(sizes), 3 - len(sizes)
    tables: list[list[int]] = [[0]] * free
    for i, count in enumerate(shape[-rank:]):
        # The adaptive windows of ATen: from floor(i * size / count) to ceil((i + 1) * size / count).
        tables.append([o * step[i] - padding[i] if step else o * sizes[i] // count for o in range(count)])
    channels = shape[-rank - 1]
    inner = channels if channels_inside(shape, stride, rank) else 1
    arrays = [(ctypes.c_int64 * len(table))(*table) for table in tables]
    pointers = [ctypes.cast(array, ctypes.POINTER(ctypes.c_int64)) for array in arrays]  # they keep the arrays
    return _Windows(
        math.prod(shape[:-rank]) // inner,
        inner,
        (ctypes.c_int64 * 3)(*[1] * free, *sizes),
        (ctypes.c_int64 * 3)(*(len(table) for table in tables)),
        (ctypes.c_int64 * 3)(*[1] * free, *kernel),
        (ctypes.c_int64 * 3)(*[1] * free, *dilation),
        (ctypes.POINTER(ctypes.c_int64) * 3)(*pointers),
    )


def _windows_of(cells: torch.Tensor, geometry: PoolGeometry) -> int:
    """The address of the description, which stays in the cache."""
    return ctypes.addressof(_windows(tuple(cells.shape), cells.stride(), tuple(tuple(part) for part in geometry)))


@kernel("pool_pack")
def pool_pack(indices: torch.Tensor, geometry: PoolGeometry) -> torch.Tensor:
    """ATen's int64 pool indices as the number of the cell in its window, uint8, in the indices' memory format.

    ``geometry``: of one plane, each with one number a dimension: the input's sizes, (largest) window, stride (none:
    adaptive windows), padding, dilation.
    """
    cells = torch.empty_strided(indices.shape, indices.stride(), dtype=torch.uint8)
    _kernels().monet_pool_pack(indices.data_ptr(), cells.data_ptr(), _windows_of(cells, geometry))
    return cells


@kernel("pool_gradient")
def pool_gradient(
    gradient: torch.Tensor, cells: torch.Tensor, shape: Sequence[int], stride: Sequence[int], geometry: PoolGeometry
) -> torch.Tensor:
    """The gradient of max pooling's input, of ``shape`` and ``stride``, from the cells that ``pool_pack`` made.

    ``gradient``: in a format of ``FORMATS``, of the cells' shape; copied where its memory format is another.
    """
    if gradient.stride() != cells.stride():
        gradient = torch.empty_strided(cells.shape, cells.stride(), dtype=gradient.dtype).copy_(gradient)
    out = torch.empty_strided(list(shape), list(stride), dtype=gradient.dtype)
    where = (gradient.data_ptr(), cells.data_ptr(), out.data_ptr())
    _kernels().monet_pool_gradient(*where, _windows_of(cells, geometry), FORMATS[gradient.dtype])
    return out

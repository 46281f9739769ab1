"""Tensors that have a shape and no memory of their own."""

from __future__ import annotations

import mmap
import warnings
from collections.abc import Sequence

import torch

from monet.errors import ExecutionError
from monet.ops.strides import reach

aten = torch.ops.aten
# More than most stand-ins, so that few processes reserve twice; little enough for a limited address space (ulimit -v).
_LEAST_RESERVED_BYTES = 1 << 30
_reserved: torch.Tensor | None = None
_made: dict[tuple[tuple[int, ...], tuple[int, ...], torch.dtype], torch.Tensor] = {}  # over these addresses


def _reserve(size: int) -> torch.Tensor:
    """A read-only range of at least ``size`` addresses as bytes; the process has one, made anew where too small."""
    global _reserved
    if _reserved is None or _reserved.numel() < size:
        _made.clear()
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
    key = (tuple(shape), tuple(stride), dtype)
    found = _made.get(key)
    if found is not None and _reserved is not None:
        return found
    size = max(1, reach(shape, stride)) * dtype.itemsize
    reserved = _reserve(size)
    made = reserved[:size].view(dtype).as_strided(list(shape), list(stride))
    _made[key] = made
    return made


def stand_in_elsewhere(like: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """A tensor of ``shape`` on the device and in the dtype of ``like``, one element that is repeated; on devices where
    no addresses can be had without memory. Its strides are 0, so kernels take it for a contiguous one."""
    return like.new_zeros(1).expand(list(shape))

"""Python decompositions of torch that a capture leaves out, since eager runs a kernel there.

While torch traces, it replaces interpolation by indexing and arithmetic: results are rounded in another way, indices
and every weighted neighbour become tensors of the step, and the gradient of a nearest neighbour is an
accumulating scatter.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch._C import DispatchKey

aten = torch.ops.aten

_KEYS = (DispatchKey.CompositeImplicitAutograd, DispatchKey.Autograd)
_PACKETS = (
    "upsample_nearest1d",
    "upsample_nearest2d",
    "upsample_nearest3d",
    "_upsample_nearest_exact1d",
    "_upsample_nearest_exact2d",
    "_upsample_nearest_exact3d",
    "upsample_linear1d",
    "upsample_bilinear2d",
    "upsample_trilinear3d",
    "upsample_bicubic2d",
)


def _overloads() -> list[torch._ops.OpOverload]:
    found = [getattr(aten, packet) for packet in _PACKETS]
    return [getattr(packet, name) for packet in found for name in ("default", "vec") if name in packet.overloads()]


@contextmanager
def without_decompositions() -> Iterator[None]:
    """While this lasts, traced interpolation is the operator that eager dispatches to. Not for several threads."""
    removed = []
    try:
        for overload in _overloads():
            for key in _KEYS:
                if key in overload.py_kernels:
                    removed.append((overload, key, overload.py_kernels.pop(key)))
            overload._dispatch_cache.clear()
        yield
    finally:
        for overload, key, kernel in removed:
            overload.py_kernels[key] = kernel
            overload._dispatch_cache.clear()

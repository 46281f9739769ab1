"""Interpolation: aten's kernels. The gradient reads sizes alone, so the input dies with the forward operator.

``monet.capture.decompositions`` keeps torch from tracing them as indexing and arithmetic.
"""

from __future__ import annotations

from typing import Any

import torch

from monet.ops.offers.record import Record
from monet.ops.offers.sample import FLOATS, Sample

aten = torch.ops.aten

SHAPES = {1: (2, 3, 5), 2: (2, 3, 5, 6), 3: (2, 3, 5, 6, 4)}


def _record(kernel: str, mode: str, rank: int, *, channels_last: bool = False, **kwargs: Any) -> Record:
    name = kernel.removeprefix("_").removesuffix("_aa")

    def call(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.interpolate(x, mode=mode, **kwargs)

    def last(x: torch.Tensor) -> torch.Tensor:
        return call(x.contiguous(memory_format=torch.channels_last))

    dtypes = (torch.float32,) if kwargs.get("antialias") else FLOATS
    label = f"{name}-antialiased" if kwargs.get("antialias") else name
    samples = [Sample(label, call, (SHAPES[rank],), dtypes=dtypes)]
    if channels_last:
        samples.append(Sample(f"{label}-channels-last", last, (SHAPES[rank],), dtypes=dtypes))
    return Record(
        name=label,
        family="interpolation",
        forward_targets=(getattr(aten, kernel).default,),
        backward_targets=(getattr(aten, f"{kernel}_backward").default,),
        equations="linear in the input: the gradient reads sizes alone",
        samples=tuple(samples),
    )


RECORDS = (
    _record("upsample_nearest1d", "nearest", 1, scale_factor=2),
    _record("upsample_nearest2d", "nearest", 2, channels_last=True, scale_factor=2),
    _record("upsample_nearest3d", "nearest", 3, size=(7, 6, 9)),
    _record("_upsample_nearest_exact2d", "nearest-exact", 2, size=(7, 4)),
    _record("upsample_linear1d", "linear", 1, scale_factor=2),
    _record("upsample_bilinear2d", "bilinear", 2, channels_last=True, scale_factor=2, align_corners=True),
    _record("_upsample_bilinear2d_aa", "bilinear", 2, size=(3, 4), antialias=True),
    _record("upsample_bicubic2d", "bicubic", 2, size=(7, 4)),
    _record("upsample_trilinear3d", "trilinear", 3, scale_factor=2),
)

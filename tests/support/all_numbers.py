"""Every number of the 16-bit formats, and special ones of float32."""

from __future__ import annotations

import math

import torch

from monet.ops.kernels.formats import FORMATS

DTYPES = tuple(FORMATS)


def every(dtype: torch.dtype) -> torch.Tensor:
    """All numbers of a 16-bit format; of float32 noise of all magnitudes, and the numbers around 0, 1, 3 and 6."""
    if dtype is not torch.float32:
        return torch.arange(65536, dtype=torch.int32).to(torch.int16).view(dtype)
    generator = torch.Generator().manual_seed(0)
    exponents = torch.randint(-149, 128, (40_001,), generator=generator)
    noise = torch.randn(40_001, generator=generator).ldexp(exponents)
    near = torch.tensor([0.0, 1.0, 3.0, 6.0]).view(torch.int32)[:, None] + torch.arange(-3, 4)
    near[0] = torch.arange(7)
    around = near.flatten().to(torch.int32).view(torch.float32)
    return torch.cat([noise, around, -around, torch.tensor([math.nan, math.inf, -math.inf])])


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Bit by bit, the sign of 0 too; any NaN for a NaN."""
    word = torch.int32 if a.dtype is torch.float32 else torch.int16
    return a.dtype is b.dtype and bool(((a.view(word) == b.view(word)) | (a.isnan() & b.isnan())).all())

"""MKL's vector functions, each called once by one thread before several call it.

MKL looks for a function's kernel when it is first called. Where several threads do that at the same time, one of them
may run a kernel of low accuracy for its share of that one call (pytorch/pytorch#188792, MKL 2024.2): a step's first
tanh was off by 5e-5 in one of ten processes, beside a thread that copied.
"""

from __future__ import annotations

from functools import cache

import torch

_FUNCTIONS = (
    "acos", "asin", "atan", "cos", "cosh", "erf", "erfc", "erfinv", "exp", "expm1", "lgamma", "log", "log10", "log1p",
    "log2", "sin", "sinh", "sqrt", "tan", "tanh",
)  # fmt: skip


@cache
def find_kernels() -> None:
    """Once in a process; a tensor of a few numbers is one thread's."""
    for dtype in (torch.float32, torch.float64):
        numbers = torch.full((16,), 0.5, dtype=dtype)
        for name in _FUNCTIONS:
            getattr(torch, name)(numbers)

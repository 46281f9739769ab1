"""About how fast this machine is, found in a tenth of a second: for a first look at a step before it is measured."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from monet.ops.estimating.rates import Rates

_WIDTH = 768
_BYTES = 1 << 24


def quick_rates() -> Rates:
    """From a matrix product and a copy in float32, with the threads that torch has now."""
    left, right = (torch.full((_WIDTH, _WIDTH), 0.5) for _ in range(2))
    source, target = (torch.zeros(_BYTES, dtype=torch.uint8) for _ in range(2))
    with torch.no_grad():
        product_s = _fastest_s(lambda: torch.mm(left, right))
        copy_s = _fastest_s(lambda: target.copy_(source))
    return Rates.given(2 * _WIDTH**3 / product_s, 2 * _BYTES / copy_s)


def _fastest_s(run: Callable[[], object]) -> float:
    times = []
    for _ in range(4):
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return max(1e-6, min(times))

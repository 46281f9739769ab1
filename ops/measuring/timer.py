"""How long one call takes, on the CPU and on a GPU."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch

# A GPU's clock is a fraction of its full one until it has had work for about this long (345 instead of 1,980 MHz were
# seen on an H200).
WARM_UP_S = 1.0
_WARM_UP_WIDTH = 4096
_EMPTY_RUNS = 15

Timed = tuple[Any, float]
"""What a call returned, and how many seconds it took."""


def host_timer(call: Callable[[], Any]) -> Timed:
    """By the clock of the CPU, which does the work itself."""
    start = time.perf_counter()
    result = call()
    return result, time.perf_counter() - start


class GpuTimer:
    """By events around the call, on the stream that it is given to.

    So a call is as long as the GPU takes for it, as it is in a step, whose kernels are launched ahead of what the GPU
    does: what it was given right before (``Bench`` lets it write a stretch of memory) must take longer than launching
    the call. Two events with nothing in between are some microseconds apart, which are taken off.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._begin, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        _warm_up(device)
        self._empty_s = 0.0
        self._empty_s = median(self(lambda: None)[1] for _ in range(_EMPTY_RUNS))

    def __call__(self, call: Callable[[], Any]) -> Timed:
        stream = torch.cuda.current_stream(self._device)
        self._begin.record(stream)
        result = call()
        self._end.record(stream)
        self._end.synchronize()
        return result, max(0.0, self._begin.elapsed_time(self._end) / 1e3 - self._empty_s)


def timer(device: torch.device) -> Callable[[Callable[[], Any]], Timed]:
    """The timer of that kind of device, ready to use: a GPU is at its full clock."""
    return GpuTimer(device) if device.type == "cuda" else host_timer


def _warm_up(device: torch.device) -> None:
    factor = torch.ones(_WARM_UP_WIDTH, _WARM_UP_WIDTH, device=device)
    start = time.perf_counter()
    while time.perf_counter() - start < WARM_UP_S:
        torch.mm(factor, factor)
        torch.cuda.synchronize(device)

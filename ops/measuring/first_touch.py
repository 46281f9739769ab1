"""What memory costs that is asked from the system anew: its pages are made when they are first written."""

from __future__ import annotations

import time

import torch

from monet.base.measurement import Measurement
from monet.ops.measuring.cache import ProfileCache

SIZE_BYTES = 64 << 20
"""More than glibc keeps for the next request of its kind (32 MiB)."""
REPEATS = 5


def first_touch(where: str, cache: ProfileCache | None) -> float:
    """Seconds a byte, beyond what writing it again takes, with torch's threads; of the machine ``where`` (an
    environment), and read from ``cache`` where it was measured before."""
    key = f"first touch|{where}"
    known = None if cache is None else cache.get(key)
    if known is None:
        known = Measurement(min(_once() for _ in range(REPEATS)), (), 1)
        if cache is not None:
            cache.put([(key, known)])
    return known.time_s / SIZE_BYTES


def _once() -> float:
    began = time.perf_counter()
    memory = torch.empty(SIZE_BYTES, dtype=torch.uint8).fill_(1)
    touched = time.perf_counter()
    memory.fill_(2)
    again = time.perf_counter()
    del memory
    released = time.perf_counter()
    return max(0.0, touched - began - (again - touched) + released - again)

"""The libraries that every first plan on a CPU needs, built on another core while the step is captured."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from functools import cache
from queue import Empty, SimpleQueue

import torch

from monet.errors import MonetError
from monet.native import allocator
from monet.ops.kernels import bits, norms, scales

_builders: list[threading.Thread] = []


@cache
def build_ahead(*more: Callable[[], object]) -> None:
    """Start building, once a process; ``more``: build others. Whoever needs a library before it is there waits for it,
    and says what is wrong if it cannot be built."""
    left: SimpleQueue[Callable[[], object]] = SimpleQueue()
    builds: list[Callable[[], object]] = [  # what takes longest first
        lambda: norms.library(torch.float32),
        allocator.built,
        bits.library,
        scales.library,
        allocator.crew_library,
        *more,
    ]
    for each in builds:
        left.put(each)

    def work() -> None:
        while True:
            try:
                build = left.get_nowait()
            except Empty:
                return
            with contextlib.suppress(MonetError, OSError):
                if build() is None:  # it would say so of each
                    return

    # Daemons: a process that ends waits for no compiler.
    for _ in range(os.cpu_count() or 1):
        _builders.append(threading.Thread(target=work, name="monet builds", daemon=True))
        _builders[-1].start()


def wait_for_builds() -> None:
    """Until all are built: a compiler would take a core from what is measured."""
    for builder in _builders:
        builder.join()

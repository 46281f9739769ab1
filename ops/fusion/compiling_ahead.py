"""All kernels of a step at once, before anything is measured: on every core, and not amid measurements, which other
processes would disturb.

Most of a kernel's two seconds are a C++ compiler's. Other processes compile from the end of the list into Inductor's
cache on disk while this one goes through it from its beginning, and finds there what they have done.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from types import TracebackType
from typing import Any

import torch
from tqdm.auto import tqdm

from monet.ops.fusion.compiling import Geometry, is_known, kernel_of
from monet.ops.fusion.fused import Fused

Wanted = tuple[Fused, tuple[Geometry, ...]]

COLD_S = 1.0
"""A kernel that took so long was compiled; from the cache on disk one takes tenths of a second."""
LEAST_SHARED = 4
"""Kernels left, from which on other processes help: one is there in 4 s, in which two kernels are compiled."""

_COMMAND = "import sys; sys.path[:] = sys.argv[1:]; from monet.ops.fusion.compiling_ahead import serve; serve()"


def compile_all(wanted: Iterable[Wanted], *, progress: bool = False) -> None:
    """Has the kernels compiled that this process does not have.

    Raises ``ExecutionError`` where the compiler fails.
    """
    waiting = [one for one in dict.fromkeys(wanted) if not is_known(*one)]
    with _Helpers() as helpers, tqdm(
        total=len(waiting), desc="compiling kernels", disable=not progress or not waiting
    ) as bar:  # fmt: skip
        for number, one in enumerate(waiting):
            begun = time.monotonic()
            kernel_of(*one)
            bar.update()
            left = waiting[number + 1 :]
            if time.monotonic() - begun > COLD_S and len(left) >= LEAST_SHARED:
                helpers.begin(left[::-1])


class _Helpers:
    """Processes that compile beside this one, while entered."""

    def __init__(self) -> None:
        self._processes: list[subprocess.Popen[bytes]] = []

    def begin(self, wanted: Sequence[Wanted]) -> None:
        """Once: a process for each other core. Where one cannot be had, or ends, this process compiles alone; and for a
        GPU, whose memory each process would take some of."""
        on_cpu = all(device.type == "cpu" for _, inputs in wanted for *_, device in inputs)
        if self._processes or not on_cpu or getattr(sys, "frozen", False) or not sys.executable:
            return
        count = min(len(os.sched_getaffinity(0)) - 1, len(wanted) // LEAST_SHARED)
        with contextlib.suppress(OSError):
            for number in range(count):
                process = subprocess.Popen(
                    [sys.executable, "-c", _COMMAND, *sys.path],
                    stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                )  # fmt: skip
                self._processes.append(process)
                assert process.stdin is not None
                with process.stdin:
                    process.stdin.write(_pickled(wanted[number::count]))

    def __enter__(self) -> _Helpers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


def serve() -> None:
    """In a helper: compiles what it is sent. What fails here fails in the other process, too, and is said there."""
    torch.set_num_threads(1)
    for one in pickle.load(sys.stdin.buffer):
        kernel_of(*one)


class _Pickler(pickle.Pickler):
    """Overloads of torch's operators are no pickles of their own."""

    def reducer_override(self, given: Any) -> Any:
        return (_overload, (str(given),)) if isinstance(given, torch._ops.OpOverload) else NotImplemented


def _pickled(given: object) -> bytes:
    found = io.BytesIO()
    _Pickler(found).dump(given)
    return found.getvalue()


def _overload(name: str) -> Callable[..., Any]:
    """``aten.add.Tensor``."""
    ops: Any = torch.ops
    found: Callable[..., Any] = reduce(getattr, name.split("."), ops)
    return found

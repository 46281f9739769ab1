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
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import reduce
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from tqdm.auto import tqdm

from monet.base.progress_line import is_shown
from monet.ops.fusion.compiling import Geometry, import_compiler, is_known, kernel_of
from monet.ops.fusion.fused import Fused, Slot, Step

Wanted = tuple[Fused, tuple[Geometry, ...]]

COLD_S = 1.0
"""A kernel that took so long was compiled; from the cache on disk one takes tenths of a second."""
LEAST_SHARED = 4
"""Kernels left, from which on other processes help: one is there in 4 s, in which two kernels are compiled."""

_COMMAND = (
    "import sys; sys.path[:] = sys.argv[2:]; "
    "from monet.ops.fusion.compiling_ahead import serve; serve(int(sys.argv[1]))"
)
_FIRST: Wanted = (
    Fused(1, (Step(torch.ops.aten.neg.default, (Slot(0),), ()),), (1,)),
    ((torch.float32, (64,), (1,), torch.device("cpu")),),
)
"""A kernel for which Inductor gets ready: it tries the compiler's flags, and compiles its headers."""
_begun: list[subprocess.Popen[bytes]] = []
_let_alone: list[subprocess.Popen[bytes]] = []
"""Processes that are getting Inductor ready, for a plan that has ended."""


@contextlib.contextmanager
def compiler_made_ready() -> Iterator[None]:
    """A context in which a thread imports Inductor, and a process gets it ready, where that was never done: 10 s of one
    core, as long as it takes to capture a model. It compiles kernels with this one then, while the context lasts."""
    threading.Thread(target=import_compiler, name="monet imports Inductor", daemon=True).start()
    begun: list[subprocess.Popen[bytes]] = []
    with contextlib.suppress(OSError):
        _let_alone[:] = [process for process in _let_alone if process.poll() is None]
        if not _begun and not _let_alone and _is_alone() and not _marker().exists():
            begun.append(_helper())
    _begun.extend(begun)
    try:
        yield
    finally:
        for process in begun:
            if process in _begun:  # it was sent nothing
                _begun.remove(process)
                assert process.stdin is not None
                process.stdin.close()
                _end(process)


def compile_all(wanted: Iterable[Wanted], *, progress: bool = False) -> None:
    """Has the kernels compiled that this process does not have.

    Raises ``ExecutionError`` where the compiler fails.
    """
    waiting = [one for one in dict.fromkeys(wanted) if not is_known(*one)]
    with _Helpers() as helpers, tqdm(
        total=len(waiting), desc="compiling kernels", disable=not waiting or not is_shown(progress)
    ) as bar:  # fmt: skip
        if _begun and len(waiting) > 1:
            helpers.begin(waiting[:0:-1])
        for number, one in enumerate(waiting):
            begun = time.monotonic()
            kernel_of(*one)
            bar.update()
            left = waiting[number + 1 :]
            if time.monotonic() - begun > COLD_S and len(left) >= LEAST_SHARED:
                helpers.begin(left[::-1])
    for process in _begun:  # nothing was there to compile; what is measured next is to have all cores
        assert process.stdin is not None
        process.stdin.close()
        process.wait()


class _Helpers:
    """Processes that compile beside this one, while entered."""

    def __init__(self) -> None:
        self._processes: list[subprocess.Popen[bytes]] = []

    def begin(self, wanted: Sequence[Wanted]) -> None:
        """Once: a process for each other core, the one that is there first. Where one cannot be had, or ends, this
        process compiles alone; and for a GPU, whose memory each process would take some of."""
        on_cpu = all(device.type == "cpu" for _, inputs in wanted for *_, device in inputs)
        if self._processes or not on_cpu or not _is_alone():
            return
        count = min(len(os.sched_getaffinity(0)) - 1, max(len(_begun), len(wanted) // LEAST_SHARED))
        with contextlib.suppress(OSError):
            for number in range(count):
                process = _begun.pop() if _begun else _helper()
                self._processes.append(process)
                # It reads once Inductor is ready, and a pipe holds little.
                sending = threading.Thread(target=_send, args=(process, _pickled(wanted[number::count])), daemon=True)
                sending.start()

    def __enter__(self) -> _Helpers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes:
            _end(process)


def _is_alone() -> bool:
    """Whether this is a Python of its own, which another process can be begun as, and not the only core's."""
    return bool(sys.executable) and not getattr(sys, "frozen", False) and len(os.sched_getaffinity(0)) > 1


def _helper() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", _COMMAND, str(torch.get_num_threads()), *sys.path],
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip


def _send(process: subprocess.Popen[bytes], data: bytes) -> None:
    assert process.stdin is not None
    with contextlib.suppress(OSError, ValueError), process.stdin:  # it has ended, or was ended
        process.stdin.write(data)


def _end(process: subprocess.Popen[bytes]) -> None:
    """With the compiler that it runs, which removes what it has half written: others would take that for a kernel. Not
    of headers: a process that compiles these is let alone, and ends by itself."""
    if process.poll() is not None:
        return
    if not _marker().exists():
        _let_alone.append(process)
        return
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    process.wait()


def serve(threads: int) -> None:
    """In a helper: compiles what it is sent. What fails here fails in the other process, too, and is said there.
    ``threads``: the other process's; Inductor writes their number into its kernels."""
    torch.set_num_threads(threads)
    if not _marker().exists():
        kernel_of(*_FIRST)
        _marker().touch()
    sent = sys.stdin.buffer.read()
    for one in pickle.loads(sent) if sent else ():
        kernel_of(*one)


def _marker() -> Path:
    """A file that is there once Inductor is ready."""
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    return Path(cache_dir()) / f"monet-ready-{torch.__version__}"


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

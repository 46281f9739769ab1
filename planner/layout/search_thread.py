"""A C++ search in a thread, so that Ctrl-C can stop it and progress is told meanwhile."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from monet.native.compiling import shared_library

NONE, FOUND, LIMIT = 0, 1, 2
"""Answers, as ``Result`` of the C++ files: there is no layout; here is one; nodes or time were used up before."""
LONGEST_S = 1e6
"""Eleven days, in place of no limit: the C++ clock cannot count to infinity."""
POLL_S = 0.05
"""Between two looks at Ctrl-C and progress while the C++ code runs."""
INTEGERS = ctypes.POINTER(ctypes.c_int)
UNITS = ctypes.POINTER(ctypes.c_int64)


def load(source: str, name: str, arguments: Sequence[Any]) -> Any | None:
    """The C function ``name`` of ``source``, which returns an int; None on a machine that cannot build it."""
    path = shared_library(Path(__file__).parent / source)
    if path is None:
        return None
    function = ctypes.CDLL(str(path))[name]
    function.argtypes = list(arguments)
    function.restype = ctypes.c_int
    return function


def answer(search: Callable[[ctypes.c_int], int], tick: Callable[[], None]) -> int:
    """What ``search`` returns. It gets a flag that is 1 once it should stop, and runs in a thread.

    ``tick`` is called at least every ``POLL_S`` seconds, by the thread that asks; an error that it raises stops the
    search, as Ctrl-C does, whose handler runs in this thread.
    """
    stop, done = ctypes.c_int(0), threading.Event()
    result: list[int] = []

    def work() -> None:
        try:
            result.append(search(stop))
        finally:
            done.set()

    thread = threading.Thread(target=work, name="layout search", daemon=True)
    try:
        tick()
        thread.start()
        # Not Thread.join: once interrupted, that of Python 3.11 takes a running thread for one that has ended.
        while not done.wait(POLL_S):
            tick()
    except BaseException:
        stop.value = 1
        if thread.ident is not None:
            done.wait()
        raise
    return result[0]

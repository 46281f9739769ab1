"""Processes that are forked from a test."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def waiting_child() -> Iterator[None]:
    """A forked child with all that is open here, which does nothing."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, b"1")
        time.sleep(60)
        os._exit(0)
    os.read(reader, 1)  # it runs
    try:
        yield
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reader)
        os.close(writer)

"""A file that one process has alone."""

from __future__ import annotations

import fcntl
import os
import weakref
from pathlib import Path

from monet.errors import ExecutionError

TAKEN = "a trainer, or a model that it trained, has this file, here or in another process"


class FileLock:
    """``path`` is this process's until this object is gone; it is made, empty, where it is not there.

    A forked child has nothing of it: one that outlives its parent keeps nobody from the file. That is why the lock is
    ``flock``'s, whose descriptor is closed in the child. POSIX record locks are not inherited at all, but are lost as
    soon as the process closes any descriptor of the file, as that of a mapping.

    ``exclusive``: False on a file system without locks. Raises ``ExecutionError`` where another one has the file, and
    ``OSError`` where it cannot be opened.
    """

    _descriptor = -1

    def __init__(self, path: Path) -> None:
        self.path, self.exclusive = path, True
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        _held.add(self)
        self._lock()
        if not self.is_there:  # whoever had it before has removed it in between
            self.close()
            raise ExecutionError(f"{path}: {TAKEN}")

    def _lock(self) -> None:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self.close()
            raise ExecutionError(f"{self.path}: {TAKEN}") from error
        except OSError:
            self.exclusive = False

    @property
    def is_closed(self) -> bool:
        """Whether it is given up, or this is a forked child."""
        return self._descriptor < 0

    @property
    def is_there(self) -> bool:
        """Whether the path still leads to this file: it may have been removed, and another one made there."""
        return self.path.exists() and os.path.samestat(self.path.stat(), os.fstat(self._descriptor))

    def empty(self) -> None:
        """Leave nothing in the file."""
        os.ftruncate(self._descriptor, 0)

    def close(self) -> None:
        """Others may have the file."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        self.close()


_held: weakref.WeakSet[FileLock] = weakref.WeakSet()


def _close_in_child() -> None:
    for lock in list(_held):
        lock.close()


os.register_at_fork(after_in_child=_close_in_child)

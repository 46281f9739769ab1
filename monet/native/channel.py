"""Python's side of ``channel.cpp``: an unlinked file on a disk, copied to and from beside the step's operators."""

from __future__ import annotations

import ctypes
import mmap
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from monet.base.files.lock import FileLock
from monet.errors import ExecutionError
from monet.native.library import build, declare
from monet.plans.format import COPY_ALIGNMENT

ALIGNMENT = COPY_ALIGNMENT
"""Bytes: of memory and places that are copied, and of the lengths that are really copied; ``kAlign`` in C++."""
_IN_MEMORY, _CLOSED, _SHORT = -1000, -1001, -1002
_SAID = {
    _IN_MEMORY: "it lies in main memory (tmpfs), where nothing would be gained; name a folder on a disk",
    _CLOSED: "it belongs to the process that this one was forked from",
    _SHORT: "the file ended before what was to be read",
}
_TURN_MS = 100
"""How long a wait may keep Ctrl-C waiting."""


@cache
def _library() -> ctypes.CDLL:
    """Loaded so that its functions run without the interpreter lock."""
    library = build(Path(__file__).parent / "channel.cpp", with_torch=False, openmp=False)
    if library is None:
        raise ExecutionError("a second memory needs a C++ compiler (set CXX, or install g++)")
    free = ctypes.CDLL(library._name)
    integer, number, pointer = ctypes.c_int, ctypes.c_int64, ctypes.c_void_p
    declare(
        free,
        {
            "monet_channel_open": (pointer, [ctypes.c_char_p, ctypes.c_char_p, number, integer, pointer]),
            "monet_channel_file": (integer, [pointer]),
            "monet_channel_is_direct": (integer, [pointer]),
            "monet_channel_write": (integer, [pointer, pointer, number, number, pointer]),
            "monet_channel_read": (integer, [pointer, pointer, number, number, pointer]),
            "monet_channel_wait": (integer, [pointer, number, number]),
            "monet_channel_drain": (None, [pointer]),
            "monet_channel_forget": (None, [pointer]),
            "monet_channel_statistics": (None, [pointer, pointer]),
            "monet_channel_disturb": (None, [pointer, number, number, integer]),
            "monet_channel_close": (None, [pointer]),
        },
    )
    return free


def _why(error: int) -> str:
    return _SAID.get(error) or os.strerror(error)


def _opened(
    library: ctypes.CDLL, folder: Path, size: int, *, name: str | None = None, buffered: bool = False
) -> ctypes.c_void_p | str:
    """What stands for the open channel, or why there is none."""
    error, named = ctypes.c_int(), None if name is None else os.fsencode(name)
    opened = library.monet_channel_open(os.fsencode(folder), named, size, int(buffered), ctypes.byref(error))
    return ctypes.c_void_p(opened) if opened else _why(error.value)


def reason_against(folder: Path) -> str | None:
    """Why no second memory can lie in ``folder``; None where one can. Raises ``ExecutionError`` without a compiler."""
    library = _library()
    opened = _opened(library, folder, 1)
    if isinstance(opened, str):
        return opened
    library.monet_channel_close(opened)
    return None


@dataclass(frozen=True, slots=True)
class Copied:
    """Since the channel was opened; seconds are those of copying alone."""

    written_bytes: int
    read_bytes: int
    write_s: float
    read_s: float


class _Mapping(mmap.mmap):
    """``lock``: nobody else has the file while somebody looks at it here."""

    lock: FileLock | None = None


class Channel:
    """``bytes`` bytes in a file, all of them set aside, and a thread that copies.

    Copies are over in the order in which they are issued. Memory and places are multiples of ``ALIGNMENT``; a copy
    touches its length rounded up to that. ``direct``: copied past the page cache; else it is written out and dropped
    from there, chunk by chunk. ``lock``: of a file in the folder that stays, with what it holds, and that whoever maps
    it keeps; without one, it is gone when the process ends, however it ends.

    Raises ``ExecutionError`` where the folder lies in main memory, cannot be written to, or has too little room.
    """

    _open = False

    def __init__(self, folder: Path, size: int, *, lock: FileLock | None = None, buffered: bool = False) -> None:
        self._lib = _library()
        self.folder, self.bytes, self._lock = folder, size, lock
        name = None if lock is None else lock.path.name
        opened = _opened(self._lib, folder, size, name=name, buffered=buffered)
        if isinstance(opened, str):
            raise ExecutionError(f"{folder} cannot hold a second memory of {size:,} bytes: {opened}")
        self._channel = opened
        self._open = True
        self.direct = bool(self._lib.monet_channel_is_direct(self._channel))

    def write(self, pointer: int, place: int, size: int) -> int:
        """Issue a copy from memory to a place; returns its ticket."""
        return self._issue(self._lib.monet_channel_write, "write", pointer, place, size)

    def read(self, pointer: int, place: int, size: int) -> int:
        """Issue a copy from a place to memory; returns its ticket."""
        return self._issue(self._lib.monet_channel_read, "read", pointer, place, size)

    def _issue(self, function: ctypes._NamedFuncPointer, what: str, pointer: int, place: int, size: int) -> int:
        ticket = ctypes.c_int64()
        error = function(self._channel, pointer, place, size, ctypes.byref(ticket))
        if error != 0:
            raise ExecutionError(f"a {what} of {size:,} bytes in {self.folder} failed: {_why(error)}")
        return ticket.value

    def wait(self, ticket: int) -> None:
        """Until a copy is over. Raises ``ExecutionError`` where it, or one before it, has failed; Ctrl-C ends the
        wait."""
        while (error := self._lib.monet_channel_wait(self._channel, ticket, _TURN_MS)) == 1:
            pass
        if error != 0:
            raise ExecutionError(f"copying in {self.folder} failed: {_why(error)}")

    def drain(self) -> bool:
        """Wait until nothing is copied any more, whatever has failed, and be ready for another step. Returns whether a
        copy has failed."""
        self._lib.monet_channel_drain(self._channel)
        failed = bool(self._lib.monet_channel_wait(self._channel, 0, 0) != 0)
        self._lib.monet_channel_forget(self._channel)
        return failed

    def mapped(self) -> mmap.mmap:
        """The whole file as memory: whoever looks at it makes the system read it, and what is written there is read by
        later copies. Not to be used while something is copied. The mapping outlives the channel."""
        mapping = _Mapping(self._lib.monet_channel_file(self._channel), self.bytes)
        mapping.lock = self._lock
        return mapping

    def forget_pages(self, mapping: mmap.mmap) -> None:
        """Hold nothing of the mapping in memory, but for what was changed there and is not flushed; a copy finds it."""
        mapping.madvise(mmap.MADV_DONTNEED)
        os.posix_fadvise(self._lib.monet_channel_file(self._channel), 0, self.bytes, os.POSIX_FADV_DONTNEED)

    def sync(self) -> None:
        """Until what was copied to the file is on the disk, whatever happens to the machine."""
        os.fsync(self._lib.monet_channel_file(self._channel))

    def copied(self) -> Copied:
        """What has been copied so far."""
        out = (ctypes.c_int64 * 4)()
        self._lib.monet_channel_statistics(self._channel, out)
        return Copied(out[0], out[1], out[2] / 1e9, out[3] / 1e9)

    def disturb(self, delay_s: float = 0.0, failing_chunk: int = -1, error: int = 0) -> None:
        """For tests: each chunk waits, and the chunk of this number, counted from the next one, fails."""
        self._lib.monet_channel_disturb(self._channel, round(delay_s * 1e6), failing_chunk, error)

    def close(self) -> None:
        """Give the file back, once nothing is copied any more."""
        if self._open:
            self._open = False
            self._lib.monet_channel_close(self._channel)

    def __del__(self) -> None:
        self.close()

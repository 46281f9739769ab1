"""A GPU's allocator and streams on a machine without one: monet's CUDA allocator around a made-up one, in C++."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
import torch

from monet.native import compiling, cuda_allocator
from monet.native.library import declare

MOCK = Path(__file__).parent / "cuda_mock.cpp"


@cache
def built() -> ctypes.PyDLL:
    """The allocator with its mock. Its own symbols come first, wherever a PyTorch with CUDA is loaded."""
    if compiling.compiler() is None:
        pytest.skip("no C++ compiler")
    torch_folder = Path(torch.__file__).parent
    target = compiling.shared_library(
        MOCK,
        [f"-I{torch_folder / 'include'}", "-DC10_CUDA_NO_CMAKE_CONFIGURE_FILE", "-O1"],
        [f"-L{torch_folder / 'lib'}", "-lc10", f"-Wl,-rpath,{torch_folder / 'lib'}", "-Wl,-Bsymbolic,--no-undefined"],
        (cuda_allocator.SOURCE.parent, *cuda_allocator.INCLUDE),
    )
    assert target is not None
    lib = ctypes.PyDLL(str(target))
    int64, pointer, text, nothing = ctypes.c_int64, ctypes.c_void_p, ctypes.c_char_p, None
    declare(
        lib,
        {
            "mock_allocate": (pointer, [int64]),
            "mock_free": (nothing, [pointer]),
            "mock_address": (int64, [pointer]),
            "mock_record_stream": (ctypes.c_int, [pointer, int64]),
            "mock_is_plain": (ctypes.c_int, [pointer]),
            "mock_raw_alloc": (int64, [int64, int64]),
            "mock_raw_allocate": (int64, [int64]),
            "mock_raw_delete": (ctypes.c_int, [int64]),
            "mock_forget": (nothing, []),
            "mock_stream": (nothing, [int64]),
            "mock_device": (nothing, [ctypes.c_int]),
            "mock_order": (nothing, [int64, int64]),
            "mock_is_installed": (ctypes.c_int, []),
            "mock_busy": (nothing, [int64, ctypes.c_int]),
            "mock_capturing": (nothing, [int64, ctypes.c_int]),
            "mock_capacity": (nothing, [int64]),
            "mock_begin_pool": (nothing, [int64, int64]),
            "mock_end_pool": (nothing, [int64]),
            "mock_release_pool": (nothing, [int64]),
            "mock_share_pool": (nothing, [int64]),
            "mock_live": (int64, []),
            "mock_peak": (int64, []),
            "mock_reset_peak": (nothing, []),
            "mock_base": (int64, [int64, pointer]),
            "mock_ipc_offset": (int64, [int64]),
            "mock_use": (int64, [pointer, int64]),
            "mock_forwards": (text, []),
            "mock_journal": (text, []),
        },
    )
    return lib


@dataclass
class MadeUp:
    """A tensor of the mock's."""

    lib: ctypes.PyDLL
    handle: int
    address: int

    def free(self) -> None:
        self.lib.mock_free(self.handle)

    @property
    def is_plain(self) -> bool:
        """Whether PyTorch's allocator would know it as its own."""
        return bool(self.lib.mock_is_plain(self.handle))

    def record_stream(self, stream: int) -> None:
        self.lib.mock_record_stream(self.handle, stream)
        raise_error(self.lib)

    def races(self, stream: int) -> int:
        """Work on it on a stream: how much earlier work on the same bytes, as another block, races with that."""
        return int(self.lib.mock_use(self.handle, stream))


def raise_error(lib: ctypes.PyDLL) -> None:
    """What the last call of C++ threw, which Python's own wrappers raise themselves."""
    reason = lib.monet_error()
    if reason:
        raise RuntimeError(reason.decode())


class Machine:
    """Streams are numbers: 0 to 99 are of GPU 0, 100 to 199 of GPU 1; 0 and 100 are the default ones."""

    def __init__(self) -> None:
        self.lib = cuda_allocator.prepare(built())
        self.lib.mock_forget()
        self.lib.mock_reset_peak()

    def arena(
        self,
        requests: Sequence[Sequence[tuple[int, int | None]]],
        size: int,
        leaves: Sequence[Collection[int]] | None = None,
    ) -> cuda_allocator.CudaArena:
        return cuda_allocator.CudaArena(requests, size, leaves, device=0, library=self.lib)

    def allocate(self, count: int) -> MadeUp:
        handle = self.lib.mock_allocate(count)
        raise_error(self.lib)
        return MadeUp(self.lib, handle, self.lib.mock_address(handle))

    def raw_allocate(self, count: int, stream: int = -1) -> int:
        """By address, on the current stream or a given one."""
        address = int(self.lib.mock_raw_alloc(count, stream))
        raise_error(self.lib)
        return address

    def raw_delete(self, address: int) -> None:
        self.lib.mock_raw_delete(address)
        raise_error(self.lib)

    def base(self, address: int) -> tuple[int, int]:
        """First address and bytes of the allocation that an address is in."""
        size = ctypes.c_int64()
        found = int(self.lib.mock_base(address, ctypes.byref(size)))
        raise_error(self.lib)
        return found, size.value

    def stream(self, number: int) -> None:
        self.lib.mock_stream(number)

    @contextlib.contextmanager
    def capture(self, pool: int, stream: int) -> Iterator[None]:
        """A graph that is captured on the stream, which becomes the current one."""
        self.stream(stream)
        self.lib.mock_begin_pool(pool, stream)
        self.lib.mock_capturing(stream, 1)
        try:
            yield
        finally:
            self.lib.mock_capturing(stream, 0)
            self.lib.mock_end_pool(pool)

    def journal(self) -> list[str]:
        """What PyTorch's allocator and the streams were asked since the last time."""
        return str(self.lib.mock_journal().decode()).splitlines()

    @property
    def live_bytes(self) -> int:
        return int(self.lib.mock_live())

    @property
    def peak_bytes(self) -> int:
        return int(self.lib.mock_peak())

    def close(self) -> None:
        self.lib.mock_capacity(1 << 40)
        self.lib.monet_leave()

"""Python's side of ``allocator.cpp``: record an operator's requests, serve planned ones, count bytes."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from monet.base.live_objects import live_objects
from monet.errors import ExecutionError
from monet.native.library import build, declare


@dataclass(frozen=True, slots=True)
class Event:
    """One request (``bytes`` > 0, at address ``pointer``) or its release (``bytes`` is None)."""

    index: int
    bytes: int | None
    pointer: int


def arena_signatures() -> dict[str, tuple[object, list[object]]]:
    """What ``Arena`` and ``Recording`` call, in the library of each device."""
    int64, pointer = ctypes.c_int64, ctypes.c_void_p
    return {
        "monet_install": (ctypes.c_int, []),
        "monet_program_create": (pointer, [int64, *[pointer] * 4, int64, ctypes.c_int, *[pointer] * 2]),
        "monet_program_destroy": (None, [pointer]),
        "monet_program_resize": (None, [pointer, pointer, pointer]),
        "monet_arena_map": (ctypes.c_int, [pointer]),
        "monet_arena_ready": (int64, [pointer]),
        "monet_arena_unmap": (None, [pointer]),
        "monet_arena_share": (None, [pointer, pointer]),
        "monet_arena_base": (int64, [pointer]),
        "monet_enter": (None, [pointer, int64]),
        "monet_leave": (None, []),
        "monet_statistics": (None, [pointer, pointer]),
        "monet_record_begin": (None, []),
        "monet_record_end": (int64, [pointer]),
        "monet_record_read": (None, [pointer]),
    }


def built() -> ctypes.PyDLL | None:
    """The library, not installed yet."""
    return build(Path(__file__).parent / "allocator.cpp", with_torch=True, openmp=False)


@cache
def library() -> ctypes.PyDLL | None:
    """The installed allocator, or None (said once) where it cannot be built.

    Installing replaces torch's CPU allocator for the whole process; what is not planned goes to
    the one that was there before, with 64 bytes more a block.
    """
    lib = built()
    if lib is None:
        return None
    int64, pointer = ctypes.c_int64, ctypes.c_void_p
    declare(lib, arena_signatures())
    declare(
        lib,
        {
            "monet_live_bytes": (int64, []),
            "monet_peak_bytes": (int64, []),
            "monet_pause": (None, []),
            "monet_resume": (int64, []),
            "monet_reset_peak": (None, []),
            "monet_crew": (pointer, []),
            "monet_join_crew": (None, [pointer]),
            "monet_evict": (None, [int64, int64]),
        },
    )
    if lib.monet_install() != 0:
        raise ExecutionError("torch kept another CPU allocator: something installed one with a higher priority")
    _made_before.append(_tensor_bytes())
    return lib


_made_before: list[int] = []
"""Bytes of tensors when the allocator was installed, which it does not count; empty before."""


def _tensor_bytes() -> int:
    """What tensors that Python knows hold on the CPU."""
    storages: dict[int, int] = {}
    for found in live_objects():
        # By type: asking any object for its class may run a library's code.
        if type(found) not in (torch.Tensor, torch.nn.Parameter):
            continue
        wraps = torch._C._functorch.is_functorch_wrapped_tensor(found)  # has no storage of its own
        if found.device.type == "cpu" and found.layout is torch.strided and not wraps:
            storage = found.untyped_storage()
            with contextlib.suppress(RuntimeError):  # a tensor of tracing, which has sizes and no memory
                storages[storage.data_ptr()] = storage.nbytes()
    storages.pop(0, None)
    return sum(storages.values())


@cache
def crew_library() -> ctypes.PyDLL | None:
    """What makes the threads of parallel loops known."""
    lib = build(Path(__file__).parent / "crew.cpp", with_torch=False, openmp=True)
    if lib is not None:
        lib.monet_for_each_worker.restype = None
        lib.monet_for_each_worker.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
    return lib


def gather_crew() -> None:
    """Make known the threads of this thread's parallel loops: a kernel's requests on them are then recorded, or served
    from the arena, with its requests on this thread. Call it before each recording and each pass: threads end when
    their number is lowered."""
    lib, crew = installed(), crew_library()
    if crew is not None and torch.get_num_threads() > 1:
        join = ctypes.cast(lib.monet_join_crew, ctypes.c_void_p)
        crew.monet_for_each_worker(torch.get_num_threads(), join, lib.monet_crew())


def available() -> bool:
    return library() is not None


def installed() -> ctypes.PyDLL:
    """The installed allocator. Raises ``ExecutionError`` where it cannot be built."""
    lib = library()
    if lib is None:
        raise ExecutionError("the native allocator is not available on this machine; install a C++ compiler")
    return lib


class Recording:
    """A context; after it, ``events`` has what this thread requested and released inside.

    Of the other threads of its parallel loops, ``worker_bytes`` is the most that one held at once, as a stack of
    multiples of 64 bytes, and ``worker_leaks`` the number of blocks that are still held.
    """

    def __init__(self, library: ctypes.PyDLL | None = None) -> None:
        self._lib = installed() if library is None else library
        self.events: tuple[Event, ...] = ()
        self.worker_bytes = 0
        self.worker_leaks = 0

    def __enter__(self) -> Recording:
        self._begin()
        self._lib.monet_record_begin()
        return self

    def _begin(self) -> None:
        gather_crew()

    def __exit__(self, *_: object) -> None:
        lib = self._lib
        crew = (ctypes.c_int64 * 2)()
        count = lib.monet_record_end(crew)
        self.worker_bytes, self.worker_leaks = crew
        numbers = (ctypes.c_int64 * (3 * count))()
        lib.monet_record_read(numbers)
        self.events = tuple(
            Event(numbers[i], numbers[i + 1] if numbers[i + 1] >= 0 else None, numbers[i + 2])
            for i in range(0, 3 * count, 3)
        )


@dataclass(frozen=True, slots=True)
class Statistics:
    """``first_miss``: step, number of the request in the step, bytes asked, bytes planned (-1: none)."""

    misses: int
    served: int
    first_miss: tuple[int, int, int, int]


class Arena:
    """Planned requests of a list of steps, and the memory that serves them.

    ``requests[s]`` lists (bytes, offset) for step s; PyTorch's own allocator serves a request whose offset is None.
    ``crew[s]`` is (bytes, offset) of the region that the other threads of its parallel loops share evenly; (0, 0): they
    ask for nothing. ``leaves[s]``: the numbers of its requests whose blocks outlive the step; until the next ``ready``,
    which moves the arena away from those that somebody still holds. ``map`` makes the memory, ``close`` gives it back.
    ``library``: that of the device, None for the CPU.
    """

    _open = False  # Ctrl-C may come before the constructor ends
    _lender: Arena | None = None  # whose memory it is; kept alive

    def __init__(
        self,
        requests: Sequence[Sequence[tuple[int, int | None]]],
        arena_bytes: int,
        crew: Sequence[tuple[int, int]] | None = None,
        leaves: Sequence[Collection[int]] | None = None,
        library: ctypes.PyDLL | None = None,
    ) -> None:
        self._lib = installed() if library is None else library
        crew = [(0, 0)] * len(requests) if crew is None else crew
        leaves = [()] * len(requests) if leaves is None else leaves
        self.bytes = arena_bytes
        begin = [0]
        for step in requests:
            begin.append(begin[-1] + len(step))
        flat = [request for step in requests for request in step]
        kind = ctypes.c_int64
        self._program = self._lib.monet_program_create(
            len(requests),
            (kind * len(begin))(*begin),
            (kind * len(flat))(*(size for size, _ in flat)),
            (kind * len(flat))(*(-1 if offset is None else offset for _, offset in flat)),
            (kind * len(flat))(
                *(n in left for step, left in zip(requests, leaves, strict=True) for n in range(len(step)))
            ),
            arena_bytes,
            max(1, torch.get_num_threads() - 1),
            (kind * len(crew))(*(offset for _, offset in crew)),
            (kind * len(crew))(*(size for size, _ in crew)),
        )
        self._open = True

    @property
    def handle(self) -> int:
        """What ``monet_enter`` takes."""
        return int(self._program)

    def resize(self, sizes: Sequence[int], upper: Sequence[bool]) -> None:
        """Between two steps: other sizes of the same requests, in the order of the steps, none above what was planned.
        ``upper``: which of them are the most that may be asked; less is served as well."""
        kind = ctypes.c_int64 * len(sizes)
        self._lib.monet_program_resize(self._program, kind(*sizes), kind(*upper))

    def offset(self, pointer: int) -> int:
        """Of an address in the arena."""
        return pointer - int(self._lib.monet_arena_base(self._program))

    def map(self) -> None:
        if self._lib.monet_arena_map(self._program) != 0:
            raise ExecutionError(f"the system refuses an arena of {self.bytes} bytes of address space")

    def ready(self) -> int:
        """Make the memory, or what an earlier step left in it be elsewhere: the number of bytes, in whole pages, that
        somebody still holds and that are no part of the arena from now on."""
        kept = int(self._lib.monet_arena_ready(self._program))
        if kept < 0:
            raise ExecutionError(
                f"there is no address space for an arena of {self.bytes} bytes, or too many arenas: each step whose "
                "gradients somebody keeps leaves one behind. Keep clones of gradients (p.grad.clone())"
            )
        return kept

    def share(self, other: Arena) -> None:
        """Serve from the memory of another, mapped arena that is at least as large and outlives this one."""
        if other.bytes < self.bytes:
            raise ExecutionError(f"an arena of {self.bytes} bytes cannot share one of {other.bytes}")
        self._lib.monet_arena_share(self._program, other._program)
        self._lender = other

    def unmap(self) -> None:
        """Give the memory back, once no tensor lies in it, and stay usable: ``map`` and ``share`` give it other memory.
        Those that share it need other memory, too, before their next step."""
        self._lib.monet_arena_unmap(self._program)

    def contains(self, pointer: int) -> bool:
        base = int(self._lib.monet_arena_base(self._program))
        return base != 0 and base <= pointer < base + (self._lender or self).bytes

    def enter(self, step: int) -> None:
        self._lib.monet_enter(self._program, step)

    def leave(self) -> None:
        self._lib.monet_leave()

    def statistics(self) -> Statistics:
        out = (ctypes.c_int64 * 6)()
        self._lib.monet_statistics(self._program, out)
        return Statistics(out[0], out[1], (out[2], out[3], out[4], out[5]))

    def close(self) -> None:
        if self._open:
            self._open = False
            self._lib.monet_program_destroy(self._program)

    def __del__(self) -> None:
        self.close()


def live_bytes() -> int:
    """Bytes that torch holds on the CPU now, arenas included, of what was allocated since installing."""
    return int(installed().monet_live_bytes())


def uncounted_bytes() -> int:
    """Bytes of the tensors that were there when the allocator was installed: ``live_bytes`` does not have them. What of
    them has been freed since is not known."""
    installed()
    return sum(_made_before)


def peak_bytes() -> int:
    """The highest ``live_bytes`` since the last ``reset_peak``."""
    return int(installed().monet_peak_bytes())


def reset_peak() -> None:
    installed().monet_reset_peak()


def evict(tensor: torch.Tensor) -> None:
    """Take a tensor's memory out of the processor's caches, where ``signature.EVICTS``."""
    if tensor.numel():
        last = sum((length - 1) * stride for length, stride in zip(tensor.shape, tensor.stride(), strict=True))
        installed().monet_evict(tensor.data_ptr(), (last + 1) * tensor.itemsize)


def pause() -> None:
    """In the middle of a step: from here to ``resume``, PyTorch's own allocator serves this thread. Pauses do not
    nest."""
    installed().monet_pause()


def resume() -> int:
    """The most bytes that were held since ``pause``, beyond what was held then."""
    return int(installed().monet_resume())

"""Python's side of ``guided.h``: an arena whose steps are recorded while they are served."""

from __future__ import annotations

import ctypes
from dataclasses import astuple, dataclass
from functools import cache
from operator import add
from typing import Any

import numpy as np
import numpy.typing as npt

from monet.errors import ExecutionError
from monet.native.allocator import installed
from monet.native.library import declare

Integers = npt.NDArray[np.int64]
MOST_REQUESTS = 1 << 22
"""Requests of a step that are recorded; ``kMostRequests`` of ``guided.h``. PyTorch serves those after them."""


@dataclass(frozen=True, slots=True)
class StepCounts:
    """Of one step: ``requests`` in all; ``served`` where they were planned; ``moved``, not foreseen by the plan, or
    their place was taken, but there was a gap in the arena; ``unplaced``, planned to be PyTorch's; ``missed``, as
    ``moved`` without a gap, so they are PyTorch's, too."""

    requests: int = 0
    served: int = 0
    moved: int = 0
    unplaced: int = 0
    missed: int = 0

    def __add__(self, other: StepCounts) -> StepCounts:
        return StepCounts(*map(add, astuple(self), astuple(other)))

    @property
    def unforeseen(self) -> int:
        """Requests that are not where the plan has them."""
        return self.moved + self.missed


@cache
def _library() -> ctypes.PyDLL:
    lib = installed()
    int64, pointer = ctypes.c_int64, ctypes.c_void_p
    signatures: dict[str, tuple[object, list[object]]] = {
        "monet_guide_create": (pointer, [int64]),
        "monet_guide_destroy": (None, [pointer]),
        "monet_guide_plan": (pointer, [int64, pointer, pointer]),
        "monet_guide_plan_destroy": (None, [pointer]),
        "monet_guide_room": (ctypes.c_int, [pointer, int64]),
        "monet_guide_begin": (None, [pointer, pointer]),
        "monet_guide_end": (None, [pointer]),
        "monet_guide_bind": (pointer, [pointer]),
        "monet_guide_statistics": (None, [pointer, pointer]),
        "monet_guide_trace": (None, [pointer, pointer]),
        "monet_guide_held": (int64, [pointer, int64, pointer]),
    }
    declare(lib, signatures)
    return lib


class Places:
    """The requests of a step, in bytes and in order, and the offset of each; -1: PyTorch serves it."""

    def __init__(self, sizes: Integers, offsets: Integers) -> None:
        self._lib = _library()
        sizes, offsets = (np.ascontiguousarray(numbers, dtype=np.int64) for numbers in (sizes, offsets))
        self._plan = self._lib.monet_guide_plan(len(sizes), sizes.ctypes.data, offsets.ctypes.data)

    def __del__(self) -> None:
        if hasattr(self, "_plan"):
            self._lib.monet_guide_plan_destroy(self._plan)


class GuidedArena:
    """One arena, and the step that is in it: ``begin`` and ``end`` are called by one thread, which ``bind`` makes the
    one whose requests the step's are. ``limit_bytes``: what torch may hold when a step requests something; 0: no
    limit."""

    def __init__(self, limit_bytes: int = 0) -> None:
        self._lib = _library()
        self._guide = self._lib.monet_guide_create(limit_bytes)
        self._places: Places | None = None  # the step's, which must live as long as it

    def make_room(self, arena_bytes: int) -> None:
        """Have an arena of so many bytes, or of more while something lies in a larger one; not within a step."""
        if self._lib.monet_guide_room(self._guide, arena_bytes) != 0:
            raise ExecutionError(f"the system refuses an arena of {arena_bytes} bytes of address space")

    def begin(self, places: Places | None) -> None:
        """A step begins. ``places``: those of its requests; None: it is the first of its kind, which finds
        gaps at most."""
        self._places = places
        self._lib.monet_guide_begin(self._guide, None if places is None else places._plan)

    def end(self) -> StepCounts:
        self._lib.monet_guide_end(self._guide)
        self._places = None
        return StepCounts(*self._statistics()[:5])

    def bind(self) -> Any:
        """The calling thread's requests are the step's from here on. Returns what to give to ``unbind``."""
        return self._lib.monet_guide_bind(self._guide)

    def unbind(self, previous: Any = None) -> None:
        """The calling thread's requests are ``previous``'s again."""
        self._lib.monet_guide_bind(previous)

    def trace(self) -> tuple[Integers, Integers, Integers]:
        """Bytes, birth and death of each request of the last step, on a clock that ticks with every request and
        release; death is -1 where the block was still held when the step ended."""
        numbers = np.empty((self._statistics()[0], 3), dtype=np.int64)
        self._lib.monet_guide_trace(self._guide, numbers.ctypes.data)
        return numbers[:, 0].copy(), numbers[:, 1].copy(), numbers[:, 2].copy()

    def held(self) -> tuple[tuple[int, int], ...]:
        """Offset and bytes of what lies in the arena now; between steps: of what has outlived its own."""
        count = int(self._lib.monet_guide_held(self._guide, 0, None))
        numbers = np.full((count, 2), -1, dtype=np.int64)
        self._lib.monet_guide_held(self._guide, count, numbers.ctypes.data)
        return tuple((int(offset), int(size)) for offset, size in numbers if offset >= 0)

    @property
    def most_bytes(self) -> int:
        """The most that torch held when a step requested something, the whole arena included."""
        return self._statistics()[5]

    def _statistics(self) -> list[int]:
        out = (ctypes.c_int64 * 6)()
        self._lib.monet_guide_statistics(self._guide, out)
        return list(out)

    def __del__(self) -> None:
        if hasattr(self, "_guide"):
            self._lib.monet_guide_destroy(self._guide)

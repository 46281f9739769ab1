"""Copies of a plan to a disk and back, by a thread of their own."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from monet.base.graph import Value
from monet.errors import ExecutionError
from monet.native.channel import ALIGNMENT, Channel
from monet.plans.format import whole_blocks
from monet.step.second_memory.waits import Waits


@dataclass(slots=True)
class _UnderWay:
    """A copy's ticket. ``bounce``: memory that is copied instead of ``pointer``, where that is not the arena's."""

    ticket: int
    bounce: torch.Tensor | None = None
    pointer: int = 0
    size: int = 0


@dataclass(slots=True)
class DiskCopies:
    """``channel``: the disk, and the thread that copies. ``inside``: whether memory is the arena's: only there does a
    plan leave room for whole blocks. ``carried``: by place, the storage that it holds from one step to the next.
    ``lost``: of these, what the place does not hold any more, since a step was cut short between its update and the end
    of its copy. ``rewritten``: places that a step reads from one half of the file, and writes to the other: nothing is
    lost then. ``half``: 0 or 1, where the next step reads; ``half_bytes``: of one."""

    channel: Channel
    inside: Callable[[int], bool]
    waits: Waits = field(default_factory=Waits)
    process: int = field(default_factory=os.getpid)
    carried: Mapping[int, str] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)
    rewritten: frozenset[int] = frozenset()
    half: int = 0
    half_bytes: int = 0
    _under_way: dict[int, _UnderWay] = field(default_factory=dict)
    _written_back: set[int] = field(default_factory=set)  # places of ``carried`` with a copy under way to them

    def check_process(self) -> None:
        """Raises ``ExecutionError`` in a process that was forked from the one whose copies these are."""
        if os.getpid() != self.process:
            raise ExecutionError(
                "a planned module that moves tensors to a disk runs in the process that made it alone, and this one is "
                "forked from that; make a MonetModule in a process that is spawned"
            )

    def write(self, tensor: torch.Tensor, place: int, size: int) -> None:
        """Issue a copy of the tensor's memory, of which nothing changes until the ``wait`` for the place."""
        pointer = tensor.untyped_storage().data_ptr()
        bounce = None
        if not self.inside(pointer):
            bounce, aligned = _aligned(size)
            ctypes.memmove(aligned, pointer, min(size, tensor.untyped_storage().nbytes()))
            pointer = aligned
        there = place + (1 - self.half) * self.half_bytes if place in self.rewritten else place
        self._under_way[place] = _UnderWay(self.channel.write(pointer, there, size), bounce)
        if place in self.carried and place not in self.rewritten:
            self._written_back.add(place)

    def read(self, value: Value, place: int, size: int) -> torch.Tensor:
        """A tensor of new memory into which a place is read; it is there after the ``wait`` for the place."""
        # torch.UntypedStorage(size) would not ask the allocator that serves the arena.
        storage = torch.empty(size, dtype=torch.uint8).untyped_storage()
        pointer = storage.data_ptr()
        there = self.place_now(place)
        if self.inside(pointer):
            self._under_way[place] = _UnderWay(self.channel.read(pointer, there, size))
        else:
            bounce, aligned = _aligned(size)
            self._under_way[place] = _UnderWay(self.channel.read(aligned, there, size), bounce, pointer, size)
        made: torch.Tensor = torch.empty(0, dtype=value.dtype).set_(storage, value.offset, value.shape, value.stride)
        return made

    def place_now(self, place: int) -> int:
        """Where in the file a place's content is when a step begins."""
        return place + self.half * self.half_bytes if place in self.rewritten else place

    def wait(self, place: int) -> None:
        """Until the newest copy of the place is over. Raises ``ExecutionError`` where it has failed."""
        copy = self._under_way[place]
        began = time.perf_counter()
        self.channel.wait(copy.ticket)
        self.waits.seconds += time.perf_counter() - began
        self.waits.count += 1
        if copy.bounce is not None and copy.size:
            ctypes.memmove(copy.pointer, whole_blocks(copy.bounce.data_ptr()), copy.size)
        del self._under_way[place]
        self._written_back.discard(place)

    def settle(self) -> None:
        """Wait for whatever a step that was cut short has left: nothing of it is needed any more. That may be a copy
        which is not noted here, where Ctrl-C came right after its issue."""
        if self.channel.drain():
            self.lost.update(self.carried[place] for place in self._written_back)
        self._written_back.clear()
        self._under_way.clear()


def _aligned(size: int) -> tuple[torch.Tensor, int]:
    """Memory for whole blocks, and where they begin."""
    memory = torch.empty(size + 2 * ALIGNMENT, dtype=torch.uint8)
    return memory, whole_blocks(memory.data_ptr())

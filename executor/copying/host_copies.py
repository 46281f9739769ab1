"""Copies of a plan between a GPU and pinned main memory, on streams of their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from monet.base.graph import Value
from monet.step.second_memory.waits import Waits


class Streams(Protocol):
    """What ``monet.step.second_memory.streams.CopyStreams`` is, whatever its fences are."""

    def fence(self) -> Any: ...

    def copy(
        self, fence: Any, target: torch.Tensor, source: torch.Tensor, *, write: bool, after: Any | None = None
    ) -> None: ...

    def wait(self, fence: Any) -> None: ...

    def waited_s(self, fence: Any) -> float: ...

    def settle(self) -> None: ...


@dataclass(slots=True, weakref_slot=True, eq=False)
class HostCopies:
    """``memory``: bytes of main memory, all places of the plan in one piece. ``carried``, ``lost``: as of
    ``DiskCopies``; no state is carried here.

    A ``wait`` holds up the GPU and not the CPU, so a step may be issued while the one before it still runs; where it
    takes the time of the last step's waits, the CPU is at most that one step ahead.
    """

    streams: Streams
    memory: torch.Tensor
    carried: Mapping[int, str] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)
    _waits: Waits = field(default_factory=Waits)
    _fences: dict[tuple[int, bool], Any] = field(default_factory=dict)  # by place, and whether it is written
    # By place: the copy's fence, and what it copies to or from, which nothing else may use before it is over.
    _under_way: dict[int, tuple[Any, torch.Tensor]] = field(default_factory=dict)
    _untold: dict[int, Any] = field(default_factory=dict)  # fences whose waits are not counted yet, by their ids

    @property
    def waits(self) -> Waits:
        """The CPU waits until the GPU has got as far as the last wait."""
        for fence in self._untold.values():
            self._waits.seconds += self.streams.waited_s(fence)
        self._untold.clear()
        return self._waits

    def check_process(self) -> None:
        """PyTorch itself refuses a GPU in a forked process."""

    def write(self, tensor: torch.Tensor, place: int, size: int) -> None:
        """Issue a copy of the tensor's memory, of which nothing changes until the ``wait`` for the place."""
        source = _memory_of(tensor, size)
        fence = self._fence(place, write=True)
        read = self._fences.get((place, False))  # of the step before: two streams know nothing of each other
        self._under_way[place] = fence, source  # first: Ctrl-C may come right after the issue
        self.streams.copy(fence, self._place(place, source.numel()), source, write=True, after=read)

    def read(self, value: Value, place: int, size: int) -> torch.Tensor:
        """A tensor of new memory into which a place is read; it is there after the ``wait`` for the place."""
        storage = torch.empty(size, dtype=torch.uint8, device=value.device).untyped_storage()
        made: torch.Tensor = torch.empty(0, dtype=value.dtype, device=value.device).set_(
            storage, value.offset, value.shape, value.stride
        )
        target = _memory_of(made, size)
        fence = self._fence(place, write=False)
        written = self._fences.get((place, True))
        self._under_way[place] = fence, target
        self.streams.copy(fence, target, self._place(place, target.numel()), write=False, after=written)
        return made

    def wait(self, place: int) -> None:
        """What the GPU is given from now on begins when the newest copy of the place is over."""
        fence, _ = self._under_way[place]
        if id(fence) in self._untold:  # of the step before: its events are recorded anew
            self._waits.seconds += self.streams.waited_s(self._untold.pop(id(fence)))
        self.streams.wait(fence)
        self._untold[id(fence)] = fence
        self._waits.count += 1
        del self._under_way[place]

    def settle(self) -> None:
        """Wait for whatever a step that was cut short has left: nothing of it is needed any more."""
        if self._under_way:
            self.streams.settle()
            self._under_way.clear()

    def _fence(self, place: int, *, write: bool) -> Any:
        known = self._fences.get((place, write))
        if known is None:
            known = self._fences[place, write] = self.streams.fence()
        return known

    def _place(self, place: int, size: int) -> torch.Tensor:
        return self.memory[place : place + size]


def _memory_of(tensor: torch.Tensor, size: int) -> torch.Tensor:
    """The first ``size`` bytes of a tensor's storage, or all that it has."""
    storage = tensor.untyped_storage()
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(
        storage, 0, (min(size, storage.nbytes()),), (1,)
    )

"""Parameters and state that live in the second memory: tensors whose memory is the file itself.

Between steps nothing is copied, so that the file can be mapped: ``state_dict``, ``torch.save`` and whoever else looks
at such a tensor make the system read it, page by page, and its pages are given back before the next step. Steps copy
past the mapping.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from monet.base.graph import Value
from monet.base.heap import trim
from monet.errors import ExecutionError
from monet.executor.copying.disk_copies import DiskCopies

_MOST_DIRTY = 64 << 20
"""Bytes of the file that are in memory while tensors are put there, at most, but for a tensor that is larger."""


class CarriedState:
    """The file's tensors, and whether they hold what model and optimiser should have."""

    def __init__(self, copies: DiskCopies, value_of: Callable[[str], Value]) -> None:
        self._copies = copies
        self._mapping = copies.channel.mapped()
        self._dirty = 0  # bytes changed here since they were last given back
        self._base = torch.frombuffer(self._mapping, dtype=torch.uint8).data_ptr()
        self._emptied: set[str] = set()  # what was lost, and held no numbers then
        self._value_of = value_of
        halves = range(2 if copies.half_bytes else 1)
        self._places = {
            storage: [place + half * copies.half_bytes if place in copies.rewritten else place for half in halves]
            for place, storage in sorted(copies.carried.items())
        }
        self._halves = tuple(
            {storage: self._tensor(places[half], value_of(storage)) for storage, places in self._places.items()}
            for half in halves
        )

    @property
    def tensors(self) -> Mapping[str, torch.Tensor]:
        """By storage, what model and optimiser have."""
        return self._halves[self._copies.half]

    def turn(self, half: int) -> None:
        """From here on what the last step left is in this half."""
        self._copies.half = half

    def adopt(self, storage: str, parameter: torch.Tensor) -> None:
        """Have the parameter be what the file holds."""
        parameter.data = self.tensors[storage]

    def _tensor(self, place: int, value: Value) -> torch.Tensor:
        count = value.storage_bytes // value.dtype.itemsize
        flat = torch.frombuffer(self._mapping, dtype=value.dtype, count=count, offset=place)
        return flat.as_strided(value.shape, value.stride)

    def is_inside(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor's memory is the file."""
        return self._base <= tensor.data_ptr() < self._base + len(self._mapping)

    def has(self, storage: str, tensor: torch.Tensor) -> bool:
        """Whether a tensor's memory is the storage's place. PyTorch may have moved the file's tensor itself elsewhere
        (``share_memory``): then another takes its place."""
        there, own = self._base + self._places[storage][self._copies.half], self.tensors[storage]
        if own.data_ptr() != there:
            value = self._value_of(storage)
            self._halves[self._copies.half][storage] = self._tensor(there - self._base, value)
        return tensor.data_ptr() == there

    def take(self, storage: str, tensor: torch.Tensor) -> None:
        """What the storage holds from here on: a tensor of its shape."""
        own = self.tensors[storage]
        own.copy_(tensor)
        self._copies.lost.discard(storage)
        self._emptied.discard(storage)
        self._dirty += own.nbytes
        if self._dirty >= _MOST_DIRTY:
            self.release_pages()

    def fits(self, storage: str, tensor: torch.Tensor) -> bool:
        own = self.tensors[storage]
        return tensor.shape == own.shape and tensor.dtype == own.dtype

    def empty_lost(self) -> None:
        """After a step that was cut short: what it has lost holds no numbers, so that what is not written anew shows
        itself."""
        for storage in self._copies.lost - self._emptied:
            own = self.tensors[storage]
            if own.is_floating_point():
                own.fill_(torch.nan)
                self._emptied.add(storage)

    def check_lost(self, storage: str) -> None:
        """Raises ``ExecutionError`` where a step that was cut short has lost it, and not all was written since."""
        if storage not in self._copies.lost:
            return
        if storage in self._emptied and not self.tensors[storage].isnan().any():
            self._copies.lost.discard(storage)
            self._emptied.discard(storage)
            return
        raise ExecutionError(
            f"an earlier step was cut short after it had changed {storage} and before that was written to the "
            "disk: it is lost. Load the model and the optimizer from a checkpoint (load_state_dict), then go on"
        )

    def release_pages(self) -> None:
        """Hold nothing of it in memory, as when a step is about to begin."""
        if self._dirty:
            self._mapping.flush()
            self._dirty = 0
            trim()  # of what these tensors had before: holes in the heap, whose pages may have been touched
        self._copies.channel.forget_pages(self._mapping)

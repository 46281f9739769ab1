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
        self._versions: dict[str, int] = {}  # of parameters, when the last step began
        self._halves = tuple(self._of_half(half, value_of) for half in range(2 if copies.half_bytes else 1))

    def _of_half(self, half: int, value_of: Callable[[str], Value]) -> dict[str, torch.Tensor]:
        copies, found = self._copies, {}
        for place, storage in sorted(copies.carried.items()):
            there = place + half * copies.half_bytes if place in copies.rewritten else place
            found[storage] = self._tensor(there, value_of(storage))
        return found

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
        self._versions[storage] = parameter._version

    def _tensor(self, place: int, value: Value) -> torch.Tensor:
        count = value.storage_bytes // value.dtype.itemsize
        flat = torch.frombuffer(self._mapping, dtype=value.dtype, count=count, offset=place)
        return flat.as_strided(value.shape, value.stride)

    def taken_over(self, storage: str, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor to have in the place of ``tensor``, which the optimiser has, with the same content.

        Raises ``ExecutionError`` where it is the one whose content a step that was cut short has lost.
        """
        own = self.tensors[storage]
        if tensor is own:
            self._check_lost(storage)
            return own
        if tensor.shape != own.shape or tensor.dtype != own.dtype:
            return tensor  # which the check of all sources refuses
        self._take_over(storage, tensor)
        return own

    def take_parameter(self, storage: str, parameter: torch.Tensor, values: torch.Tensor | None = None) -> None:
        """Have the parameter's memory be the file, with the same content, or with ``values``.

        Raises ``ExecutionError`` where that is what a step that was cut short has lost, and nobody has written to the
        parameter since.
        """
        own = self.tensors[storage]
        if parameter.data_ptr() != own.data_ptr():
            if parameter.shape != own.shape or parameter.dtype != own.dtype:
                return  # which the check of all sources refuses
            self._take_over(storage, parameter.detach() if values is None else values)
            parameter.data = own
        elif self._versions[storage] == parameter._version:
            self._check_lost(storage)
        else:
            self._copies.lost.discard(storage)
        self._versions[storage] = parameter._version

    def _take_over(self, storage: str, tensor: torch.Tensor) -> None:
        own = self.tensors[storage]
        own.copy_(tensor)
        self._copies.lost.discard(storage)
        self._dirty += own.nbytes
        if self._dirty >= _MOST_DIRTY:
            self.release_pages()

    def _check_lost(self, storage: str) -> None:
        if storage in self._copies.lost:
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

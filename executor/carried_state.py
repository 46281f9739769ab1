"""An optimiser's state that lives in the second memory: tensors of the optimiser whose memory is the file itself.

Between steps nothing is copied, so that the file can be mapped: ``state_dict``, ``torch.save`` and whoever else looks
at such a tensor make the system read it, page by page, and its pages are given back before the next step. Steps copy
past the mapping.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from monet.base.graph import Value
from monet.errors import ExecutionError
from monet.executor.copying.disk_copies import DiskCopies


class CarriedState:
    """``tensors``: by storage, what the optimiser has as its state."""

    def __init__(self, copies: DiskCopies, value_of: Callable[[str], Value]) -> None:
        self._copies = copies
        self._mapping = copies.channel.mapped()
        self._changed = False  # here, since the last step
        self.tensors = {
            storage: self._tensor(place, value_of(storage)) for place, storage in sorted(copies.carried.items())
        }

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
            if storage in self._copies.lost:
                raise ExecutionError(
                    f"an earlier step was cut short after it had changed {storage} and before that was written to the "
                    "disk: it is lost. Load the model and the optimizer from a checkpoint (load_state_dict), then go on"
                )
            return own
        if tensor.shape != own.shape or tensor.dtype != own.dtype:
            return tensor  # which the check of all sources refuses
        own.copy_(tensor)
        self._changed = True
        self._copies.lost.discard(storage)
        return own

    def release_pages(self) -> None:
        """Hold nothing of it in memory: a step is about to begin."""
        if self._changed:
            self._mapping.flush()
            self._changed = False
        self._copies.channel.forget_pages(self._mapping)

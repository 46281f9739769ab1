"""Tensors that are plain attributes, or in what attributes hold, and that the forward pass changes in place.

Most such writes are operators of the plan, as those to buffers are. But where a write takes no tensor of the step, as
``self.count += 1``, tracing does it in earnest, to the model's own tensor.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.grad_mode import _unsafe_preserve_version_counter
from torch.utils._python_dispatch import _disable_current_modes

from monet.capture.effects.module_changes import same_values
from monet.capture.guards.code_reads import CodeReads
from monet.capture.guards.model_reads import named_reachable

MOST_KEPT_BYTES = 1 << 24
"""Of a tensor: a larger one is not looked at. It takes a copy to know its values."""
_MOST_KEPT_IN_ALL = 1 << 26
_SMALL_BYTES = 1 << 10


@dataclass(slots=True)
class _Kept:
    """``memory``: the tensor's; ``values``: what was in it when it had that ``version``."""

    label: str
    tensor: torch.Tensor
    memory: torch.Tensor
    version: int
    values: torch.Tensor

    @property
    def is_replaced(self) -> bool:
        """Whether it has other memory, as after ``tensor.data += 1``: in a trace, none."""
        return self.tensor.device != self.memory.device or self.tensor.data_ptr() != self.memory.data_ptr()

    @property
    def may_be_written(self) -> bool:
        """A write to its ``data`` counts as none, which is looked for where that takes no time."""
        return self.tensor._version != self.version or self.values.nbytes <= _SMALL_BYTES

    @property
    def is_written(self) -> bool:
        return self.may_be_written and not same_values(self.memory, self.values)


class WrittenTensors:
    """The plain tensors that the forward pass of ``model`` may write to, as they were when this was made."""

    def __init__(self, model: torch.nn.Module, reads: CodeReads) -> None:
        held = filter(_is_real, (*model.parameters(), *model.buffers()))
        own = {tensor.untyped_storage()._cdata for tensor in held}
        self._kept: list[_Kept] = []
        kept_bytes = 0
        with _disable_current_modes():
            for label, tensor in named_reachable(model, reads):
                if not isinstance(tensor, torch.Tensor) or not _is_real(tensor) or tensor.nbytes > MOST_KEPT_BYTES:
                    continue
                if tensor.untyped_storage()._cdata in own or kept_bytes + tensor.nbytes > _MOST_KEPT_IN_ALL:
                    continue
                kept_bytes += tensor.nbytes
                memory = tensor.detach()
                self._kept.append(_Kept(label, tensor, memory, tensor._version, memory.clone()))

    def changed(self) -> list[str]:
        """What has other values than when this was asked before, by the names of attributes. Each has the memory of
        before then."""
        with _disable_current_modes():
            replaced = [kept for kept in self._kept if kept.is_replaced]
            for kept in replaced:
                kept.tensor.data = kept.memory
            changed = [kept for kept in self._kept if kept.is_written]
            for kept in changed:
                kept.values = kept.memory.clone()
        for kept in self._kept:
            kept.version = kept.tensor._version
        return [kept.label for kept in (*replaced, *changed)]

    @contextmanager
    def put_back_after(self) -> Iterator[None]:
        """A context after which they have the values of before, for a backward pass that is pending, too."""
        with _unsafe_preserve_version_counter(tuple(kept.tensor for kept in self._kept)):
            try:
                yield
            finally:
                with torch.no_grad():
                    for kept in self._kept:
                        if kept.is_replaced:
                            kept.tensor.data = kept.memory
                        if kept.is_written:
                            kept.memory.copy_(kept.values)


def _is_real(tensor: torch.Tensor) -> bool:
    """Whether it has memory and values of its own."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or isinstance(tensor, FakeTensor):
        return False
    if tensor.layout is not torch.strided or tensor.device.type == "meta" or tensor.is_inference():
        return False
    return not tensor.is_quantized and tensor.untyped_storage().nbytes() >= tensor.nbytes  # it may be freed

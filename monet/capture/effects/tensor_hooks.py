"""What a forward pass asks of autograd for a tensor, and a planned backward pass does not do: hooks, kept gradients.

A trace calls such hooks once, or not at all, and what they do is in no graph of the step.
"""

from __future__ import annotations

import sys
from collections.abc import Collection
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from monet.capture.effects.value_conditions import line_of
from monet.errors import CaptureError

_ASKS = {
    torch.Tensor.register_hook: "registers a hook on a tensor",
    torch.Tensor.register_post_accumulate_grad_hook: "registers a hook on a tensor",
    torch.Tensor.retain_grad: "has the gradient of a tensor retained",
}
_REQUIRES_GRAD = (torch.Tensor.requires_grad_, vars(torch._C.TensorBase)["requires_grad"].__set__)


class TensorHooks(TorchFunctionMode):
    """A context that raises ``CaptureError`` where it is asked for. ``inputs``: of the model; that one of them is to
    require a gradient is for its ``.grad``."""

    def __init__(self, inputs: Collection[Any]) -> None:
        super().__init__()
        self._inputs = {id(leaf) for leaf in inputs if isinstance(leaf, torch.Tensor)}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        what = _ASKS.get(func)
        if func in _REQUIRES_GRAD and id(args[0]) in self._inputs and not args[0].requires_grad:
            what = "has an input require a gradient"
        if what is not None:
            raise CaptureError(
                f"the forward pass cannot be traced: it {what}, which a planned backward pass would not heed: "
                f"{line_of(sys._getframe(1))[0]}; change gradients by a torch.autograd.Function, or do it outside of "
                "the model, to what it is given or returns"
            )
        return func(*args, **(kwargs or {}))

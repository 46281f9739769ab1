"""Tensors that are made of other tensors have no memory of their own that could be planned."""

from __future__ import annotations

from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from monet.errors import CaptureError, StatefulForward

PLAIN = {torch.Tensor, torch.nn.Parameter}
"""Types of which every tensor is plain; of others some are."""


def is_plain(tensor: Any) -> bool:
    """Whether it is not made of other tensors, as the part of a sharded one that lies in this process is."""
    return type(tensor) in PLAIN or not is_traceable_wrapper_subclass(tensor)


def why_not_plain(name: str, tensor: Any) -> str:
    """A sentence on a tensor that is not plain."""
    return (
        f"{name} is a {type(tensor).__name__}, and plans are for plain tensors: a sharded model (fully_shard, tensor "
        "parallelism) can be planned block by block, inside of what makes its tensors whole; see docs/distributed.md"
    )


def require_not_lazy(model: torch.nn.Module) -> None:
    """Raises ``StatefulForward`` where the first call makes a parameter or a buffer of ``model``."""
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if torch.nn.parameter.is_lazy(tensor):
            raise StatefulForward(
                f"{name} is a {type(tensor).__name__}: a lazy model can be planned after it has run once"
            )


def require_plain(model: torch.nn.Module, inputs: Any) -> None:
    """Raises ``CaptureError`` where a parameter or a buffer of ``model`` or a tensor among ``inputs`` is not plain."""
    leaves = ((f"input {position}", leaf) for position, leaf in enumerate(pytree.tree_leaves(inputs)))
    for name, tensor in (*model.named_parameters(), *model.named_buffers(), *leaves):
        if isinstance(tensor, torch.Tensor) and not is_plain(tensor):
            raise CaptureError(why_not_plain(name, tensor))

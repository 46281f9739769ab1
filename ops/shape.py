"""Stand-ins for tensors of which a kernel reads only the shape."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def of_shape(like: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """A tensor of ``shape`` with dtype and device of ``like`` over one element of memory."""
    return like.new_empty(1).expand(list(shape))

"""Notices checkpoints inside of a model while it is traced: a plan takes their place."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch.utils.checkpoint

_NAMES = ("_checkpoint_without_reentrant_generator_impl", "_checkpoint_without_reentrant_generator")
_BEGIN = next((name for name in _NAMES if hasattr(torch.utils.checkpoint, name)), _NAMES[-1])
"""What each ``checkpoint(..., use_reentrant=False)`` runs: since torch 2.15 the first."""


@contextmanager
def noting_checkpoints() -> Iterator[list[Any]]:
    """A context whose list has each function that is checkpointed inside. A capture that was kept is not traced again,
    and notes nothing."""
    found: list[Any] = []
    real = getattr(torch.utils.checkpoint, _BEGIN, None)
    if real is None:  # of another PyTorch
        yield found
        return

    def noting(function: Any, *args: Any, **kwargs: Any) -> Any:
        found.append(function)
        return real(function, *args, **kwargs)

    setattr(torch.utils.checkpoint, _BEGIN, noting)
    try:
        yield found
    finally:
        setattr(torch.utils.checkpoint, _BEGIN, real)

"""The state of ``torch.autocast``: read as plain data, entered again, or ignored."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

# What a plan's ``model.autocast`` says: {"dtype": "bfloat16", "cache": True}, or None where autocast is off.
# ``cache``: a weight is cast once a context, and the gradients of its uses add up in the lower precision.
State = Mapping[str, Any]


def state(device: str) -> State | None:
    """Autocast as it is now, for this kind of device; None also where there is no such thing (``meta``)."""
    if not torch.amp.is_autocast_available(device) or not torch.is_autocast_enabled(device):
        return None
    return {
        "dtype": str(torch.get_autocast_dtype(device)).removeprefix("torch."),
        "cache": torch.is_autocast_cache_enabled(),
    }


def entered(planned: State | None, device: str) -> AbstractContextManager[Any]:
    """A context in which autocast for this kind of device is as planned, whatever it is outside."""
    if planned is None:
        return torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext()
    return torch.autocast(device, dtype=getattr(torch, planned["dtype"]), cache_enabled=planned["cache"])


def ignored() -> AbstractContextManager[Any]:
    """A context in which operators run in the precision of their arguments: a graph has its casts in it."""
    return torch._C._DisableAutocast()


def is_off_inside(device: str) -> bool:
    """Whether autocast is off here within a context of autocast, as ``torch.autocast(enabled=False)``: the casts of
    further contexts in there are kept until that one ends."""
    if torch.is_autocast_enabled(device):
        return False
    depth = torch.autocast_increment_nesting() - 1
    torch.autocast_decrement_nesting()
    return depth > 0


def why_not_inside(cast_apart: str) -> str:
    """``cast_apart``: as in ``Captured``."""
    return (
        f"torch.autocast(enabled=False) is around the call, in which eager casts {cast_apart} once for several "
        "torch.autocast of the model, and a plan once for each: call the model outside of that context"
    )


def describe(described: State | None) -> str:
    """For a sentence: ``off``, or ``on with bfloat16``."""
    if described is None:
        return "off"
    return f"on with {described['dtype']}" + ("" if described["cache"] else " and without a cache of weights")

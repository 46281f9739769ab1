"""How small the parameters of a model are that implementations may divide by."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import torch

from monet.capture import Captured


def present_scales(model: torch.nn.Module, captured: Captured) -> Callable[[str], float]:
    """The smallest magnitude in a source of the graph; infinity for an input, which each step brings anew."""
    sources = {source.value: source for source in captured.graph.sources}

    @cache
    def smallest(name: str) -> float:
        source = sources[name]
        if source.kind == "parameter":
            tensor: torch.Tensor = model.get_parameter(source.target)
        elif source.kind == "buffer":
            tensor = model.get_buffer(source.target)
        elif source.kind == "constant":
            tensor = captured.constants[source.target]
        else:
            return math.inf
        return float(tensor.detach().abs().min()) if tensor.numel() else math.inf

    return smallest

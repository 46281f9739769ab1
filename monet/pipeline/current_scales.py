"""How small the parameters of a model are that implementations may divide by."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import torch
from torch._subclasses.fake_tensor import FakeTensor

from monet.base.graph import BUFFER, CONSTANT, PARAMETER
from monet.capture import Captured
from monet.ops.kernels.scales import smallest_scale
from monet.ops.offers.implementation import Guard


def present_scales(model: torch.nn.Module, captured: Captured) -> Callable[[Guard], float]:
    """What a guard bounds, as the model is now; infinity for an input, which each step brings, and for fake tensors."""
    sources = {source.value: source for source in captured.graph.sources}

    def tensor(name: str) -> torch.Tensor | None:
        source = sources[name]
        if source.kind == PARAMETER:
            return model.get_parameter(source.target)
        if source.kind == BUFFER:
            return model.get_buffer(source.target)
        return captured.constants.get(source.target) if source.kind == CONSTANT else None

    @cache
    def smallest(guard: Guard) -> float:
        scale = tensor(guard.scale)
        if scale is None or isinstance(scale, FakeTensor):
            return math.inf
        return smallest_scale(scale, None if guard.shift is None else tensor(guard.shift))

    return smallest

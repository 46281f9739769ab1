"""Which parameters and buffers of a model are one memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch


def places(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    for name, module in model.named_modules():
        for members in (module._parameters, module._buffers):
            for key, tensor in members.items():
                if tensor is not None:
                    yield f"{name}.{key}" if name else key, tensor


def ties(model: torch.nn.Module) -> dict[str, str]:
    """By the place of each parameter and buffer: the first one of the same memory."""
    return _firsts(model, memory)


def same_objects(model: torch.nn.Module) -> dict[str, str]:
    """By the place of each parameter and buffer: the first one that is the same object. Two of one memory have a
    gradient each."""
    return _firsts(model, id)


def _firsts(model: torch.nn.Module, same: Callable[[torch.Tensor], int]) -> dict[str, str]:
    first: dict[int, str] = {}
    return {place: first.setdefault(same(tensor), place) for place, tensor in places(model)}


def memory(tensor: torch.Tensor) -> int:
    """Of what has no memory of its own (a lazy parameter, a sparse tensor) the object stands for it."""
    has_none = torch.nn.parameter.is_lazy(tensor) or tensor.layout is not torch.strided
    return id(tensor) if has_none else tensor.untyped_storage()._cdata


def several_objects(model: torch.nn.Module) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Pairs of tensors that are one memory without being one object: ``.data`` can part them."""
    first: dict[int, torch.Tensor] = {}
    pairs = []
    for _, tensor in places(model):
        other = first.setdefault(memory(tensor), tensor)
        if other is not tensor:
            pairs.append((other, tensor))
    return pairs

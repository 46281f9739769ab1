"""Lists and dictionaries that the caller hands to the forward pass: a planned step leaves them as they are."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree

from monet.capture.guards.contents import content, same_content
from monet.errors import CaptureError


class GivenContainers:
    """The containers among the arguments of a call, as they were when this was made."""

    def __init__(self, model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self._model = model
        given: list[tuple[int | str, Any]] = [*enumerate(args), *kwargs.items()]
        self._held = [
            (place, container, content(container)) for place, value in given for container in _containers(value)
        ]

    def require_unchanged(self, outputs: Any) -> None:
        """Raises ``CaptureError`` that names the argument where the forward pass has changed one, but for what it
        returns: that the caller gets."""
        returned = {id(container) for container in _containers(outputs)}
        for place, container, before in self._held:
            if id(container) not in returned and not same_content(content(container), before):
                name = place if isinstance(place, str) else _name(self._model, place)
                raise CaptureError(
                    f"the forward pass changes a {type(container).__name__} that it is given ({name}), which a plan "
                    "would not: have it work on a copy (dict(batch), list(features)), and return what it adds"
                )


def given_anew(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The same tensors and values in containers of their own: what a trial call does to these, the caller keeps."""
    anew: tuple[tuple[Any, ...], dict[str, Any]] = pytree.tree_map(lambda leaf: leaf, (tuple(args), dict(kwargs)))
    return anew


def _name(model: torch.nn.Module, position: int) -> str:
    """What the forward pass calls the argument at this position."""
    kinds = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = inspect.signature(model.forward).parameters.values()
    names = [parameter.name for parameter in parameters if parameter.kind in kinds]
    return names[position] if position < len(names) else f"argument {position}"


def _containers(value: Any) -> Iterator[Any]:
    """It and what it holds, where that are lists and dictionaries."""
    if isinstance(value, list | dict):
        yield value
    if isinstance(value, list | tuple | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _containers(item)

"""How a model differs from what was planned, in sentences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from monet.capture.guards.contents import PLAIN, is_equal, same_content
from monet.capture.guards.module_hooks import hook_name
from monet.capture.guards.watch import OTHER


@dataclass(frozen=True, slots=True)
class Difference:
    """``sentence`` names what is not as it was; ``place`` is the same as long as that is the same place, whatever the
    value there."""

    place: str
    sentence: str


def of_value(whose: str, was: Any, value: Any) -> str:
    if value is OTHER:
        return f"{whose} was removed after planning; it was {short(was)}"
    if was is OTHER:
        return f"{whose} is {short(value)}, and was not there when this was planned"
    if isinstance(was, torch.Tensor) and isinstance(value, torch.Tensor):
        return f"{whose} is another tensor than when this was planned (a buffer may be another: register_buffer)"
    if short(value) == short(was):
        return f"{whose} is another {type(value).__name__} than when this was planned"
    return f"{whose} is {short(value)}, and was {short(was)} when this was planned"


def at(place: str, sentence: str | None) -> Difference | None:
    return None if sentence is None else Difference(place, sentence)


def of_items(whose: str, value: list[Any] | set[Any], was: tuple[Any, ...]) -> Difference | None:
    same = set(was) == value if isinstance(value, set) else same_content(value, list(was))
    return None if same else Difference("items", f"{whose} holds other things than when this was planned")


def of_member(of: str, key: str, was: Any, value: Any) -> str:
    if callable(value) or callable(was):
        return f"{of}.{key} was replaced after planning"
    return of_value(f"{of}.{key}", was, value)


def of_global(whose: str, was: Any, value: Any) -> str | None:
    if was is value or is_equal(was, value):
        return None
    return f"{whose} was replaced after planning" if callable(was) else of_value(whose, was, value)


def of_hook(label: str, kind: str, key: int, was: Any, value: Any) -> str:
    if was is OTHER:
        return f"{label} has a {kind} that was not there when this was planned: {hook_name(value)}"
    if value is OTHER:
        return f"{label} had a {kind} when this was planned that is not there any more: {hook_name(was)}"
    return f"{label} has another {kind} than when this was planned: {hook_name(value)}"


def short(value: Any) -> str:
    """A value in a message."""
    if isinstance(value, (*PLAIN, tuple, list, dict, set)):
        text = repr(value)
        return text if len(text) <= 60 else f"{text[:57]}..."
    return f"a {type(value).__name__}"


def quoted(label: str) -> str:
    return label if label == "the model" else f"submodule {label!r}"

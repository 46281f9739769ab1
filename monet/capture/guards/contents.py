"""What containers and objects of Python hold: noted, compared and put back."""

from __future__ import annotations

import enum
import types
from collections import deque
from collections.abc import Mapping
from typing import Any

import torch

PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size, range, enum.Enum)
"""Values that are what they are: which object it is tells nothing."""


def is_equal(was: Any, value: Any) -> bool:
    """Of plain values, tuples of these and bound methods: whether no code could tell the two objects apart."""
    if type(was) is not type(value):
        return False
    if isinstance(was, tuple):
        return len(was) == len(value) and all(a is b or is_equal(a, b) for a, b in zip(was, value, strict=True))
    if isinstance(was, types.MethodType):
        return was.__func__ is value.__func__ and was.__self__ is value.__self__
    return isinstance(was, PLAIN) and bool(was == value)


MOST_COPIED_BYTES = 1 << 16
"""A larger array is compared by identity alone."""


def copy_of(value: Any) -> Any:
    """What a ``deque`` or an array of NumPy holds; None for anything else."""
    if isinstance(value, deque):
        return list(value)
    if type(value).__module__ == "numpy" and type(value).__name__ == "ndarray" and value.nbytes <= MOST_COPIED_BYTES:
        return None if value.dtype.hasobject else value.copy()
    return None


def is_equal_copy(was: Any, value: Any) -> bool:
    """Whether ``value`` holds what ``copy_of`` said."""
    if isinstance(was, list):
        return same_content(list(value), was)
    return bool(was.shape == value.shape and was.dtype == value.dtype and was.tobytes() == value.tobytes())


def place_in_set(element: Any) -> str:
    """What orders the elements of a set: it has another order in each process, and so has, by its address, what
    ``repr`` writes of a function or method."""
    if isinstance(element, types.MethodType):
        return f"{place_in_set(element.__self__)}.{element.__name__}"
    named = type(element) if isinstance(element, torch.nn.Module) else element
    name = getattr(named, "__qualname__", None)
    return f"{getattr(named, '__module__', '')}.{name}" if isinstance(name, str) else repr(element)


def members_of(value: Any) -> Any:
    """The container that ``value`` is, or the dictionary of an object's attributes; None where it has neither."""
    if isinstance(value, dict | list | set):
        return value
    if isinstance(value, torch.nn.Module | torch.Tensor | type | types.FunctionType | types.ModuleType):
        return None
    return getattr(value, "__dict__", None)


def content(value: Any) -> list[Any] | None:
    """What ``members_of`` holds."""
    members = members_of(value)
    if isinstance(members, Mapping):
        return [part for pair in members.items() for part in pair]
    return None if members is None else list(members)


def same_content(now: list[Any] | None, before: list[Any] | None) -> bool:
    """Whether nothing has changed between two answers of ``content``."""
    if now is None or before is None:
        return now is before
    return len(now) == len(before) and all(a is b or is_equal(a, b) for a, b in zip(now, before, strict=True))


def restore(value: Any, before: list[Any] | None) -> None:
    """Have ``value`` hold again what ``content`` said."""
    members = members_of(value)
    if before is None or same_content(content(value), before):
        return
    members.clear()
    if isinstance(members, list):
        members.extend(before)
    elif isinstance(members, dict):
        for key, value in zip(before[::2], before[1::2], strict=True):
            members[key] = value  # the update of a Counter would count
    else:
        members.update(before)

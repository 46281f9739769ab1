"""What a forward pass has changed in Python, found and put back: each trace begins as the one before."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch.autograd.grad_mode import _unsafe_preserve_version_counter

from monet.capture.effects.filled_containers import difference
from monet.capture.guards.code_reads import CodeReads
from monet.capture.guards.contents import content, is_equal, members_of, restore, same_content
from monet.capture.guards.model_reads import OF_EVERY_MODULE, is_kept_by_torch, label_of
from monet.errors import StatefulForward

logger = logging.getLogger(__name__)

RUN_ONCE = "if that is so in the first call only, run the model once before it is planned"
NOTHING: Any = object()
"""Stands for an attribute that is not there."""
_MEMBERS = ("_parameters", "_buffers")


@dataclass(frozen=True, slots=True)
class Change:
    """``before``, ``after``: what a module held under ``key``, ``NOTHING`` for nothing. ``in_place``: as in ``Write``;
    then ``after`` is the contents. ``of_object``: as in ``Write``."""

    module: torch.nn.Module
    key: str
    before: Any
    after: Any
    in_place: str = ""
    of_object: str = ""

    @property
    def name(self) -> str:
        """Of the attribute that code names."""
        return self.of_object or self.key


@contextmanager
def put_back(
    model: torch.nn.Module, changes: list[Change], done: Mapping[int, tuple[str, Any]] | None = None
) -> Iterator[None]:
    """A context after which the modules hold what they held before it, but for parameters and buffers, whose
    dictionaries are tracing's; ``changes`` says what was put back. ``done``: what is known to have been done to
    containers, by their addresses."""
    before = [(module, dict(vars(module))) for module in model.modules()]
    contents = {id(value): (value, content(value)) for _, held in before for value in held.values()}
    inside = _Inside([(module, key, value) for module, held in before for key, value in held.items()])
    has_ended = False
    try:
        yield
        has_ended = True
    finally:
        for module, held in before:
            now = vars(module)
            for key in (*held, *(key for key in list(now) if key not in held)):
                if key in _MEMBERS:
                    continue
                was, value = held.get(key, NOTHING), now.get(key, NOTHING)
                held_then = contents[id(was)][1] if was is not NOTHING else None
                touched = was is not NOTHING and not same_content(content(was), held_then)
                if was is value and not touched:
                    continue
                if was is not value and not touched and is_equal(was, value):
                    now[key] = was
                    continue
                if has_ended and not is_kept_by_torch(module, key):
                    known = (done or {}).get(id(value))
                    changes += (
                        _changes_inside(module, key, held_then or [], value, known)
                        if was is value
                        else [Change(module, key, was, value)]
                    )
                if was is NOTHING:
                    del now[key]
                else:
                    now[key] = was
                    restore(was, held_then)
        inside.put_back()
    inside.require_unchanged({module: name for name, module in model.named_modules()})


@contextmanager
def same_buffers(module: torch.nn.Module) -> Iterator[None]:
    """A context after which the buffers are those of before, with the values of before. What is kept of them for a
    backward pass that is pending stays what it was."""
    held = [(of, dict(of)) for of in (part._buffers for part in module.modules())]
    values = [(buffer, buffer.clone()) for buffer in module.buffers()]
    versions = tuple(buffer for buffer in module.buffers() if not buffer.is_inference())
    with _unsafe_preserve_version_counter(versions):
        try:
            yield
        finally:
            for of, members in held:
                of.clear()
                of.update(members)
            with torch.no_grad():
                for buffer, before in values:
                    # Not all can be written to: a table in a file, a number that is shown as many.
                    if not same_values(buffer, before):
                        buffer.copy_(before)


def same_values(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Of two tensors; not a number is the same as itself."""
    if torch.equal(one, other):
        return True
    return one.is_floating_point() and torch.allclose(one, other, rtol=0.0, atol=0.0, equal_nan=True)


def _changes_inside(
    module: torch.nn.Module, key: str, before: list[Any], value: Any, done: tuple[str, Any] | None
) -> list[Change]:
    """Of a container or an object that has held ``before``. ``done``: what was done to it, where that is known."""
    if isinstance(value, dict | list | set):
        how, contents = done or difference(before, value)
        return [Change(module, key, None, contents, how)]
    was, now = dict(zip(before[::2], before[1::2], strict=True)), members_of(value)
    return [
        Change(module, key, was.get(name, NOTHING), now.get(name, NOTHING), of_object=name)
        for name in {**was, **now}
        if not is_equal(was.get(name, NOTHING), now.get(name, NOTHING))
        and was.get(name, NOTHING) is not now.get(name, NOTHING)
    ]


class _Inside:
    """Containers in containers and in objects: nothing of a plan changes what these hold."""

    def __init__(self, held: Sequence[tuple[torch.nn.Module, str, Any]]) -> None:
        self._found: list[tuple[torch.nn.Module, str, Any, list[Any] | None]] = []
        self._changed: list[tuple[torch.nn.Module, str]] = []
        for module, key, value in held:
            if key in OF_EVERY_MODULE:
                continue
            for inner_value in content(value) or ():
                if isinstance(inner_value, dict | list | set):
                    self._found.append((module, key, inner_value, content(inner_value)))

    def put_back(self) -> None:
        for module, key, value, before in self._found:
            if not same_content(content(value), before):
                self._changed.append((module, key))
                restore(value, before)

    def require_unchanged(self, names: Mapping[torch.nn.Module, str]) -> None:
        """Raises ``StatefulForward`` where something has changed."""
        for module, key in self._changed:
            place = label_of(names[module], key)
            raise StatefulForward(
                f"the forward pass changes what is held inside of {place}, which a plan would not; {RUN_ONCE}, else "
                "assign it to an attribute of its own"
            )


@cache
def say_not_added(model: str, variable: str) -> None:
    """Of a log, a variable that the code of the model only adds to; ``model``: the name of its class."""
    logger.warning(
        "the forward pass of %s adds to %s, which is no attribute of the model: a planned step adds nothing there",
        model,
        variable,
    )


@contextmanager
def unchanged_around(model: torch.nn.Module, reads: CodeReads) -> Iterator[None]:
    """A context that puts back what the forward pass changes outside of the modules, as far as its code names it. Then
    it raises ``StatefulForward``, but for what code only adds to, as to a log: that is said."""
    own = {id(value) for module in model.modules() for value in vars(module).values()}
    globals_ = [(where, name, where[name]) for where, name in reads.lookups.values() if name in where]
    held = [(name, value, content(value)) for name, value in reads.held if id(value) not in own]
    changed: list[str] = []
    try:
        yield
    finally:
        for where, name, was in globals_:
            if where.get(name, NOTHING) is not was:
                where[name] = was
                changed.append(name)
        for name, value, before in held:
            if isinstance(value, dict | list | set) and not same_content(content(value), before):
                restore(value, before)
                changed.append(name)
    for name in filter(reads.only_adds_to, changed):
        say_not_added(type(model).__name__, name)
    changed = [name for name in changed if not reads.only_adds_to(name)]
    if changed:
        raise StatefulForward(
            f"the forward pass changes {changed[0]}, which is no attribute of the model, and a plan would not; "
            f"{RUN_ONCE}"
        )

"""What objects hold that the forward pass may reach and that no attribute shows: generators of random numbers, queues,
arrays, iterators, and what a class holds. Each trace begins as the one before, and what a plan would not do is refused.
"""

from __future__ import annotations

import random
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from queue import Queue
from typing import Any

import torch

from monet.capture.effects.module_changes import NOTHING, RUN_ONCE, say_not_added
from monet.capture.effects.python_random import DRAWS
from monet.capture.effects.written_tensors import WrittenTensors
from monet.capture.guards.code_reads import CodeReads, is_installed
from monet.capture.guards.contents import copy_of, is_equal, is_equal_copy, members_of
from monet.capture.guards.model_reads import attributes, label_of, model_reads, named_reachable
from monet.errors import CaptureError, StatefulForward


@dataclass(frozen=True, slots=True)
class _Held:
    """``is_changed``: whether it is not as it was; ``restore``: make it so; ``refusal``: the error that says it, None
    where it is only said."""

    is_changed: Callable[[], bool]
    restore: Callable[[], None]
    refusal: Callable[[], CaptureError | None]


class HeldState:
    """All that the forward pass of ``model`` may change so, as it was when this was made."""

    def __init__(self, model: torch.nn.Module, reads: CodeReads) -> None:
        self._held: list[_Held] = []
        of_globals = {id(value) for _, value in reads.held}
        for label, value in named_reachable(model, reads):
            if _is_generator(value):
                self._add_generator(label, value)
            elif isinstance(value, Queue):  # which holds a deque, or a list
                self._add_contents(label, value, value.queue, None)
            elif copy_of(value) is not None:
                is_log = id(value) in of_globals and reads.only_adds_to(label)
                self._add_contents(label, value, value, type(model).__name__ if is_log else None)
        for of in reads.classes:
            if not is_installed(of):
                self._add_class(of)

    def put_back(self) -> list[CaptureError]:
        """Make all as it was; returns what is to be said of what was not."""
        changed = [held for held in self._held if held.is_changed()]
        for held in changed:
            held.restore()
        return [refusal for held in changed if (refusal := held.refusal()) is not None]

    def _add_generator(self, label: str, value: Any) -> None:
        state = _state_of(value)
        comparable = _comparable(state)
        self._held.append(
            _Held(
                lambda: _comparable(_state_of(value)) != comparable,
                lambda: _set_state(value, state),
                lambda: CaptureError(DRAWS.format(whose=f" ({label})")),
            )
        )

    def _add_contents(self, label: str, value: Any, container: Any, log_of: str | None) -> None:
        """``log_of``: the name of the model where its code only adds to it, as to a log."""
        before = list(container) if isinstance(container, list) else copy_of(container)

        def restore() -> None:
            if isinstance(container, deque | list):
                container.clear()
                container.extend(before)
            else:
                container[...] = before

        def refusal() -> CaptureError | None:
            if log_of is not None:
                say_not_added(log_of, label)
                return None
            return StatefulForward(
                f"the forward pass changes what {label} holds, a {type(value).__name__}, which a plan would not; "
                f"{RUN_ONCE}, else use a list, to which it only adds, or a buffer"
            )

        self._held.append(_Held(lambda: not is_equal_copy(before, container), restore, refusal))

    def _add_class(self, of: type) -> None:
        before = _members(of)
        changed: list[str] = []

        def is_changed() -> bool:
            now = _members(of)
            changed[:] = [
                key for key in {**before, **now} if not _is_same(before.get(key, NOTHING), now.get(key, NOTHING))
            ]
            return bool(changed)

        def restore() -> None:
            for key in changed:
                if key in before:
                    setattr(of, key, before[key])
                else:
                    delattr(of, key)

        self._held.append(
            _Held(
                is_changed,
                restore,
                lambda: StatefulForward(
                    f"the forward pass changes {of.__qualname__}.{changed[0]}, an attribute of a class, and a plan "
                    f"would not; {RUN_ONCE}, else assign it to an attribute of the model"
                ),
            )
        )


@contextmanager
def all_put_back(model: torch.nn.Module) -> Iterator[None]:
    """A context after which all that the forward pass of ``model`` may change so is as before, and so are the plain
    tensors that it writes to."""
    reads = model_reads(model)
    held = HeldState(model, reads)
    with WrittenTensors(model, reads).put_back_after():
        try:
            yield
        finally:
            held.put_back()


@contextmanager
def held_as_before(held: HeldState) -> Iterator[None]:
    """A context that raises ``CaptureError`` for what was changed in it, which it puts back."""
    refusals: list[CaptureError] = []
    try:
        yield
    finally:
        refusals = held.put_back()
    if refusals:
        raise refusals[0]


def _members(of: type) -> dict[str, Any]:
    """What Python itself keeps in a class is left out."""
    return {key: value for key, value in vars(of).items() if not (key.startswith("__") or key == "_abc_impl")}


def _is_same(was: Any, value: Any) -> bool:
    return was is value or is_equal(was, value)


def _is_generator(value: Any) -> bool:
    """Of random numbers. One of the system has no state."""
    if isinstance(value, random.Random):
        return not isinstance(value, random.SystemRandom)
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.random.RandomState | numpy.random.Generator)


def _state_of(value: Any) -> Any:
    if isinstance(value, random.Random):
        return value.getstate()
    return value.get_state(legacy=False) if hasattr(value, "get_state") else value.bit_generator.state


def _set_state(value: Any, state: Any) -> None:
    if isinstance(value, random.Random):
        value.setstate(state)
    elif hasattr(value, "set_state"):
        value.set_state(state)
    else:
        value.bit_generator.state = state


def _comparable(state: Any) -> Any:
    """With arrays as bytes: these are no one truth."""
    if isinstance(state, dict):
        return {key: _comparable(value) for key, value in state.items()}
    return state.tobytes() if hasattr(state, "tobytes") else state


class _StandIn:
    """In the place of an iterator: it refuses to give what the next call would not get again."""

    def __init__(self, label: str, iterator: Any) -> None:
        self._label, self._iterator = label, iterator

    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # the forward pass may ask for it
        return type(self._iterator)

    def __iter__(self) -> Any:
        raise self._refusal()

    def __next__(self) -> Any:
        raise self._refusal()

    def _refusal(self) -> StatefulForward:
        return StatefulForward(
            f"the forward pass takes from {self._label}, an iterator ({type(self._iterator).__name__}), so that each "
            f"call gets something else, which a plan would not; {RUN_ONCE}, else take from it outside of the model, "
            "and pass that in"
        )


@contextmanager
def refusing_iterators(model: torch.nn.Module, reads: CodeReads) -> Iterator[None]:
    """A context that raises ``StatefulForward`` where the forward pass takes from an iterator that the model holds:
    before it does, since most iterators cannot be put back."""
    replaced = [
        (container, key, value, made)
        for label, container, key, value in _places(model, reads)
        if (made := _stand_in(label, value)) is not value
    ]
    for container, key, _, made in replaced:
        container[key] = made
    try:
        yield
    finally:
        for container, key, value, _ in replaced:
            container[key] = value


def _places(model: torch.nn.Module, reads: CodeReads) -> Iterator[tuple[str, Any, Any, Any]]:
    """Where iterators may be: what is called how, the dictionary or list, the key in it, the value there."""
    for name, module, key, value in attributes(model, reads):
        yield label_of(name, key), vars(module), key, value
    for label, value in named_reachable(model, reads, of_globals=False):
        container = members_of(value)
        if isinstance(container, dict):
            for key, item in container.items():
                yield label, container, key, item
        elif isinstance(container, list):
            for position, item in enumerate(container):
                yield label, container, position, item


def _stand_in(label: str, value: Any) -> Any:
    """For an iterator, and for a tuple with iterators in it; anything else as it is."""
    if type(value) is tuple and any(map(_is_iterator, value)):
        return tuple(_stand_in(label, item) for item in value)
    return _StandIn(label, value) if _is_iterator(value) else value


def _is_iterator(value: Any) -> bool:
    """One of Python's own, generators included: what others change is seen in their attributes."""
    return type(value).__module__ in ("builtins", "itertools") and hasattr(type(value), "__next__")

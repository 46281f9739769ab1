"""What an operator record offers: implementations, as calls on values of the graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from monet.graph import Graph, Operator, Value, operator_inputs, references
from monet.ops.memory_format import without_gaps
from monet.rewrite import written_sources


@dataclass(frozen=True, slots=True, order=True)
class Guard:
    """A source that an equation divides by: every ``abs(scale) / max(1, abs(shift))`` must be at least ``least``.

    A result scale * x + shift loses as many digits of x as the shift is larger than the scale. ``shift``: None for 0.
    """

    scale: str
    shift: str | None
    least: float


@dataclass(frozen=True, slots=True)
class Implementation:
    """One way to compute an operator: ``call(*args, **kwargs)``, with ``Ref`` arguments for values.

    ``outputs``: names of the results in order, None for one that nobody reads. ``single``: the call
    returns a tensor and not a tuple. ``overwrites``: the value whose memory becomes the first
    output's. ``exact``: results equal the eager kernel's bit by bit; otherwise ``tolerance`` is the
    relative error that float32 may show, and why is said where the record is defined.
    ``guard``: what must hold of a parameter for the equation; checked before each step.
    """

    name: str
    call: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...] = ()
    outputs: tuple[str | None, ...] = ()
    single: bool = True
    overwrites: str | None = None
    exact: bool = True
    tolerance: float = 0.0
    guard: Guard | None = None
    holds: tuple[str, ...] = ()

    def inputs(self) -> tuple[str, ...]:
        """Values it reads, without repetition, in order."""
        names = [*references(self.args), *references([value for _, value in self.kwargs])]
        return tuple(dict.fromkeys(names))

    @property
    def call_name(self) -> str:
        """Stable across processes: part of the key under which it is measured."""
        name = getattr(self.call, "__qualname__", None)
        return f"{self.call.__module__}.{name}" if name and not hasattr(self.call, "_schema") else str(self.call)


@dataclass(frozen=True, slots=True)
class SavedIntermediate:
    """A value made on demand after its operator ran, and how; ``kind`` as in ``planner.problem.Intermediate``."""

    value: Value
    implementation: Implementation
    kind: str


class Context:
    """What records may ask about the graph around an operator."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.producer: dict[str, Operator] = {
            name: op for op in (*graph.forward, *graph.backward) for name in op.outputs if name is not None
        }
        self.sources = {graph.storage(source.value) for source in graph.sources}
        self.written = {graph.storage(name) for name in written_sources(graph)}
        self.tangents = {name for name in graph.tangents if name is not None}
        self.escaping = {graph.storage(n) for n in (*graph.outputs, *graph.gradients.values()) if n is not None}
        self.forward_readers: dict[str, list[Operator]] = {}
        """Storage → the forward operators that read it and are no views."""
        for op in graph.forward:
            for storage in {} if op.view else dict.fromkeys(map(graph.storage, operator_inputs(op))):
                self.forward_readers.setdefault(storage, []).append(op)
        self._last_forward = _last_readers(graph, graph.forward)
        self._last_backward = _last_readers(graph, graph.backward)
        self._forward = {op.name for op in graph.forward}

    def reads_written(self, op: Operator) -> bool:
        """Whether an input of the operator is a source that the forward pass changes: not to be read again later."""
        return any(self.graph.storage(name) in self.written for name in operator_inputs(op))

    def value(self, name: str) -> Value:
        return self.graph.values[name]

    def maker(self, name: str) -> Operator | None:
        """The operator that allocates the storage of a value; None for a source or a tangent."""
        return self.producer.get(self.graph.storage(name))

    def whole(self, name: str) -> str | None:
        """The value that made this value's storage, if the two are the same elements in the same order."""
        base = self.graph.storage(name)
        return base if self.same(name, base) else None

    def same(self, one: str, other: str) -> bool:
        """Whether two values are the same elements of the same storage in the same order."""
        return replace(self.value(one), name="") == replace(self.value(other), name="")

    def may_overwrite(self, name: str, by: Operator, result: str) -> bool:
        """Whether ``by`` may put ``result`` into the memory of ``name``: it is the last reader of that
        storage in its pass, the storage is the step's own, and both are the same whole block."""
        if self.whole(name) is None:
            return False
        storage = self.graph.storage(name)
        if storage in self.sources or storage in self.tangents or {storage, self.graph.storage(result)} & self.escaping:
            return False
        old, new = self.value(name), self.value(result)
        if (old.shape, old.stride, old.dtype) != (new.shape, new.stride, new.dtype):
            return False
        if old.storage_bytes != new.storage_bytes or not without_gaps(new):
            return False
        made_forward = self.producer[storage].name in self._forward
        if made_forward != (by.name in self._forward):
            return False  # a forward value read by the backward pass may have other readers: the program decides
        return (self._last_forward if made_forward else self._last_backward)[storage] == by.name


def _last_readers(graph: Graph, operators: tuple[Operator, ...]) -> dict[str, str]:
    """Storage → the last operator of one pass that reads it, through views too."""
    return {graph.storage(name): op.name for op in operators if not op.view for name in operator_inputs(op)}


def plain(op: Operator) -> Implementation:
    """The operator's own aten kernel. One that adds a gradient to another is in place already."""
    overwrites = op.args[0].name if op.target is torch.ops.aten.add_.Tensor and op.outputs[0] is not None else None
    return Implementation("aten", op.target, op.args, op.kwargs, op.outputs, op.single, overwrites)

"""What operator records may ask about the graph around an operator."""

from __future__ import annotations

from dataclasses import replace

import torch

from monet.base.graph import Graph, Operator, Value, operator_inputs, written_sources
from monet.ops.offers.implementation import Implementation
from monet.ops.strides import is_dense, without_gaps


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

    def read_in_backward(self, name: str) -> bool:
        """Whether an operator of the backward pass reads the storage of a value."""
        return self.graph.storage(name) in self._last_backward

    def may_overwrite(self, name: str, by: Operator, result: str) -> bool:
        """Whether ``by`` may put ``result`` into the memory of ``name``: it is the last reader of that
        storage in its pass, the storage is the step's own, and both are the whole of it in the same order. Another
        shape may have made it: a product is a matrix that is seen as (batch, length, width)."""
        storage = self.graph.storage(name)
        if storage in self.sources or storage in self.tangents or {storage, self.graph.storage(result)} & self.escaping:
            return False
        old, new = self.value(name), self.value(result)
        if replace(old, name="", offset=0, storage="") != replace(new, name="", offset=0, storage=""):
            return False
        if not is_dense(new.shape, new.stride) or not without_gaps(new):
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

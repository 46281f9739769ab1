"""Gradients of a parameter that is used more than once add up in the gradient's own memory.

The traced graph makes a new tensor for each partial sum. Autograd adds into the first one where nobody else has it; the
results are the same bit by bit. A tied embedding, or a cell that is called once a token, then takes one temporary
instead of three.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import torch

from monet.base.graph import Graph, Operator, Ref, operator_inputs

aten = torch.ops.aten


def sum_gradients_in_place(graph: Graph) -> Graph:
    """``graph`` with ``add_`` for the additions that end in a gradient, from the first term that may be changed."""
    sums = _Sums(graph)
    for gradient in graph.gradients.values():
        sums.follow(gradient)
    if not sums.target:
        return graph

    def change(op: Operator) -> Operator:
        kept = sums.target.get(op.name)
        if kept is None:
            return op
        other = op.args[1] if op.args[0] == Ref(kept) else op.args[0]
        return replace(op, target=aten.add_.Tensor, args=(Ref(kept), other))

    backward = tuple(change(op) for op in graph.backward)
    values = dict(graph.values)
    sharing: dict[str, list[str]] = {}  # storage → the values that are in it
    for name, value in values.items():
        sharing.setdefault(value.storage, []).append(name)
    # In order: the memory of a sum is that of its first term, which may be a sum itself.
    for op in backward:
        kept = sums.target.get(op.name)
        if kept is not None:
            (result,) = (name for name in op.outputs if name is not None)
            storage = values[kept].storage
            moved = sharing.pop(result, [])
            sharing[storage] += moved
            for name in moved:
                values[name] = replace(values[name], storage=storage, storage_bytes=values[kept].storage_bytes)
    return replace(graph, backward=backward, values=values)


class _Sums:
    """``target``: addition → the term whose memory its result takes."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.target: dict[str, str] = {}
        self.maker = {name: op for op in graph.backward for name in op.outputs if name is not None}
        self.made = {graph.storage(name) for op in graph.backward if not op.view for name in op.outputs if name}
        self.sources = {graph.storage(source.value) for source in graph.sources}
        leaving = [*graph.outputs, *graph.gradients.values()]
        self.leaving = Counter(graph.storage(name) for name in leaving if name is not None)
        self.readers: dict[str, set[str]] = {}
        for op in (*graph.forward, *graph.backward):
            if not op.view:
                for name in operator_inputs(op):
                    self.readers.setdefault(graph.storage(name), set()).add(op.name)

    def follow(self, name: str) -> None:
        """From a gradient back along its sums."""
        while (op := self._addition(name)) is not None:
            terms = [arg.name for arg in op.args[:2]]
            # The term that was made first, as autograd does; where that may not be changed, the other.
            usable = [term for term in terms if self._may_change(term, op, name)]
            # The other term may be a view of the first (a weight plus its transpose), read while written.
            if self.graph.storage(terms[0]) == self.graph.storage(terms[1]) or not usable:
                return
            sums = [term for term in usable if self._addition(term) is not None]
            kept = (sums or usable)[0]
            self.target[op.name] = kept
            name = kept

    def _addition(self, name: str) -> Operator | None:
        op = self.maker.get(self.graph.storage(name))
        if op is None or op.target is not aten.add.Tensor or op.kwargs or op.outputs != (name,):
            return None
        return op if all(isinstance(arg, Ref) for arg in op.args[:2]) and len(op.args) == 2 else None

    def _may_change(self, term: str, op: Operator, result: str) -> bool:
        """Whether the term is a block of the backward pass that nothing else reads and that looks like the sum."""
        graph, storage = self.graph, self.graph.storage(term)
        old, new = graph.values[term], graph.values[result]
        alone = self.readers.get(storage) == {op.name} and not self.leaving[storage]
        shape = (old.shape, old.stride, old.offset, old.dtype, old.storage_bytes)
        same = shape == (new.shape, new.stride, new.offset, new.dtype, new.storage_bytes)
        dense = new.storage_bytes == new.numel * new.dtype.itemsize
        return alone and same and dense and storage in self.made and storage not in self.sources

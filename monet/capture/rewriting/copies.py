"""Copies in a functional graph, in which nothing changes the original or the copy: those it has no need of are left
out, and of a part of a tensor the part is copied alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Set
from dataclasses import replace
from itertools import accumulate
from operator import mul
from typing import Any

import torch

from monet.base.graph import Graph, Operator, Ref, Value, operator_inputs, overwritten, with_names

aten = torch.ops.aten

_WRITES_A_PART = (aten.slice_scatter.default, aten.select_scatter.default, aten.diagonal_scatter.default)
"""They copy their first argument, with all of its storage; and take the elements of the second wherever they lie."""


_END = 2**63 - 1
"""Of a slice that goes to a dimension's end."""


def without_copies(graph: Graph) -> Graph:
    """The graph whose operators read the original in place of a copy of the same geometry, or of any where the copy is
    what is written to a part of a tensor.

    Autograd keeps such a copy of an in-place hardtanh's input, and tracing makes one of each assignment
    (``y[:, 3] = x``), with room for all of ``y``.
    """
    return _Copies(graph).dropped()


def with_small_parts(graph: Graph) -> Graph:
    """The graph in which a part of a part is written (``y[:2, :8] = x``) to a copy of the outer part, and not of all of
    the tensor, where that is then written to the tensor."""
    values, written = dict(graph.values), _written_only(graph, _WRITES_A_PART)
    kept = {*graph.outputs, *graph.gradients.values(), *graph.mutations.values()}

    def change(op: Operator) -> tuple[Operator, ...]:
        whole, new = op.args[0] if op.args else None, op.outputs[0] if op.outputs else None
        if op.target not in _WRITES_A_PART or not isinstance(whole, Ref) or new is None:
            return (op,)
        part = values[whole.name]
        if new not in written or new in kept or not _is_part(part):
            return (op,)
        copy = f"{op.name}_part"
        stride = (*accumulate(part.shape[:0:-1], mul, initial=1),)[::-1]  # contiguous, of sizes that may vary, too
        for name in (copy, new):
            values[name] = replace(
                part, name=name, stride=stride, offset=0, storage=name, storage_bytes=part.numel * part.dtype.itemsize
            )
        memory = (("memory_format", torch.contiguous_format),)
        clone = replace(op, name=copy, target=aten.clone.default, args=(whole,), kwargs=memory, outputs=(copy,))
        return clone, replace(op, args=(Ref(copy), *op.args[1:]))

    forward, backward = (tuple(new for op in each for new in change(op)) for each in (graph.forward, graph.backward))
    return replace(graph, forward=forward, backward=backward, values=values)


def _written_only(graph: Graph, writers: Collection[Callable[..., Any]]) -> Set[str]:
    """Values that are nowhere read but as the second argument of one of ``writers``."""
    operators = (*graph.forward, *graph.backward)
    elsewhere = {name for op in operators for name in _of(op, but=1 if op.target in writers else None)}
    return graph.values.keys() - elsewhere


class _Copies:
    def __init__(self, graph: Graph) -> None:
        self._graph, self._values = graph, dict(graph.values)
        kept = (*graph.outputs, *graph.gradients.values(), *graph.mutations.values())
        self._kept = {graph.storage(name) for name in kept if name is not None}
        self._members: dict[str, list[str]] = {}
        """Storage → its values."""
        for name, value in graph.values.items():
            self._members.setdefault(value.storage, []).append(name)
        operators = (*graph.forward, *graph.backward)
        # Such views count from the beginning of the copy's own memory.
        self._absolute = {
            graph.storage(name) for op in operators if "as_strided" in str(op.target) for name in operator_inputs(op)
        }
        # A copy of a part that is then written to: of the part itself, all of the tensor would be copied.
        self._copied_whole = {
            graph.storage(op.args[0].name)
            for op in operators
            if op.target in _WRITES_A_PART and isinstance(op.args[0], Ref)
        }
        self._written_only = _written_only(graph, (*_WRITES_A_PART, aten.copy.default))
        self._renamed: dict[str, str] = {}
        self._unread: list[str] = []

    def dropped(self) -> Graph:
        forward = self._each(self._graph.forward)
        backward = self._each(self._graph.backward)
        graph = replace(self._graph, forward=forward, backward=backward, values=self._values)
        return _without_unread(graph, self._unread, self._kept)

    def _each(self, operators: Iterable[Operator]) -> tuple[Operator, ...]:
        renamed = (with_names(op, self._renamed) for op in operators)
        return tuple(op for op in renamed if not self._drop(op))

    def _drop(self, op: Operator) -> bool:
        """Whether the operator is a copy that can go; what read it then reads the original."""
        position = _copied(op)
        new = op.outputs[0] if op.outputs else None
        if position is None or new is None or not isinstance(op.args[position], Ref):
            return False
        old, graph = op.args[position].name, self._graph
        copy, original = self._values[new], self._values[old]
        if copy.storage != new or new in self._kept or original.storage in graph.mutations:
            return False  # of one that changes, a copy from before
        if new in self._copied_whole and _is_part(original):
            return False
        alone = self._members[new] == [new]
        if op.target is aten.clone.default and alone:  # of a conjugate, too: who reads that makes the same clone
            same = (copy.shape, copy.stride) == (original.shape, original.stride)
        else:
            same = _layout(copy) == _layout(original)
        written = new in self._written_only and alone and _content(copy) == _content(original)
        if not written and not (same and new not in self._absolute):
            return False
        for name in self._members.pop(new):
            value = self._values[name]
            self._values[name] = replace(
                value, storage=original.storage, storage_bytes=original.storage_bytes,
                offset=value.offset + original.offset - copy.offset,
            )  # fmt: skip
            self._members[original.storage].append(name)
        self._renamed[new] = old
        self._unread += _of(op, but=position)
        return True


def _copied(op: Operator) -> int | None:
    """The argument whose elements are the result's, all and in their order. Where sizes vary, ``y[:, 0] = x`` is traced
    as an assignment to a slice of all rows, too."""
    if op.target is aten.clone.default:
        return 0
    if op.target is aten.copy.default:
        return 1
    if op.target is not aten.slice_scatter.default or op.kwargs:
        return None
    named = dict(zip(("begin", "end", "step"), op.args[3:], strict=False))
    takes_all = not named.get("begin") and named.get("end") in (None, _END) and named.get("step", 1) == 1
    return 1 if takes_all else None


def _of(op: Operator, *, but: int | None) -> tuple[str, ...]:
    """What the operator reads, ``but`` for one argument."""
    others = tuple(None if position == but else value for position, value in enumerate(op.args))
    return tuple(operator_inputs(replace(op, args=others)))


def _is_part(value: Value) -> bool:
    """Whether the storage has room for more than the value, whose elements are as they lie there."""
    lies_there = not (value.conjugate or value.negative)
    return lies_there and bool(value.numel) and value.storage_bytes != value.numel * value.dtype.itemsize


def _content(value: Value) -> tuple[Any, ...]:
    return value.shape, value.dtype, value.device, value.conjugate, value.negative


def _layout(value: Value) -> tuple[Any, ...]:
    return (*_content(value), value.stride)


def _without_unread(graph: Graph, names: Iterable[str], kept: Set[str]) -> Graph:
    """The graph without what made these values where nobody reads them any more."""
    operators = (*graph.forward, *graph.backward)
    makers = {name: op for op in operators for name in op.outputs if name is not None}
    readers = Counter(name for op in operators for name in operator_inputs(op))
    waiting, gone = list(names), set[str]()
    while waiting:
        maker = makers.get(waiting.pop())
        # An operator of somebody else's may do more than make its results.
        if maker is None or maker.name in gone or maker.random or overwritten(maker) or not _is_aten(maker):
            continue
        if any(readers[name] or graph.storage(name) in kept for name in maker.outputs if name is not None):
            continue
        gone.add(maker.name)
        readers.subtract(operator_inputs(maker))
        waiting += operator_inputs(maker)
    forward, backward = (tuple(op for op in each if op.name not in gone) for each in (graph.forward, graph.backward))
    return replace(graph, forward=forward, backward=backward)


def _is_aten(op: Operator) -> bool:
    return str(op.target).startswith("aten.")

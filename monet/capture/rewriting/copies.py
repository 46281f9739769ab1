"""Copies in a functional graph, in which nothing changes the original or the copy: those it has no need of are left
out, and of a part of a tensor the part is copied alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Set
from dataclasses import replace
from itertools import accumulate
from operator import mul

import torch

from monet.base.graph import Graph, Operator, Ref, Value, operator_inputs, overwritten, with_names
from monet.base.sizes import Size, expression_of

aten = torch.ops.aten

_WRITES_A_PART = (aten.slice_scatter.default, aten.select_scatter.default, aten.diagonal_scatter.default)
"""They copy their first argument, with all of its storage; and take the elements of the second wherever they lie."""
_WRITES = (*_WRITES_A_PART, aten.copy.default)
_END = 2**63 - 1
"""Of a slice that goes to a dimension's end."""


def without_copies(graph: Graph) -> Graph:
    """The graph whose operators read the original in place of a copy of the same geometry; in place of one of any
    geometry and dtype, where the copy is only ever written to a part of a tensor.

    Autograd keeps such a copy of an in-place hardtanh's input, and tracing makes one of each assignment
    (``y[:, 3] = x``), with room for all of ``y``. Copies of parts of a tensor stay, and clones that are written to.
    """
    return _Copies(graph).dropped()


def with_small_parts(graph: Graph) -> Graph:
    """The graph in which a part of a part is written (``y[:2, :8] = x``) to a copy of the outer part, and not of all of
    the tensor, where that is then written to the tensor; and in which what is written to a tensor is no part of it
    (``y[:, 3] = y[:, 5]``), so that it can be written in place."""
    values, written = dict(graph.values), _written_only(graph, _WRITES_A_PART)
    kept = {*graph.outputs, *graph.gradients.values(), *graph.mutations.values()}

    def copied(op: Operator, name: str, position: int) -> tuple[Operator, Operator]:
        """A contiguous copy of an argument, and the operator that takes it."""
        part = values[op.args[position].name]
        values[name] = _contiguous(part, name)
        memory = (("memory_format", torch.contiguous_format),)
        clone = replace(
            op, name=name, target=aten.clone.default, args=(Ref(part.name),), kwargs=memory, outputs=(name,)
        )
        return clone, replace(op, args=(*op.args[:position], Ref(name), *op.args[position + 1 :]))

    def change(op: Operator) -> tuple[Operator, ...]:
        new = op.outputs[0] if op.outputs else None
        if op.target not in _WRITES_A_PART or new is None or not all(isinstance(each, Ref) for each in op.args[:2]):
            return (op,)
        made = []
        part, source = (values[each.name] for each in op.args[:2])
        if new in written and new not in kept and not _is_all(part) and _is_plain(part):
            clone, op = copied(op, f"{op.name}_part", 0)
            values[new] = _contiguous(part, new)
            made.append(clone)
        elif source.storage == part.storage and _is_plain(source):
            clone, op = copied(op, f"{op.name}_source", 1)
            made.append(clone)
        return (*made, op)

    forward, backward = (tuple(new for op in each for new in change(op)) for each in (graph.forward, graph.backward))
    return replace(graph, forward=forward, backward=backward, values=values)


def _contiguous(value: Value, name: str) -> Value:
    """Another of its shape, in memory of its own. Its sizes may vary."""
    return value.apart(name, (*accumulate(value.shape[:0:-1], mul, initial=1),)[::-1])


def _written_only(graph: Graph, writers: Collection[Callable[..., object]]) -> Set[str]:
    """Values that are nowhere read but as the second argument of one of ``writers``."""
    operators = (*graph.forward, *graph.backward)
    elsewhere = {name for op in operators for name in _of(op, but=1 if op.target in writers else None)}
    return graph.values.keys() - elsewhere


class _Copies:
    def __init__(self, graph: Graph) -> None:
        self._graph, self._values = graph, dict(graph.values)
        kept = (*graph.outputs, *graph.gradients.values(), *graph.mutations.values())
        self._kept = {graph.storage(name) for name in kept if name is not None}
        self._changed = {graph.storage(name) for name in graph.mutations}
        self._members: dict[str, list[str]] = {}
        """Storage → its values."""
        for name, value in graph.values.items():
            self._members.setdefault(value.storage, []).append(name)
        writes = [
            op for op in (*graph.forward, *graph.backward) if op.target in _WRITES and isinstance(op.args[0], Ref)
        ]
        self._written = {op.args[0].name for op in writes}
        self._written_only = _written_only(graph, _WRITES)
        self._renamed: dict[str, str] = {}
        self._unread: list[str] = []

    def dropped(self) -> Graph:
        forward = self._each(self._graph.forward)
        backward = self._each(self._graph.backward)
        graph = replace(self._graph, forward=forward, backward=backward, values=self._values)
        return _without_unread(graph, self._unread, self._kept)

    def _each(self, operators: Iterable[Operator]) -> tuple[Operator, ...]:
        renamed = (with_names(op, self._renamed) for op in operators)
        return tuple(instead for op in renamed if (instead := self._instead(op)) is not None)

    def _instead(self, op: Operator) -> Operator | None:
        """The operator, the view that does for a copy, or None where what read the copy reads the original."""
        position = _copied(op)
        new = op.outputs[0] if op.outputs else None
        if position is None or new is None or not isinstance(op.args[position], Ref):
            return op
        old = op.args[position].name
        copy, original = self._values[new], self._values[old]
        if copy.storage != new or new in self._kept or original.storage in self._changed:
            return op  # of one that changes, a copy from before
        if new in self._written and op.target is aten.clone.default:
            return op  # whose elements are then written in place, as eager writes them
        alone = self._members[new] == [new]
        if new in self._written_only and alone and copy.device == original.device and _is_plain(original):
            self._unread += _of(op, but=position)
            if [*map(_exact, copy.shape)] != [*map(_exact, original.shape)]:
                self._values[new] = _expanded(original, copy)
                return replace(op, target=aten.expand.default, args=(Ref(old), list(copy.shape)), kwargs=(), view=True)
            self._renamed[new] = old
            return None
        # Of a conjugate, too: who reads that makes the same clone.
        plain = _is_plain(original) or (op.target is aten.clone.default and alone)
        if not plain or not _is_all(original) or _layout(copy) != _layout(original):
            return op
        for name in self._members.pop(new):
            self._values[name] = replace(self._values[name], storage=original.storage)
            self._members[original.storage].append(name)
        self._renamed[new] = old
        self._unread += _of(op, but=position)
        return None


def _expanded(value: Value, like: Value) -> Value:
    """A view of ``value`` in the shape of ``like``, and under its name."""
    missing = len(like.shape) - len(value.shape)
    own = zip(value.shape, value.stride, like.shape[missing:], strict=True)
    stride = (*(0,) * missing, *(0 if size == 1 != new else step for size, step, new in own))
    return replace(value, name=like.name, shape=like.shape, stride=stride)


def _copied(op: Operator) -> int | None:
    """The argument whose elements are the result's, all and in their order. Where sizes vary, ``y[:, 0] = x`` is traced
    as an assignment to a slice of all rows, too."""
    if op.target is aten.clone.default:
        return 0
    if op.target is aten.copy.default:
        return 1
    if op.target is not aten.slice_scatter.default or op.kwargs:
        return None
    given = dict(zip(("begin", "end", "step"), op.args[3:], strict=False))
    begin, end = (0 if given.get("begin") is None else given["begin"], given.get("end"))
    takes_all = _same(begin, 0) and _same(_END if end is None else end, _END) and _same(given.get("step", 1), 1)
    return 1 if takes_all else None


def _same(one: int, other: int) -> bool:
    """Whether two sizes are the same at every shape."""
    return bool(_exact(one) == _exact(other))


def _exact(size: int) -> object:
    """What is equal to another's where the two are the same at every shape."""
    return expression_of(size).expand() if isinstance(size, Size) else size


def _is_all(value: Value) -> bool:
    """Whether the storage has room for nothing else."""
    return _same(value.storage_bytes, value.numel * value.dtype.itemsize)


def _is_plain(value: Value) -> bool:
    """Whether its elements are as they lie in memory."""
    return not (value.conjugate or value.negative)


def _layout(value: Value) -> tuple[object, ...]:
    return tuple(map(_exact, (*value.shape, *value.stride))), value.dtype, value.device


def _of(op: Operator, *, but: int | None) -> tuple[str, ...]:
    """What the operator reads, ``but`` for one argument."""
    others = tuple(None if position == but else value for position, value in enumerate(op.args))
    return tuple(operator_inputs(replace(op, args=others)))


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

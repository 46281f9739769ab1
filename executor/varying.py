"""Calls of several shapes by one plan: what its sizes are in this call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from monet.base.graph import INPUT, Graph, Value
from monet.base.sizes import Ranges, Size, Varied, numbering, sizes_in, value_at
from monet.errors import ExecutionError, PlanMismatch
from monet.native.allocator import Arena
from monet.ops.catalogue import Catalogue
from monet.plans.format import READ
from monet.plans.plan import Plan

MOST_SHAPES = 4096
"""Whose numbers are kept; after these they are calculated anew, in milliseconds."""

Shape = tuple[int, ...]
"""A size of each dimension, in the order of the ranges."""


class CallShape:
    """The shape of a call, and the sources' geometry there."""

    def __init__(self, graph: Graph, ranges: Ranges) -> None:
        self.ranges = ranges
        self._graph = graph
        self._axes: list[tuple[int, int, int]] = []  # position among the sources, axis, number of the dimension
        for position, source in enumerate(graph.sources):
            axes = ranges.inputs.get(int(source.target), ()) if source.kind == INPUT else ()
            self._axes += [(position, axis, ranges.names.index(name)) for axis, name in enumerate(axes) if name]
        names = [source.value for source in graph.sources] + [name for name in graph.tangents if name]
        self._at_largest = {name: graph.values[name] for name in names}
        expressions = dict.fromkeys(size.expression for value in self._at_largest.values() for size in _sizes(value))
        self._numbers = numbering(ranges.names, expressions)
        self._values: dict[Shape, Mapping[str, Value]] = {}

    def of(self, sources: Sequence[Any]) -> Shape:
        """Raises ``PlanMismatch`` where inputs disagree, or where the plan does not hold for their shape."""
        found: dict[int, int] = {}
        for position, axis, number in self._axes:
            tensor, source = sources[position], self._graph.sources[position]
            rank = len(self._graph.values[source.value].shape)
            if not isinstance(tensor, torch.Tensor) or tensor.dim() != rank:
                raise PlanMismatch(f"input {source.target} must be a tensor of {rank} axes, as in the plan")
            size = tensor.shape[axis]
            if found.setdefault(number, size) != size:
                raise PlanMismatch(
                    f"input {source.target} has size {size} in axis {axis}, and {self.ranges.names[number]} is "
                    f"{found[number]} in another input"
                )
        shape = tuple(found[number] for number in range(len(self.ranges.dimensions)))
        if shape not in self._values:
            self._check(shape)
        return shape

    def _check(self, shape: Shape) -> None:
        for dimension, size in zip(self.ranges.dimensions, shape, strict=True):
            if not dimension.least <= size <= dimension.most:
                raise PlanMismatch(
                    f"{dimension.name} is {size}, and the plan is for {dimension.least} to {dimension.most}; plan "
                    "again for a larger range"
                )
        broken = self.ranges.broken(dict(zip(self.ranges.names, shape, strict=True)))
        if broken is not None:
            said = ", ".join(f"{name} = {size}" for name, size in zip(self.ranges.names, shape, strict=True))
            raise PlanMismatch(
                f"the plan does not hold for {said}: the model's operators are others there (the plan assumes "
                f"{broken}); plan this shape for itself"
            )

    def values(self, shape: Shape) -> Mapping[str, Value]:
        """The sources and tangents of the graph at this shape."""
        if shape not in self._values:
            if len(self._values) >= MOST_SHAPES:
                self._values.clear()
            number = self._numbers(*shape)
            self._values[shape] = {
                name: value_at(value, lambda size: number[size.expression]) for name, value in self._at_largest.items()
            }
        return self._values[shape]


def _sizes(value: Value) -> Iterator[Varied]:
    return sizes_in([value.shape, value.stride, value.offset, value.storage_bytes])


@dataclass(frozen=True, slots=True)
class _Numbers:
    """Of one shape: the sizes in the code, and those of the requests."""

    sizes: list[int]
    requests: list[int]


@dataclass
class Varying:
    """The sizes of a plan's code and requests, by expression. ``sizes``: their numbers in this call, which the code
    reads by their position. ``upper``: which requests the plan knows the most of alone. ``places``: by step and result,
    the offset of results of steps that have such requests. ``arena``: what serves them."""

    ranges: Ranges
    calls: CallShape
    arena: Arena | None = None
    places: dict[tuple[int, str], int] = field(default_factory=dict)
    sizes: list[int] = field(default_factory=list)
    upper: list[bool] = field(default_factory=list)
    shape: Shape = ()
    _expressions: dict[Any, int] = field(default_factory=dict)  # with their positions
    _requests: list[int | Size] = field(default_factory=list)
    _known: dict[Shape, _Numbers] = field(default_factory=dict)
    _evaluate: Callable[..., dict[Any, int]] | None = None

    @classmethod
    def of(cls, plan: Plan, catalogue: Catalogue, ranges: Ranges) -> Varying:
        """Of a plan whose requests for values are as large as these; of others it knows what they are at its largest
        shape."""
        varying = cls(ranges, CallShape(catalogue.graph, ranges))
        offset = {buffer.id: buffer.offset for buffer in plan.buffers}
        for number, step in enumerate(plan.steps):
            made = {buffer: catalogue.values[name] for name, buffer in step.writes.items() if name in catalogue.values}
            before = len(varying.upper)
            own = list(zip(step.request_bytes, step.requests, strict=True))
            for size, buffer in own[: len(own) - bool(step.workers)]:
                value = None if buffer is None else made.get(buffer)
                if step.kind == READ:  # as much as was written, at every shape
                    varying._requests.append(size)
                    varying.upper.append(False)
                    continue
                known = value is not None and value.storage_bytes == size
                varying._requests.append(value.storage_bytes if known and value is not None else size)
                varying.upper.append(not known)
            if any(varying.upper[before:]):
                asked = set(step.requests)
                varying.places.update({(number, v.name): offset[b] for b, v in made.items() if b in asked})
        return varying

    def settled(self, step: int, name: str, result: torch.Tensor) -> torch.Tensor:
        """The result in its own place: a kernel that asks in another order than at the largest shape may have been
        given that of another request, which is somebody else's after the step."""
        arena, at = self.arena, result.data_ptr()
        if arena is None or not arena.contains(at) or arena.offset(at) == self.places[step, name]:
            return result
        return result.clone()

    def position(self, size: Varied) -> int:
        """Where the code finds it in ``sizes``."""
        if size.expression not in self._expressions:
            self._expressions[size.expression] = len(self._expressions)
            self._evaluate, self.shape = None, ()
            self._known.clear()
        return self._expressions[size.expression]

    def enter(self, shape: Shape) -> list[int] | None:
        """Makes ``sizes`` those of this shape; those of the requests, None where nothing has changed."""
        if shape == self.shape:
            return None
        if shape not in self._known:
            if len(self._known) >= MOST_SHAPES:
                self._known.clear()
            self._known[shape] = self._numbers(shape)
        known = self._known[shape]
        self.sizes[:], self.shape = known.sizes, shape
        return known.requests

    def _numbers(self, shape: Shape) -> _Numbers:
        if self._evaluate is None:
            asked = (size.expression for size in self._requests if isinstance(size, Size))
            self._evaluate = numbering(self.ranges.names, dict.fromkeys([*self._expressions, *asked]))
        number = self._evaluate(*shape)
        sizes = [number[expression] for expression in self._expressions]
        requests = [number[s.expression] if isinstance(s, Size) else s for s in self._requests]
        if any(asked > planned for asked, planned in zip(requests, self._requests, strict=True)):
            raise ExecutionError("internal: a buffer is larger at this shape than at the largest one")
        return _Numbers(sizes, requests)

"""The captured training step: operators over values, values over storages, as frozen values.

A *value* is what one operator output is: shape, strides, dtype, and the storage it lives in. A view
shares the storage of what it views. A *storage* is what occupies memory; its id is the name of the
value that made it. Planning is about storages; execution is about values.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass, replace
from typing import Any

import torch

aten = torch.ops.aten

# Kinds of a ``Source``. They are part of a graph's fingerprint.
PARAMETER = "parameter"
BUFFER = "buffer"
CONSTANT = "constant"  # a tensor that is neither a parameter nor a buffer of the module
INPUT = "input"
STATE = "state"  # of a parameter in the optimiser
TOTAL = "gradient"  # a parameter's ``.grad``, which the backward pass adds to


@dataclass(frozen=True, slots=True)
class Ref:
    """An argument that is a value of the graph."""

    name: str


@dataclass(frozen=True, slots=True)
class Value:
    """One tensor of the graph. ``storage`` names the value whose operator allocates the memory;
    ``storage_bytes`` is the size of that memory. ``offset`` counts elements. ``conjugate``, ``negative``: a view whose
    elements are to be conjugated or negated by whoever reads them, often in memory of its own."""

    name: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    device: torch.device
    storage: str
    storage_bytes: int
    conjugate: bool = False
    negative: bool = False

    @property
    def numel(self) -> int:
        n = 1
        for size in self.shape:
            n *= size
        return n

    def apart(self, name: str, stride: tuple[int, ...]) -> Value:
        """A value of its shape and dtype, without gaps, in memory of its own, whose elements are as they lie in it."""
        size = self.numel * self.dtype.itemsize
        return Value(name, self.shape, stride, 0, self.dtype, self.device, name, size)


@dataclass(frozen=True, slots=True)
class Operator:
    """One call of an aten operator.

    ``outputs``: one name per result, None for a result that nobody reads and for results that are
    not tensors. ``single``: the call returns a tensor and not a tuple. ``view``: the outputs share
    the storage of an input, and the call moves no data.
    ``random``: it draws from the device's generator.
    """

    name: str
    target: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    outputs: tuple[str | None, ...]
    single: bool
    view: bool
    random: bool
    where: str

    @property
    def signature(self) -> str:
        return str(self.target)

    @classmethod
    def writer(cls, name: str, target: Callable[..., Any], *args: Any) -> Operator:
        """A call that is not in the model: it changes some of its arguments and has no result."""
        return cls(name, target, args, kwargs=(), outputs=(None,), single=True, view=False, random=False, where="")


@dataclass(frozen=True, slots=True)
class Source:
    """A value that exists before the step.

    ``kind``: ``PARAMETER``, ``BUFFER``, ``CONSTANT``, ``INPUT``, ``STATE`` or ``TOTAL``.
    ``target``: the dotted name of a parameter, buffer or constant; the position of an input in the flattened call; of a
    state, the parameter's name and the state's key (``head.weight.exp_avg``); of a total, the parameter's name.
    ``requires_grad``: of the parameter or input; False for the other kinds.
    Tied weights are sources of one storage.
    """

    value: str
    kind: str
    target: str
    requires_grad: bool


@dataclass(frozen=True, slots=True)
class Graph:
    """A training step in execution order.

    ``outputs``: values that the module returns, in flattened order (None: not a tensor).
    ``tangents``: the gradient of each output, by position, or None where it takes no gradient.
    ``gradients``: source value → the value that holds its gradient.
    ``mutations``: source value → the value it is set to when the forward pass ends.
    """

    values: Mapping[str, Value]
    sources: tuple[Source, ...]
    forward: tuple[Operator, ...]
    backward: tuple[Operator, ...]
    outputs: tuple[str | None, ...]
    tangents: tuple[str | None, ...]
    gradients: Mapping[str, str]
    mutations: Mapping[str, str]

    @property
    def device(self) -> torch.device:
        """Where the step runs: the device that is not the CPU, where there is one, which may hold a GPU's scalars and
        the states of its generator."""
        devices = (value.device for value in self.values.values())
        return next((device for device in devices if device.type != "cpu"), torch.device("cpu"))

    def storage(self, value: str) -> str:
        return self.values[value].storage

    def fingerprint(self) -> str:
        """A hash of everything a plan depends on: operators, arguments, shapes, strides, dtypes."""
        digest = hashlib.sha256()
        for source in self.sources:
            digest.update(f"{source}|{self.values[source.value]}\n".encode())
        for phase in (self.forward, self.backward):
            for operator in phase:
                text = f"{operator.signature}|{operator.args}|{operator.kwargs}|{operator.outputs}|{operator.view}\n"
                digest.update(text.encode())
                for name in operator.outputs:
                    if name is not None:
                        digest.update(f"{self.values[name]}\n".encode())
        digest.update(f"{self.outputs}|{self.tangents}|{self.gradients}|{self.mutations}".encode())
        return digest.hexdigest()


def references(argument: Any) -> Iterator[str]:
    """Names of the values inside an argument tree, in order."""
    if isinstance(argument, Ref):
        yield argument.name
    elif isinstance(argument, tuple | list):
        for item in argument:
            yield from references(item)
    elif isinstance(argument, dict):
        for item in argument.values():
            yield from references(item)


def operator_inputs(operator: Operator) -> tuple[str, ...]:
    """Values that the operator is called with, without repetition, in order."""
    names = [*references(operator.args), *references([value for _, value in operator.kwargs])]
    return tuple(dict.fromkeys(names))


def tangents_behind(graph: Graph) -> dict[str, frozenset[str]]:
    """Value of the backward pass → the tangents that it is computed from. A value that comes from none is left out."""
    tangents = [name for name in graph.tangents if name is not None]
    behind = {name: frozenset({name}) for name in tangents}
    nothing: frozenset[str] = frozenset()
    for op in graph.backward:
        of_inputs = nothing.union(*(behind.get(name, nothing) for name in operator_inputs(op)))
        if of_inputs:
            behind.update({name: of_inputs for name in op.outputs if name is not None})
    return behind


def is_reached(graph: Graph, behind: Set[str], reached: Set[str]) -> bool:
    """Whether autograd makes a gradient that is computed from the tangents ``behind``. ``reached``: the tangents of the
    outputs that the loss depends on.

    A gradient that comes from no tangent is zero by derivation, as that of ``round`` is. The trace does not tell which
    output such a gradient belongs to; it counts as made where the loss depends on every output.
    """
    return bool(behind & reached) if behind else reached >= {name for name in graph.tangents if name is not None}


def substitute(argument: Any, names: Mapping[str, str]) -> Any:
    """The argument tree with values renamed."""
    if isinstance(argument, Ref):
        return Ref(names.get(argument.name, argument.name))
    if isinstance(argument, list | tuple):
        return type(argument)(substitute(item, names) for item in argument)
    return argument


def with_names(op: Operator, names: Mapping[str, str]) -> Operator:
    """The operator with its inputs renamed."""
    kwargs = tuple((key, substitute(value, names)) for key, value in op.kwargs)
    return replace(op, args=substitute(op.args, names), kwargs=kwargs)


def overwritten(op: Operator) -> tuple[str, ...]:
    """Values whose contents the operator of a canonical graph changes, in order."""
    if op.target is aten.native_batch_norm.default:  # its schema does not say so
        return tuple(ref.name for ref in op.args[3:5] if isinstance(ref, Ref)) if op.args[5] else ()
    schema: Any = getattr(op.target, "_schema", None)
    if schema is None:  # a program of several calls, which changes nothing
        return ()
    names: list[str] = []
    for argument, value in zip(schema.arguments, op.args, strict=False):
        if argument.alias_info is not None and argument.alias_info.is_write:
            names.extend(references(value))
    return tuple(names)


def written_sources(graph: Graph) -> set[str]:
    """Sources that some operator of the forward pass writes to."""
    sources = {source.value for source in graph.sources}
    return {name for op in graph.forward for name in overwritten(op)} & sources

"""A capture as text, and back: what ``torch.export`` takes seconds for is read in a fraction of one.

The text is JSON. Reading it makes plain values, operators that torch has by name, and functions of monet itself; it
runs no code of its own, as a pickle would.
"""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

import torch

from monet.base.graph import Graph, Operator, Ref, Source, Value
from monet.capture.captured import Captured
from monet.capture.effects.attribute_writes import Write
from monet.capture.structure_text import UnwrittenStructure, structure_data, structure_of

_OWN = "monet."


class NotStorable(Exception):
    """A capture that has no form as text: an argument of a kind that is not plain data, an operator without a name, an
    output of a class that cannot be found again."""


def captured_text(captured: Captured) -> str:
    """The capture as text. Raises ``NotStorable``.

    Its constants are not among it: only their names, since the model has them (``captured_of``).
    """
    try:
        document = {
            "graph": graph_data(captured.graph),
            "constants": list(captured.constants),
            "in_spec": structure_data(captured.in_spec),
            "out_spec": structure_data(captured.out_spec),
            "literals": [[position, _plain(value)] for position, value in captured.literals.items()],
            "output_literals": [[position, _plain(value)] for position, value in captured.output_literals.items()],
            "cast_apart": captured.cast_apart,
            "writes": [_written(write) for write in captured.writes],
        }
    except UnwrittenStructure as error:
        raise NotStorable(str(error)) from error
    return json.dumps(document, separators=(",", ":"), allow_nan=False)


def captured_of(text: str, constants: Mapping[str, torch.Tensor]) -> Captured:
    """The capture that ``text`` tells of, with these constants, by target.

    Raises ``NotStorable`` where the text is not one, or names what is not there any more: an operator, an output's
    class, a constant.
    """
    try:
        document = json.loads(text)
        return Captured(
            graph=graph_of(document["graph"]),
            constants={name: constants[name] for name in document["constants"]},
            in_spec=structure_of(document["in_spec"]),
            out_spec=structure_of(document["out_spec"]),
            literals={position: _value_of(value) for position, value in document["literals"]},
            output_literals={position: _value_of(value) for position, value in document["output_literals"]},
            cast_apart=document["cast_apart"],
            writes=tuple(_write_of(*row) for row in document["writes"]),
        )
    except (ValueError, TypeError, KeyError, AttributeError, ImportError, UnwrittenStructure) as error:
        raise NotStorable(f"{type(error).__name__}: {error}") from error


def _written(write: Write) -> list[Any]:
    leaves = [[kind, _plain(value)] for kind, value in write.leaves]
    return [
        write.module,
        write.key,
        structure_data(write.structure),
        leaves,
        write.in_place,
        write.of_object,
        write.expected,
    ]


def _write_of(module: str, key: str, structure: Any, leaves: list[list[Any]], *more: Any) -> Write:
    found = tuple((kind, _value_of(value)) for kind, value in leaves)
    return Write(module, key, structure_of(structure), found, *more)


def graph_data(graph: Graph) -> dict[str, Any]:
    """The graph as what JSON has. Raises ``NotStorable``."""
    return {
        "values": [[_plain(getattr(value, field.name)) for field in fields(Value)] for value in graph.values.values()],
        "sources": [[getattr(source, field.name) for field in fields(Source)] for source in graph.sources],
        "forward": [_operator(operator) for operator in graph.forward],
        "backward": [_operator(operator) for operator in graph.backward],
        "outputs": list(graph.outputs),
        "tangents": list(graph.tangents),
        "gradients": dict(graph.gradients),
        "mutations": dict(graph.mutations),
    }


def graph_of(document: Mapping[str, Any]) -> Graph:
    """The graph of ``graph_data``. Raises ``NotStorable``, ``KeyError``, ``TypeError``, ``ValueError``,
    ``AttributeError`` and ``ImportError`` for other data."""
    values = [Value(*(_value_of(part) for part in row)) for row in document["values"]]
    return Graph(
        values={value.name: value for value in values},
        sources=tuple(Source(*row) for row in document["sources"]),
        forward=tuple(_operator_of(row) for row in document["forward"]),
        backward=tuple(_operator_of(row) for row in document["backward"]),
        outputs=tuple(document["outputs"]),
        tangents=tuple(document["tangents"]),
        gradients=document["gradients"],
        mutations=document["mutations"],
    )


def _operator(operator: Operator) -> list[Any]:
    return [_plain(getattr(operator, f.name)) if f.name != "target" else _name(operator.target) for f in _OPERATOR]


def _operator_of(row: list[Any]) -> Operator:
    parts = {field.name: part for field, part in zip(_OPERATOR, row, strict=True)}
    target = _target(parts.pop("target"))
    return Operator(target=target, **{name: _value_of(part) for name, part in parts.items()})


_OPERATOR = fields(Operator)


def _name(target: Callable[..., Any]) -> list[str]:
    """An operator's name and overload, or a function's module and name."""
    if isinstance(target, torch._ops.OpOverload):
        return [target._schema.name, target._overloadname]
    module, name = getattr(target, "__module__", ""), getattr(target, "__qualname__", "")
    if module.startswith(_OWN) and name.isidentifier():
        return [f"{module}:{name}"]
    raise NotStorable(f"{target} is neither an operator of torch nor a function of monet")


def _target(name: list[str]) -> Callable[..., Any]:
    found: Callable[..., Any]
    if len(name) == 2:
        space, _, operator = name[0].partition("::")
        if space == "monet":
            importlib.import_module("monet.capture.islands.operators")  # defines them
        found = getattr(getattr(getattr(torch.ops, space), operator), name[1])
        return found
    module, _, function = name[0].partition(":")
    if not module.startswith(_OWN):
        raise NotStorable(f"{module} is none of monet's modules")
    found = getattr(importlib.import_module(module), function)
    return found


_OF_TORCH: tuple[tuple[str, type], ...] = (
    ("dtype", torch.dtype), ("layout", torch.layout), ("memory_format", torch.memory_format),
)  # fmt: skip


def _plain(value: Any) -> Any:
    """A value as JSON; what JSON has no form for is an object with one member that names its kind."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": repr(value)}
    if isinstance(value, Ref):
        return {"ref": value.name}
    if type(value) is tuple:
        return {"tuple": [_plain(item) for item in value]}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, complex):
        return {"complex": [_plain(value.real), _plain(value.imag)]}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    for kind, of in _OF_TORCH:
        if isinstance(value, of):
            return {kind: str(value).removeprefix("torch.")}
    raise NotStorable(f"{value!r:.80} is not plain data")


def _value_of(plain: Any) -> Any:
    """What ``_plain`` was given."""
    if isinstance(plain, list):
        return [_value_of(item) for item in plain]
    if not isinstance(plain, dict):
        return plain
    ((kind, content),) = plain.items()
    if kind == "ref":
        return Ref(content)
    if kind == "tuple":
        return tuple(_value_of(item) for item in content)
    if kind == "float":
        return float(content)
    if kind == "complex":
        return complex(*(_value_of(part) for part in content))
    if kind == "device":
        return torch.device(content)
    if kind in dict(_OF_TORCH):
        return getattr(torch, content)
    raise NotStorable(f"{kind!r} is no kind of value")

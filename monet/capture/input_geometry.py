"""A step's inputs as plain data for a plan, and inputs of that geometry made from a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy
import torch
import torch.utils._pytree as pytree

from monet.base.graph import Graph
from monet.base.sizes import Dimension, Ranges, Size, larger_at, texts_of
from monet.errors import PlanMismatch
from monet.plans.plan import Plan
from monet.plans.sizes import is_expression

Call = tuple[tuple[Any, ...], dict[str, Any]]
"""Arguments and keyword arguments of a model."""


def call_of(sample: Any, kwargs: Mapping[str, Any] | None = None) -> Call:
    """The call that a sample is: a tensor, a tuple of arguments, or a mapping of keyword arguments, such as a
    tokenizer's result; ``kwargs`` besides."""
    if isinstance(sample, Mapping):
        return (), {**sample, **(kwargs or {})}
    return (tuple(sample) if isinstance(sample, tuple | list) else (sample,)), dict(kwargs or {})


def describe_inputs(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Inputs as plain data, one entry a leaf: its path in the call, and a tensor's geometry or another leaf's value.

    Only nests of tuples, lists and dicts of tensors, numbers, strings, booleans and None can be
    written into a plan.
    """
    leaves = []
    for path, leaf in pytree.tree_flatten_with_path((tuple(args), dict(kwargs)))[0]:
        where = [_key(part) for part in path]
        if isinstance(leaf, torch.Tensor):
            leaves.append(
                {
                    "path": where,
                    "shape": list(leaf.shape),
                    "stride": list(leaf.stride()),
                    "dtype": str(leaf.dtype).removeprefix("torch."),
                    "device": str(leaf.device),
                    "requires_grad": leaf.requires_grad,
                }
            )
        else:
            leaves.append({"path": where, "value": leaf})
    return leaves


_KINDS: dict[type, str] = {tuple: "tuple", list: "list", dict: "dict"}


def describe_nests(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The tuples, lists and dicts among arguments and inside of them, as plain data: path, kind, and positions or keys.
    What is in others has no entry."""
    found: list[dict[str, Any]] = []

    def walk(value: Any, path: list[Any]) -> None:
        kind = _KINDS.get(type(value))
        if kind is None:
            return
        keys = list(value) if kind == "dict" else list(range(len(value)))
        found.append({"path": path, "kind": kind, "keys": keys})
        for key in keys:
            walk(value[key], [*path, key])

    for position, value in enumerate(args):
        walk(value, [0, position])
    for name, value in kwargs.items():
        walk(value, [1, name])
    return found


def _key(part: Any) -> Any:
    """The position or the name that one part of a pytree's path is."""
    return getattr(part, "idx", getattr(part, "key", None))


def described_ranges(ranges: Ranges) -> dict[str, Any]:
    """As plain data: ``sizes``, the least and the largest size of each dimension, and ``axes``: by position in the
    flattened call, the dimension of each axis or None."""
    return {
        "sizes": {d.name: [d.least, d.most] for d in ranges.dimensions},
        "axes": {str(position): list(axes) for position, axes in ranges.inputs.items()},
    }


def described_sizes(graph: Graph, ranges: Ranges) -> dict[str, Any]:
    """As ``described_ranges``, and ``bytes``: of values in memory of their own, what they take at any shape, as
    ``monet.plans.sizes`` reads it. What it cannot read, or what is clear by the capture's guards alone, is left out."""
    bare = Ranges(ranges.dimensions, ranges.inputs)
    varying = {
        name: value.storage_bytes
        for name, value in graph.values.items()
        if graph.storage(name) == name and isinstance(value.storage_bytes, Size)
    }
    by_expression = {size.expression: size for size in varying.values()}
    texts = {
        expression: text
        for expression, text in zip(by_expression, texts_of(bare.names, by_expression), strict=True)
        if is_expression(text, len(bare.names)) and larger_at(bare, [by_expression[expression]]) is None
    }
    found = {name: texts[size.expression] for name, size in varying.items() if size.expression in texts}
    return {**described_ranges(ranges), "bytes": found}


def ranges_of_plan(plan: Plan) -> Ranges | None:
    """Which sizes vary; None for a plan of one shape. Raises ``PlanMismatch`` where they are of other inputs."""
    described = plan.model.get("dynamic")
    if described is None:
        return None
    sizes = {name: (least, most) for name, (least, most) in described["sizes"].items()}
    inputs = {str(n): spec["shape"] for n, spec in enumerate(plan.model["inputs"]) if "shape" in spec}
    for position, axes in described["axes"].items():
        if len(axes) != len(inputs.get(position, ())) or {*axes} - {None, *sizes}:
            raise PlanMismatch(f"the plan's sizes that vary are not of its inputs: {position!r:.40} has {axes!r:.80}")
    for name in sorted(sizes.keys() - {name for axes in described["axes"].values() for name in axes}):
        raise PlanMismatch(f"the plan's sizes that vary are not of its inputs: none has {name!r:.40}")
    dimensions = tuple(Dimension(name, least, most) for name, (least, most) in sizes.items())
    return Ranges(dimensions, {int(position): tuple(axes) for position, axes in described["axes"].items()})


def example_inputs(plan: Plan, whole: int = 0) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Inputs of the plan's geometry, positional and by keyword: zeros on the CPU, whose memory is not touched until
    somebody looks, as a part of a model may. ``whole``: what whole numbers are instead.

    Raises ``PlanMismatch`` where inputs are in other containers than tuples, lists and dicts, whose structure no plan
    has, and where there can be no such tensors.
    """
    leaves = {_hashable(spec["path"]): spec for spec in plan.model["inputs"]}
    nests = {_hashable(nest["path"]): nest for nest in plan.model.get("nests", ())}

    def made(path: tuple[Any, ...]) -> Any:
        if path in leaves:
            return _leaf(leaves[path], whole)
        if path not in nests:
            raise PlanMismatch(
                "the plan's model takes inputs in containers of its own, which a plan's file does not have: make the "
                "module with captured=monet.capture.capture(model, args, kwargs), or give monet.apply a budget instead"
            )
        nest = nests[path]
        inner = {key: made((*path, key)) for key in map(_hashable, nest["keys"])}
        return inner if nest["kind"] == "dict" else _SEQUENCES[nest["kind"]](inner.values())

    paths = dict.fromkeys(path[:2] for path in (*leaves, *nests))
    args = tuple(made(path) for path in sorted(path for path in paths if path[0] == 0))
    return args, {path[1]: made(path) for path in paths if path[0] == 1}


_SEQUENCES: dict[str, type[tuple[Any, ...]] | type[list[Any]]] = {"tuple": tuple, "list": list}


def _hashable(key: Any) -> Any:
    """As a plan's file has it, where a tuple that is a key is a list."""
    return tuple(map(_hashable, key)) if isinstance(key, list | tuple) else key


def _leaf(spec: Mapping[str, Any], whole: int) -> Any:
    if "shape" not in spec:
        return spec["value"]
    leaf = _tensor(spec)
    if whole and leaf.dtype in (torch.int32, torch.int64):
        leaf.fill_(whole)
    return leaf


def _tensor(spec: Mapping[str, Any]) -> torch.Tensor:
    dtype = getattr(torch, spec["dtype"], None)
    if not isinstance(dtype, torch.dtype):
        raise PlanMismatch(f"the plan has an input of dtype {spec['dtype']!r:.80}, which PyTorch does not know")
    grad = spec["requires_grad"]
    shape, stride = spec["shape"], spec["stride"]
    try:
        device = torch.device(spec["device"])
        if device.type != "cpu" or 0 in shape:
            return torch.empty_strided(shape, stride, dtype=dtype, device=device, requires_grad=grad)
        count = 1 + sum((n - 1) * step for n, step in zip(shape, stride, strict=True))
        memory = torch.from_numpy(numpy.zeros(count * dtype.itemsize, numpy.uint8))
        return memory.view(dtype).as_strided(shape, stride).requires_grad_(grad)
    # Of sizes, devices and gradients that go together in no tensor, or in none that fits.
    except (RuntimeError, TypeError, ValueError, MemoryError, OverflowError) as error:
        raise PlanMismatch(f"the plan has an input that cannot be made here: {error}") from error

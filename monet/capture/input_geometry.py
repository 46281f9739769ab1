"""A step's inputs as plain data for a plan, and inputs of that geometry made from a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy
import torch
import torch.utils._pytree as pytree

from monet.base.sizes import Dimension, Ranges
from monet.errors import PlanMismatch
from monet.plans.plan import Plan

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
    dimensions = tuple(Dimension(name, least, most) for name, (least, most) in sizes.items())
    return Ranges(dimensions, {int(position): tuple(axes) for position, axes in described["axes"].items()})


def example_inputs(plan: Plan, whole: int = 0) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Inputs of the plan's geometry, positional and by keyword: zeros on the CPU, whose memory is not touched until
    somebody looks, as a part of a model may. ``whole``: what whole numbers are instead.

    Raises ``PlanMismatch`` where the inputs are nested, since a plan does not have their structure, and where there can
    be no such tensors.
    """
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for spec in plan.model["inputs"]:
        path = spec["path"]
        if len(path) != 2:
            raise PlanMismatch("the plan's model takes nested inputs; pass the sample inputs when making the module")
        leaf: Any = spec.get("value")
        if "shape" in spec:
            leaf = _tensor(spec)
            if whole and leaf.dtype in (torch.int32, torch.int64):
                leaf.fill_(whole)
        if path[0] == 0:
            args.append(leaf)
        else:
            kwargs[path[1]] = leaf
    return tuple(args), kwargs


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

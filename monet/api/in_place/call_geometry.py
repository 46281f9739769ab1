"""What a plan is made for, as one hashable value: two calls that are equal in it can be run by one plan."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
import torch.utils._pytree as pytree

from monet.api.in_place.model_walk import ModelWalk
from monet.base.sizes import Ranges
from monet.capture import autocast
from monet.capture.input_geometry import example_inputs, ranges_of_plan
from monet.capture.varying_inputs import for_call
from monet.plans.plan import Plan

_LITERALS = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device)


@dataclass(frozen=True, slots=True)
class CallGeometry:
    """A training call. Strides are left out: an input with others than planned is copied.

    ``threads``: of torch, 0 on a GPU. ``autocast``: its state. ``modes``: of every submodule, training or not.
    ``parameters``: which of them require a gradient. ``forward``: the identity of a ``forward`` that was put into the
    object, as accelerate does for mixed precision. ``structure``: of the arguments. ``shapes``: of each tensor among
    them the shape, dtype, device and whether it requires a gradient; of anything else its type and value.
    """

    threads: int
    autocast: tuple[Any, ...] | None
    modes: tuple[bool, ...]
    parameters: tuple[bool, ...]
    forward: int
    structure: pytree.TreeSpec
    shapes: tuple[Any, ...]

    @property
    def inputs(self) -> InputGeometry:
        """What of it is the arguments'."""
        return InputGeometry(self.structure, self.shapes)

    @property
    def but_for_gradients(self) -> CallGeometry:
        """The same, whichever inputs require a gradient."""
        return replace(self, shapes=tuple(shape[:3] if len(shape) == 4 else shape for shape in self.shapes))

    @property
    def is_trained(self) -> bool:
        """Whether anything requires a gradient."""
        return any(self.parameters) or any(shape[-1] is True for shape in self.shapes if len(shape) == 4)


@dataclass(frozen=True, slots=True)
class InputGeometry:
    """``structure`` and ``shapes`` of a call, as ``CallGeometry`` has them."""

    structure: pytree.TreeSpec
    shapes: tuple[Any, ...]

    @property
    def kind(self) -> InputGeometry:
        """What of it is no size."""
        shapes = tuple((len(shape[0]), *shape[1:]) if len(shape) == 4 else shape for shape in self.shapes)
        return InputGeometry(self.structure, shapes)

    def over(self, ranges: Ranges) -> InputGeometry:
        """The geometry of all calls whose sizes are in ``ranges`` and else as here: it has the ``Dimension`` in place
        of a size that varies."""
        of, shapes = {dimension.name: dimension for dimension in ranges.dimensions}, list(self.shapes)
        for position, axes in ranges.inputs.items():
            sizes = zip(shapes[position][0], axes, strict=True)
            shape = tuple(size if name is None else of[name] for size, name in sizes)
            shapes[position] = (shape, *shapes[position][1:])
        return replace(self, shapes=tuple(shapes))


def in_order(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments as a geometry has them, whatever order they are given in."""
    return {name: kwargs[name] for name in sorted(kwargs)}


def input_geometry(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> InputGeometry | None:
    """The geometry of a call's arguments; None where one is an object that no plan can be made for."""
    leaves, structure = pytree.tree_flatten((args, in_order(kwargs)))
    shapes: list[tuple[Any, ...]] = []
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            shapes.append((tuple(leaf.shape), leaf.dtype, leaf.device, leaf.requires_grad))
        elif isinstance(leaf, _LITERALS):
            shapes.append((type(leaf), leaf))
        else:
            return None
    return InputGeometry(structure, tuple(shapes))


def quick_key(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Hashable | None:
    """Another for calls of another ``input_geometry``, in a fraction of its time; None where arguments are nested."""
    key: list[Any] = [len(args), *kwargs]
    for value in (*args, *kwargs.values()):
        if isinstance(value, torch.Tensor):
            key += (value.shape, value.dtype, value.device, value.requires_grad)
        elif isinstance(value, _LITERALS):
            key += (type(value), value)
        else:
            return None
    return tuple(key)


def call_geometry(model: torch.nn.Module, inputs: InputGeometry, walk: ModelWalk) -> CallGeometry:
    """The geometry of a call with such arguments. ``walk``: of ``model``."""
    modes, parameters = walk.modes_and_parameters()
    device = _device_type(model, inputs)
    cast = autocast.state(device)
    return CallGeometry(
        threads=torch.get_num_threads() if device == "cpu" else 0,
        autocast=_plain(cast),
        modes=modes,
        parameters=parameters,
        forward=id(model.__dict__.get("forward")),
        structure=inputs.structure,
        shapes=inputs.shapes,
    )


def _device_type(model: torch.nn.Module, inputs: InputGeometry) -> str:
    own = (tensor.device for tensor in itertools.chain(model.parameters(), model.buffers()))
    given = (shape[2] for shape in inputs.shapes if len(shape) == 4)
    return next((device.type for device in itertools.chain(own, given)), "cpu")


def planned_geometry(model: torch.nn.Module, plan: Plan) -> CallGeometry:
    """The geometry of the calls that ``plan`` was made for. Raises ``PlanMismatch`` as ``example_inputs``."""
    args, kwargs = example_inputs(plan)
    inputs, ranges = input_geometry(args, kwargs), ranges_of_plan(plan)
    assert inputs is not None
    if ranges is not None:
        inputs = inputs.over(for_call(model, args, kwargs, in_order(kwargs), ranges))
    geometry = call_geometry(model, inputs, ModelWalk(model))
    return replace(
        geometry,
        threads=plan.environment["threads"] if geometry.threads else 0,
        autocast=_plain(plan.model.get("autocast")),
        modes=tuple(plan.model["training"]),
    )


def _plain(state: autocast.State | None) -> tuple[Any, ...] | None:
    return None if state is None else tuple(sorted(state.items()))


def difference(planned: CallGeometry, call: CallGeometry) -> str | None:
    """The name of the first field that differs."""
    return next((f.name for f in fields(CallGeometry) if getattr(planned, f.name) != getattr(call, f.name)), None)

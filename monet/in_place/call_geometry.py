"""What a plan is made for, as one hashable value: two calls that are equal in it can be run by one plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
import torch.utils._pytree as pytree

from monet.capture import autocast
from monet.capture.captured import device_type
from monet.capture.input_geometry import example_inputs
from monet.plans.plan import Plan

_LITERALS = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device)


@dataclass(frozen=True, slots=True)
class CallGeometry:
    """A training call. Strides are left out: an input with others than planned is copied.

    ``threads``: of torch. ``autocast``: its state. ``modes``: of every submodule, training or not. ``parameters``:
    which of them require a gradient. ``forward``: the identity of a ``forward`` that was put into the object, as
    accelerate does for mixed precision. ``structure``: of the arguments. ``shapes``: of each tensor among them the
    shape, dtype, device and whether it requires a gradient; of anything else its type and value.
    """

    threads: int
    autocast: tuple[Any, ...] | None
    modes: tuple[bool, ...]
    parameters: tuple[bool, ...]
    forward: int
    structure: pytree.TreeSpec
    shapes: tuple[Any, ...]

    @property
    def is_trained(self) -> bool:
        """Whether anything requires a gradient."""
        return any(self.parameters) or any(shape[-1] is True for shape in self.shapes if len(shape) == 4)


def call_geometry(model: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> CallGeometry | None:
    """The geometry of a call; None where an argument is an object that no plan can be made for."""
    leaves, structure = pytree.tree_flatten((args, {name: kwargs[name] for name in sorted(kwargs)}))
    shapes: list[tuple[Any, ...]] = []
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            shapes.append((tuple(leaf.shape), leaf.dtype, leaf.device, leaf.requires_grad))
        elif isinstance(leaf, _LITERALS):
            shapes.append((type(leaf), leaf))
        else:
            return None
    cast = autocast.state(device_type(model, leaves))
    modes, parameters = _modes_and_parameters(model)
    return CallGeometry(
        threads=torch.get_num_threads(),
        autocast=_plain(cast),
        modes=modes,
        parameters=parameters,
        forward=id(model.__dict__.get("forward")),
        structure=structure,
        shapes=tuple(shapes),
    )


def _modes_and_parameters(model: torch.nn.Module) -> tuple[tuple[bool, ...], tuple[bool, ...]]:
    """The mode of every module, in the order of ``model.modules()``, and which parameters require a gradient. At each
    call, so in one walk that makes no names."""
    modes: list[bool] = []
    parameters: list[bool] = []
    seen: set[int] = set()
    ahead: list[torch.nn.Module | None] = [model]
    while ahead:
        module = ahead.pop()
        if module is None or id(module) in seen:
            continue
        seen.add(id(module))
        modes.append(module.training)
        parameters += [p.requires_grad for p in module._parameters.values() if p is not None]
        ahead += reversed(module._modules.values())
    return tuple(modes), tuple(parameters)


def planned_geometry(model: torch.nn.Module, plan: Plan) -> CallGeometry:
    """The geometry of the calls that ``plan`` was made for. Raises ``PlanMismatch`` where it has nested inputs."""
    geometry = call_geometry(model, *example_inputs(plan))
    assert geometry is not None
    return replace(
        geometry,
        threads=plan.environment["threads"],
        autocast=_plain(plan.model.get("autocast")),
        modes=tuple(plan.model["training"]),
    )


def _plain(state: autocast.State | None) -> tuple[Any, ...] | None:
    return None if state is None else tuple(sorted(state.items()))


def difference(planned: CallGeometry, call: CallGeometry) -> str | None:
    """The name of the first field that differs."""
    return next((f.name for f in fields(CallGeometry) if getattr(planned, f.name) != getattr(call, f.name)), None)

"""The whole training step as one graph: forward, loss, backward and weight update (MODeL, appendix B)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.utils._pytree as pytree

from monet.base.sizes import Ranges
from monet.capture import Captured, capture
from monet.capture.guards.module_hooks import HeldByCode
from monet.capture.guards.tensor_ties import several_objects
from monet.capture.input_geometry import call_of
from monet.capture.varying_inputs import argument_names, largest, ranges_of_leaves
from monet.errors import CaptureError, ConfigError
from monet.ops.catalogue import catalogue
from monet.ops.weight_update import LiveUpdate, algorithm
from monet.step.training_step.updates import parameter_slots, with_unit_tangent, with_updates

LossFunction = Callable[[Any, Any], torch.Tensor]
TARGETS = "targets"
"""What ``dynamic`` calls them, unless that is an argument of the model."""


class LossCall(torch.nn.Module):
    """A loss function as a part of the step: one that cannot be traced runs as it is inside of the plan."""

    def __init__(self, function: LossFunction) -> None:
        super().__init__()
        self.function = function

    def forward(self, outputs: Any, targets: Any) -> torch.Tensor:
        return self.function(outputs, targets)


class LossModule(torch.nn.Module):
    """``(inputs, targets) → (loss, outputs)``: a model and its loss as one module. Outputs carry no gradient.

    ``inputs``: a tensor, or a tuple or list of positional arguments, or a mapping of keyword arguments.
    """

    def __init__(self, model: torch.nn.Module, loss_fn: LossFunction, *, return_outputs: bool) -> None:
        super().__init__()
        self.model = model
        self.loss_fn = loss_fn if isinstance(loss_fn, torch.nn.Module) else LossCall(loss_fn)
        self.return_outputs = return_outputs
        self.training = model.training

    def forward(self, inputs: Any, targets: Any) -> Any:
        args, kwargs = call_of(inputs)
        outputs = self.model(*args, **kwargs)
        loss = self.loss_fn(outputs, targets)
        if not isinstance(loss, torch.Tensor):
            raise ConfigError(f"loss_fn returned an object of type {type(loss).__name__}, not a tensor")
        # Its memory may be that of all its terms; a copy has its own.
        loss = loss.clone()
        if not self.return_outputs:
            return (loss,)
        return loss, pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, outputs)


@dataclass(frozen=True)
class WholeStep:
    """``captured``: the step with its updates, which no gradient leaves. ``args``: sample inputs and targets, as
    ``module`` takes them. ``updates``: by the parameter's name in ``module``."""

    module: LossModule
    captured: Captured
    args: tuple[Any, Any]
    updates: Mapping[str, LiveUpdate]


def plain_inputs(inputs: Any) -> Any:
    """A mapping of any kind (a tokenizer's result) as a plain dictionary."""
    return dict(inputs) if isinstance(inputs, Mapping) else inputs


def capture_whole_step(
    model: torch.nn.Module,
    inputs: Any,
    targets: Any,
    *,
    loss_fn: LossFunction,
    optimizer: torch.optim.Optimizer,
    clip_grad_norm: float | None = None,
    return_outputs: bool = True,
    dynamic: Mapping[str, Any] | Ranges | None = None,
) -> WholeStep:
    """The step of ``model`` on inputs and targets of this geometry; nothing is changed or run.

    ``dynamic``: which sizes vary, as a person gives them, where ``"targets"`` are the targets, or as a plan has them.

    Raises ``ConfigError`` where the loss is no scalar tensor, an input requires a gradient or the optimiser cannot be
    planned, and ``CaptureError``.
    """
    algorithm(optimizer)
    if clip_grad_norm is not None and not (isinstance(clip_grad_norm, float | int) and clip_grad_norm > 0):
        raise ConfigError(
            f"clip_grad_norm is {clip_grad_norm}; it is the largest norm that gradients may have, above 0"
        )
    module = LossModule(model, loss_fn, return_outputs=return_outputs)
    _require_own_memory(module)
    args = (plain_inputs(inputs), targets)
    for tensor in pytree.tree_leaves(args):
        if isinstance(tensor, torch.Tensor) and tensor.requires_grad:
            raise ConfigError(
                f"an input of shape {tuple(tensor.shape)} requires a gradient, and a whole step makes those of "
                "parameters only, which it uses itself: detach it, or plan the module alone (monet.plan, MonetModule)"
            )
    ranges = dynamic if dynamic is None or isinstance(dynamic, Ranges) else _ranges(model, args, dynamic)
    if ranges is not None:
        args, _ = largest(args, {}, ranges)
    changed: list[str] = []
    with HeldByCode(loss_fn).put_back(changed):
        captured = capture(module, args, gradients_leave=False, detached=True, ranges=ranges)
    if changed:
        raise CaptureError(
            f"loss_fn changes {changed[0]}, which a planned step would not: give what changes as a part of the "
            "targets, or make the loss a torch.nn.Module that counts in a buffer"
        )
    captured = with_unit_tangent(captured)
    foreign = next((island for island in captured.islands.values() if island.foreign), None)
    if foreign is not None:
        raise CaptureError(
            f"{foreign.name} runs as it is inside of the plan, and reads {foreign.foreign}, a parameter of another "
            "part, which a planned step may have updated by then: pass it as an argument, or plan the module alone "
            "(monet.plan, MonetModule)"
        )
    slots = parameter_slots(captured, module, optimizer)
    graph = with_updates(captured.graph, slots, catalogue(captured.graph), clip_grad_norm=clip_grad_norm)
    return WholeStep(module, replace(captured, graph=graph), args, {slot.target: slot.live for slot in slots})


def _require_own_memory(module: torch.nn.Module) -> None:
    """Raises ``ConfigError`` where two parameters are one memory, or parts of one, and no one object."""
    names = {id(tensor): name for name, tensor in module.named_parameters()}
    for one, other in several_objects(module):
        if id(one) in names and id(other) in names:
            raise ConfigError(
                f"parameters {names[id(one)]} and {names[id(other)]} are in one memory, as parts of a flat tensor or "
                "as two objects of the same values, and a planned step updates each as soon as it can: give them "
                "memory of their own (p.data = p.data.clone()), tie them as one object, or plan the module "
                "alone (monet.apply)"
            )


def _ranges(model: torch.nn.Module, args: tuple[Any, Any], dynamic: Mapping[str, Any]) -> Ranges:
    """Of the flattened inputs and targets: those that are one leaf have a name."""
    inputs, targets = args
    names = argument_names(model, *call_of(inputs))
    if pytree.tree_structure(targets).is_leaf() and TARGETS not in names.values():
        names[len(pytree.tree_leaves(inputs))] = TARGETS
    return ranges_of_leaves(names, pytree.tree_leaves(args), dynamic)

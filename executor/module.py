"""``MonetModule``: a module that trains by a plan."""

from __future__ import annotations

import os
from typing import Any

import torch

from monet.capture import Captured, autocast, capture_once
from monet.capture.captured import device_type
from monet.capture.input_geometry import example_inputs
from monet.errors import PlanMismatch
from monet.executor.accumulator import Accumulator
from monet.executor.held_gradients import HeldGradients
from monet.executor.planned_step import PlannedStep
from monet.executor.runner import Runner
from monet.graph import is_reached
from monet.plans.plan import Plan
from monet.training_step.accumulation import with_accumulation


class MonetModule(torch.nn.Module):
    """``model`` with its training step run by ``plan``.

    It shares the model's parameters, buffers and submodules, so ``state_dict``, ``parameters``,
    ``train`` and ``eval`` act on the model itself and have the same names. In training mode with
    gradients enabled, ``forward`` runs the plan; otherwise it calls the model.

    One step at a time: backward must come before the next forward. Outputs and gradients are
    ordinary tensors of their own.

    Raises ``PlanMismatch`` where the plan was made for another model, input, device, thread count
    or torch version, and ``ExecutionError`` where a step is used out of order.
    """

    def __init__(
        self, model: torch.nn.Module, plan: Plan | str | os.PathLike[str], captured: Captured | None = None
    ) -> None:
        """``plan``: also its file. ``captured``: the step as ``monet.capture`` has it, of this model in the modes and
        the autocast of the plan; None captures it."""
        super().__init__()
        if isinstance(model, MonetModule):
            model = model._model
        object.__setattr__(self, "_model", model)
        for shared in ("_parameters", "_buffers", "_modules"):
            self.__dict__[shared] = model.__dict__[shared]
        self.training = model.training
        if isinstance(plan, str | os.PathLike):
            plan = Plan.load(plan)
        if not isinstance(plan, Plan):
            raise TypeError(
                f"a MonetModule runs one Plan, not a {type(plan).__name__}; monet.apply takes several plans"
            )
        captured = captured or capture_as_planned(model, plan)
        self._captured = captured
        self._accumulator: Accumulator | None = None
        if plan.model.get("accumulate"):
            accumulated = with_accumulation(captured)
            captured, self._accumulator = accumulated.captured, Accumulator(model, accumulated)
        self._step = PlannedStep(model, plan, captured)
        self._held = HeldGradients(model, self._step.runner)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if "_model" not in self.__dict__:
                raise
            return getattr(self.__dict__["_model"], name)

    @property
    def plan(self) -> Plan:
        """The plan that this module runs."""
        return self._step.plan

    def train(self, mode: bool = True) -> MonetModule:
        """Set the mode of the model and of this module; returns this module."""
        self._model.train(mode)
        self.training = mode
        return self

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the model returns: by the plan in training mode with gradients enabled, else by the model itself.

        Inputs must be of the structure and geometry that were planned, else ``PlanMismatch`` is raised. The step's
        backward pass must come before the next call.
        """
        if not self._model.training or not torch.is_grad_enabled():
            return self._model(*args, **kwargs)
        step = self._step
        sources = step.sources(args, kwargs)
        if self._accumulator is not None:
            self._accumulator.check()
            outputs = _PlannedFunction.apply(step.runner, self._accumulator, None, *sources)  # type: ignore[no-untyped-call]
        else:
            beside_bytes = self._held.beside_arena()
            outputs = _PlannedFunction.apply(step.runner, None, self._held, *sources)  # type: ignore[no-untyped-call]
            self._held.tell_after_forward(beside_bytes)
        return step.results(outputs)

    def check(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Raises ``PlanMismatch`` where such a call is not as planned."""
        self._step.sources(args, kwargs)

    def beside(self) -> MonetModule:
        """The same plan of the same model over an arena of its own: its steps may be under way beside this one's."""
        return MonetModule(self._model, self.plan, self._captured)

    def __reduce__(self) -> tuple[type[MonetModule], tuple[torch.nn.Module, Plan]]:
        """Copies and pickles are the model and the plan; each copy captures anew and has its own arena."""
        return MonetModule, (self._model, self.plan)

    def extra_repr(self) -> str:
        """Peak, budget and number of steps, for ``print``."""
        return f"planned: peak {self.plan.peak_bytes} of {self.plan.budget_bytes} bytes, {len(self.plan.steps)} steps"


def capture_as_planned(model: torch.nn.Module, plan: Plan) -> Captured:
    """The model captured on inputs of the plan's geometry, in the modes and the autocast that it was planned in."""
    args, kwargs = example_inputs(plan)
    modules = list(model.modules())
    if len(plan.model["training"]) != len(modules):
        raise PlanMismatch(
            "the plan was made for another model: the number of submodules differs; plan again for this one"
        )
    modes = [module.training for module in modules]
    try:
        for module, training in zip(modules, plan.model["training"], strict=True):
            module.training = training
        with autocast.entered(plan.model.get("autocast"), device_type(model, (args, kwargs))):
            return capture_once(model, args, kwargs, gradients_leave=not plan.model.get("accumulate"))
    finally:
        for module, training in zip(modules, modes, strict=True):
            module.training = training


class _PlannedFunction(torch.autograd.Function):
    """The whole step as one node of autograd's graph."""

    @staticmethod
    def forward(
        ctx: Any, runner: Runner, accumulator: Accumulator | None, held: HeldGradients | None, *sources: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        outputs, activations, generation = runner.forward(sources)
        ctx.runner, ctx.activations, ctx.generation = runner, activations, generation
        ctx.begun = runner.begun(generation)
        ctx.accumulator, ctx.held = accumulator, held
        named = {
            **dict(zip(runner.code.forward_sources, sources, strict=True)),
            **dict(zip(runner.code.outputs, outputs, strict=True)),
        }
        # Checks versions too: a parameter changed before backward is an error, as in eager.
        ctx.save_for_backward(*(named[name] for name in runner.code.kept))  # None for a .grad
        tangents = dict(zip(runner.graph.outputs, runner.graph.tangents, strict=True))
        # No zeros for outputs that the loss leaves out: where one takes a gradient, backward makes them.
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(named[n] for n in runner.code.outputs if tangents[n] is None))
        return outputs

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        runner: Runner = ctx.runner
        tangent_of = {o: t for o, t in zip(runner.graph.outputs, runner.graph.tangents, strict=True) if o is not None}
        given = dict(zip((tangent_of[o] for o in runner.code.outputs), gradients, strict=True))
        # As in eager: a parameter that leads only to outputs that the loss leaves out has no gradient. A gradient of
        # zeros would be another thing: an optimiser uses it (weight decay, momentum).
        reached = {name for name, tangent in given.items() if name is not None and tangent is not None}
        tangents = []
        for name in runner.graph.tangents:
            if name is None:
                continue
            value, tangent = runner.graph.values[name], given[name]
            if tangent is None:
                tangent = torch.empty_strided(value.shape, value.stride, dtype=value.dtype, device=value.device).zero_()
            elif tuple(tangent.stride()) != value.stride:
                tangent = torch.empty_strided(
                    value.shape, value.stride, dtype=tangent.dtype, device=tangent.device
                ).copy_(tangent)
            tangents.append(tangent)
        totals = {} if ctx.accumulator is None else ctx.accumulator.begin(reached)
        if ctx.held is not None:
            ctx.held.tell_before_backward()
        kept = [totals.get(name, saved) for name, saved in zip(runner.code.kept, ctx.saved_tensors, strict=True)]
        gradient_of = runner.backward(ctx.generation, kept, ctx.activations, tangents)
        if ctx.accumulator is not None:
            ctx.accumulator.end(totals)
        graph, behind = runner.graph, runner.tangents_behind
        used = {name: gradient for name, gradient in gradient_of.items() if is_reached(graph, behind[name], reached)}
        return (None, None, None, *(used.get(name) for name in runner.code.forward_sources))

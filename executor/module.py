"""``MonetModule``: a module that trains by a plan."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from monet.base.graph import Graph, written_sources
from monet.capture import Captured, autocast, capture_once
from monet.capture.captured import device_type
from monet.capture.effects.attribute_writes import another_path
from monet.capture.guards.model_guard import ModelGuard
from monet.capture.guards.module_hooks import part_hooks, said_of
from monet.capture.input_geometry import example_inputs, ranges_of_plan
from monet.errors import CONDITION, CaptureError, ConfigError, ExecutionError, PlanMismatch
from monet.executor import parallel
from monet.executor.accumulator import Accumulator
from monet.executor.held_gradients import HeldGradients
from monet.executor.planned_function import planned_outputs
from monet.executor.planned_step import PlannedStep
from monet.plans.plan import Plan
from monet.step.training_step.accumulation import with_accumulation

logger = logging.getLogger(__name__)


def require_unplanned(model: object) -> None:
    """Raises ``ConfigError`` for a module that runs a plan already."""
    if isinstance(model, MonetModule):
        raise ConfigError("this is a MonetModule, which runs its plan already; pass the model that it was made of")


class MonetModule(torch.nn.Module):
    """``model`` with its training step run by ``plan``.

    It shares the model's parameters, buffers and submodules, so ``state_dict``, ``parameters``,
    ``train`` and ``eval`` act on the model itself and have the same names. In training mode with
    gradients enabled, ``forward`` runs the plan; otherwise it calls the model.

    One step at a time: backward must come before the next forward. Outputs and gradients are
    ordinary tensors of their own.

    Raises ``PlanMismatch`` where the plan was made for another model, input, device, thread count
    or torch version, ``ConfigError`` for a ``MonetModule``, and ``ExecutionError`` where a step is used out of order.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        plan: Plan | str | os.PathLike[str],
        captured: Captured | None = None,
        guard: ModelGuard | None = None,
    ) -> None:
        """``plan``: also its file. ``captured``: the step as ``monet.capture`` has it, of this model in the modes and
        the autocast of the plan, and ``guard``, the model as it was then; None captures it."""
        super().__init__()
        require_unplanned(model)
        object.__setattr__(self, "_model", model)
        for shared in ("_parameters", "_buffers", "_modules"):
            self.__dict__[shared] = model.__dict__[shared]
        self.training = model.training
        if not isinstance(plan, Plan | str | os.PathLike):
            raise TypeError(
                f"a MonetModule runs one Plan, not a {type(plan).__name__}; monet.apply takes several plans"
            )
        plan = Plan.of(plan)
        with planned_modes(model, plan):
            if guard is None and (hooked := said_of(part_hooks(model))):
                logger.warning(
                    "%s: no hook of a part is called while a plan runs; what they change of values is in the plan: %s",
                    type(model).__name__,
                    hooked,
                )
            guard = guard or ModelGuard(model)
            again = None if captured else partial(_graph_as_planned, model, plan)
            captured = captured or capture_as_planned(model, plan)
        self._captured, self._guard = captured, guard
        self._accumulator: Accumulator | None = None
        if plan.model.get("accumulate"):
            accumulated = with_accumulation(captured)
            captured, self._accumulator = accumulated.captured, Accumulator(model, accumulated)
        self._step = PlannedStep(model, plan, captured, guard, again=again)
        self._held = HeldGradients(model, self._step.runner)
        self._in_parallel = self._compared = False  # until it is called there, and its plan compared

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
        backward pass must come before the next call. In ``DistributedDataParallel`` the first call compares the plans
        of all processes, and raises ``PlanMismatch`` in each of them where they differ.
        """
        if not self._model.training or not torch.is_grad_enabled():
            return self._model(*args, **kwargs)
        if not self._compared:
            self._compare_plans()
        step = self._step
        sources = step.sources(args, kwargs)
        step.release()
        random = step.generator.clone_state() if step.has_conditions else None  # in memory of its own
        if self._accumulator is not None:
            self._accumulator.check()
            outputs = planned_outputs(step.runner, sources, self._accumulator, None, None)
        else:
            beside_bytes = self._held.beside_arena()
            part_bytes = parallel.part_bytes()
            if part_bytes is not None and not self._in_parallel:
                self._in_parallel = True
                parallel.tell_uncounted(self._model, self.plan)
            outputs = planned_outputs(step.runner, sources, None, self._held, part_bytes)
            self._held.tell_after_forward(beside_bytes)
        if random is not None:
            self._require_path(outputs, random)
        return step.results(outputs, args, kwargs)

    def _require_path(self, outputs: Sequence[torch.Tensor], random: torch.Generator) -> None:
        """Raises ``PlanMismatch`` where this call's values would have taken the model along another path; random
        numbers are then as before the call. ``ExecutionError`` where buffers are not."""
        step = self._step
        condition = another_path(step.captured.writes, step.flat(outputs))
        if condition is None:
            return
        sentence = (
            f"the model takes another path than the one that was planned, by the values of this call: {condition}"
        )
        written = written_sources(self._captured.graph)
        if written:
            first = next(source for source in self._captured.graph.sources if source.value in written)
            raise ExecutionError(
                f"{sentence}; {first.kind} {first.target} has been changed, so that it cannot be called again as it "
                "was: decide outside of the planned module, or use torch.where"
            )
        step.generator.set_state(random.get_state())
        raise PlanMismatch(sentence, place=CONDITION)

    def _compare_plans(self) -> None:
        """With those of the other processes, of all planned modules in the ``DistributedDataParallel`` around this."""
        around = parallel.active()
        if around is None:
            return
        compared = [self]
        beside = [module for module in around.module.modules() if isinstance(module, MonetModule)]
        # Else it serves a model of monet.apply, which has compared; or to wait for the others could be for ever.
        if self in beside and parallel.calls_surely(around, self):
            compared = beside
            others = parallel.with_other_plans(around.process_group, [module.plan for module in compared])
            if others:
                raise PlanMismatch(
                    f"{parallel.named(others)} would run other plans than rank 0: make one plan, save it, and give all "
                    "processes that file, as in monet.MonetModule(model, 'plan.json')"
                )
        for module in compared:
            module._compared = True

    def check(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Raises ``PlanMismatch`` where such a call is not as planned."""
        self._step.runner.check_guards(self._step.sources(args, kwargs))

    def beside(self) -> MonetModule:
        """The same plan of the same model over an arena of its own: its steps may be under way beside this one's."""
        return MonetModule(self._model, self.plan, self._captured, self._guard)

    def __reduce__(self) -> tuple[type[MonetModule], tuple[torch.nn.Module, Plan]]:
        """Copies and pickles are the model and the plan; each copy captures anew and has its own arena."""
        return MonetModule, (self._model, self.plan)

    def extra_repr(self) -> str:
        """Peak, budget and number of steps, for ``print``."""
        return f"planned: peak {self.plan.peak_bytes} of {self.plan.budget_bytes} bytes, {len(self.plan.steps)} steps"


@contextmanager
def planned_modes(model: torch.nn.Module, plan: Plan) -> Iterator[None]:
    """A context in which every submodule is in the mode that it was planned in. Raises ``PlanMismatch`` for another
    number of submodules."""
    modules = list(model.modules())
    missing = [name for name in ("fingerprint", "inputs", "training") if name not in plan.model]
    missing += [name for name in ("profile", "threads") if name not in plan.environment]
    if missing:
        raise PlanMismatch(f"the plan does not say its {missing[0]}: it can be looked at, not run; plan again")
    if len(plan.model["training"]) != len(modules):
        raise PlanMismatch(
            "the plan was made for another model: the number of submodules differs; plan again for this one"
        )
    modes = [module.training for module in modules]
    try:
        for module, training in zip(modules, plan.model["training"], strict=True):
            module.training = training
        yield
    finally:
        for module, training in zip(modules, modes, strict=True):
            module.training = training


def capture_as_planned(model: torch.nn.Module, plan: Plan) -> Captured:
    """The model, in the modes that it was planned in, captured on inputs of the plan's geometry and in its autocast."""
    inputs = example_inputs(plan)
    with autocast.entered(plan.model.get("autocast"), device_type(model, inputs)):
        gradients_leave, ranges = not plan.model.get("accumulate"), ranges_of_plan(plan)
        try:
            return capture_once(model, *inputs, gradients_leave=gradients_leave, ranges=ranges)
        except CaptureError:
            if "islands" not in plan.fixed:
                raise
        # An island is called with them, and a length of 0, say, is none.
        return capture_once(model, *example_inputs(plan, 1), gradients_leave=gradients_leave, ranges=ranges)


def graph_of(captured: Captured, plan: Plan) -> Graph:
    """The graph of what was captured, as ``plan`` must be of: where it accumulates, with the sums of gradients."""
    return with_accumulation(captured).captured.graph if plan.model.get("accumulate") else captured.graph


def _graph_as_planned(model: torch.nn.Module, plan: Plan) -> Graph:
    with planned_modes(model, plan):
        return graph_of(capture_as_planned(model, plan), plan)

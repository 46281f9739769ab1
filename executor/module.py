"""``MonetModule``: a module that trains by a plan."""

from __future__ import annotations

import logging
from typing import Any

import torch
import torch.utils._pytree as pytree

from monet.capture import Captured, capture
from monet.errors import PlanMismatch
from monet.executor.inputs import InputCheck, example_inputs
from monet.executor.runner import Runner
from monet.graph import Graph
from monet.ops.catalogue import Catalogue, catalogue
from monet.ops.measure import environment
from monet.ops.sparse import DENSITY
from monet.planfile import Plan

logger = logging.getLogger(__name__)


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

    def __init__(self, model: torch.nn.Module, plan: Plan) -> None:
        super().__init__()
        if isinstance(model, MonetModule):
            model = model._model
        object.__setattr__(self, "_model", model)
        for shared in ("_parameters", "_buffers", "_modules"):
            self.__dict__[shared] = model.__dict__[shared]
        self.training = model.training
        self._step = _PlannedStep(model, plan)

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
        self._model.train(mode)
        self.training = mode
        return self

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if not self._model.training or not torch.is_grad_enabled():
            return self._model(*args, **kwargs)
        return self._step(args, kwargs)

    def __reduce__(self) -> tuple[type[MonetModule], tuple[torch.nn.Module, Plan]]:
        """Copies and pickles are the model and the plan; each copy captures anew and has its own arena."""
        return MonetModule, (self._model, self.plan)

    def extra_repr(self) -> str:
        return f"planned: peak {self.plan.peak_bytes} of {self.plan.budget_bytes} bytes, {len(self.plan.steps)} steps"


def planned_catalogue(graph: Graph, plan: Plan) -> Catalogue:
    """What a plan's steps may name: the storages it was made with are part of it (``model.storage``: a list of
    names, ``model.density``); a plan without these has none."""
    return catalogue(graph, storage=plan.model.get("storage", ()), density=plan.model.get("density", DENSITY))


class _PlannedStep:
    """The captured model, its runner, and what a call must look like."""

    def __init__(self, model: torch.nn.Module, plan: Plan) -> None:
        self.model, self.plan = model, plan
        args, kwargs = example_inputs(plan)
        if len(plan.model["training"]) != len(list(model.modules())):
            raise PlanMismatch(
                "the plan was made for another model: the number of submodules differs; plan again for this one"
            )
        self._modes = list(zip(model.modules(), plan.model["training"], strict=True))
        mode = [(module, module.training) for module in model.modules()]
        try:
            for module, training in self._modes:
                module.training = training
            self.captured: Captured = capture(model, args, kwargs)
        finally:
            for module, training in mode:
                module.training = training
        self.graph = self.captured.graph
        self._check_environment()
        self.runner = Runner(plan, planned_catalogue(self.graph, plan))
        self._inputs = InputCheck(self.captured)
        self._owners = self._locate()
        self._children = [(m._modules, name, child) for m in model.modules() for name, child in m._modules.items()]

    def _check_environment(self) -> None:
        expected = self.plan.model.get("fingerprint")
        if self.graph.fingerprint() != expected:
            raise PlanMismatch(
                "the plan was made for another model: the captured operators, shapes or dtypes differ "
                f"(plan {str(expected)[:12]}, model {self.graph.fingerprint()[:12]}); plan again for this model"
            )
        device = next(iter(self.graph.values.values())).device
        here, there = environment(device), self.plan.environment.get("profile")
        if here != there:
            raise PlanMismatch(f"the plan was made for [{there}], and this is [{here}]; plan again here")

    def _check_modules(self) -> None:
        """The modules whose parameters are used must still be the model's."""
        for children, name, child in self._children:
            if children.get(name) is not child:
                raise PlanMismatch(
                    f"submodule {name!r} was replaced after planning; make a new MonetModule, or plan again"
                )

    def _check_modes(self) -> None:
        """Every submodule must be in the mode it was captured in: a frozen batch norm is another operator."""
        for module, training in self._modes:
            if module.training != training:
                name = next(n for n, m in self.model.named_modules() if m is module)
                mode = "training" if module.training else "evaluation"
                raise PlanMismatch(
                    f"submodule {name!r} is in {mode} mode, and the plan was "
                    "made with it in the other one; set the mode as it was when planning, or plan again"
                )

    def _locate(self) -> list[tuple[dict[str, Any], str] | torch.Tensor | int]:
        """Where each source is found at a call: in a module's dictionary, a constant, or a flat input."""
        found: list[tuple[dict[str, Any], str] | torch.Tensor | int] = []
        for source in self.graph.sources:
            if source.kind == "input":
                found.append(int(source.target))
            elif source.kind == "constant":
                found.append(self.captured.constants[source.target])
            else:
                path, _, name = source.target.rpartition(".")
                owner = self.model.get_submodule(path)
                found.append((owner._parameters if source.kind == "parameter" else owner._buffers, name))
        return found

    def _sources(self, leaves: list[Any]) -> list[torch.Tensor]:
        sources: list[torch.Tensor] = []
        for where in self._owners:
            if isinstance(where, int):
                sources.append(leaves[where])
            elif isinstance(where, torch.Tensor):
                sources.append(where)
            else:
                sources.append(where[0][where[1]])
        return sources

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if torch.get_num_threads() != self.plan.environment["threads"]:
            raise PlanMismatch(
                f"the plan was made for {self.plan.environment['threads']} threads and torch now has "
                f"{torch.get_num_threads()}; memory requests depend on it. Set torch.set_num_threads, or plan again"
            )
        self._check_modules()
        self._check_modes()
        leaves = self._inputs.leaves(args, kwargs)
        sources = self._sources(leaves)
        self._inputs.check_sources(sources)
        outputs = dict(zip(self.runner.code.outputs, _Step.apply(self.runner, *sources), strict=True))  # type: ignore[no-untyped-call]
        flat = [
            self.captured.output_literals.get(i) if name is None else outputs[name]
            for i, name in enumerate(self.graph.outputs)
        ]
        return pytree.tree_unflatten(flat, self.captured.out_spec)


class _Step(torch.autograd.Function):
    """The whole step as one node of autograd's graph."""

    @staticmethod
    def forward(ctx: Any, runner: Runner, *sources: torch.Tensor) -> tuple[torch.Tensor, ...]:
        outputs, activations, generation = runner.forward(sources)
        ctx.runner, ctx.activations, ctx.generation = runner, activations, generation
        named = {
            **dict(zip(runner.code.forward_sources, sources, strict=True)),
            **dict(zip(runner.code.outputs, outputs, strict=True)),
        }
        # Checks versions too: a parameter changed before backward is an error, as in eager.
        ctx.save_for_backward(*(named[name] for name in runner.code.kept))
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
        made = runner.backward(ctx.generation, ctx.saved_tensors, ctx.activations, tangents)
        return (None, *(made.get(name) for name in runner.code.forward_sources))

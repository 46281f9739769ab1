"""A captured model and its plan, ready to be called: the runner, where its sources are, and the checks of a call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree

from monet.base.graph import CONSTANT, INPUT, PARAMETER, STATE, TOTAL, Graph, Source
from monet.capture import Captured, autocast
from monet.capture.captured import another_each_time
from monet.capture.effects.attribute_writes import assign, release
from monet.capture.guards.model_guard import ModelGuard
from monet.capture.plain_tensors import is_plain, why_not_plain
from monet.errors import PlanMismatch
from monet.executor.copying.checkpoint import Checkpoint
from monet.executor.input_check import InputCheck
from monet.executor.runner import Runner
from monet.ops.catalogue import Catalogue, catalogue
from monet.ops.measuring.profiling import ESTIMATED
from monet.ops.measuring.signature import environment
from monet.ops.offers.offering import DENSITY, Offering
from monet.plans.plan import Plan

Locate = Callable[[], torch.Tensor | None]


def planned_catalogue(graph: Graph, plan: Plan) -> Catalogue:
    """What a plan's steps may name: the storages it was made with are part of it (``model.storage``: a list of
    names, ``model.density``); a plan without these has none."""
    storage, density = frozenset(plan.model.get("storage", ())), plan.model.get("density", DENSITY)
    fused = bool(plan.model.get("fused", False))
    return catalogue(graph, Offering(storage=storage, density=density, fused=fused))


def owner_of(model: torch.nn.Module, target: str) -> tuple[torch.nn.Module, str]:
    """The submodule that a dotted name's parameter or buffer belongs to, and its name there."""
    path, _, name = target.rpartition(".")
    return model.get_submodule(path), name


class _Found:
    """Found by a function, whatever the key."""

    def __init__(self, find: Locate) -> None:
        self._find = find

    def __getitem__(self, key: Any) -> torch.Tensor | None:
        return self._find()


class PlannedStep:
    """A captured model with its runner: checks a call, finds the tensors that the step is run on, and gives its results
    the model's structure."""

    def __init__(
        self,
        model: torch.nn.Module,
        plan: Plan,
        captured: Captured,
        guard: ModelGuard,
        state: Callable[[Source], Locate] | None = None,
        checkpoint: Checkpoint | None = None,
        again: Callable[[], Graph] | None = None,
    ) -> None:
        """``captured``: of ``model``, in the modes it was planned in, as ``guard`` knows it. ``state``: where an
        optimiser's state is found. ``checkpoint``: as of ``copies_of``. ``again``: captures the same once more, which
        tells a model that is another one each time from one that was not planned.

        Raises ``PlanMismatch`` where the plan is not this model's, or not this machine's.
        """
        self.model, self.plan, self.captured = model, plan, captured
        self.graph = captured.graph
        self._device = self.graph.device.type
        self._autocast = plan.model.get("autocast")
        self._check_graph(again)
        self._check_environment()
        self.runner = Runner(plan, planned_catalogue(self.graph, plan), captured.ranges, captured.islands, checkpoint)
        if state is None and self.runner.copies is not None and self.runner.copies.carried:
            raise PlanMismatch(
                "the plan keeps parameters in a second memory between steps; use it with monet.optimize, not with "
                "MonetModule"
            )
        self._guard = guard
        assigned = [write for write in captured.writes if write.expected is None]
        guard.leave_out([(write.module, write.key) for write in assigned if not write.of_object])
        varying = self.runner.varying
        self._inputs = InputCheck(captured, None if varying is None else varying.calls)
        self._places = [self._locate(source, state) for source in self.graph.sources]

    def _check_graph(self, again: Callable[[], Graph] | None) -> None:
        expected, found = self.plan.model.get("fingerprint"), self.graph.fingerprint()
        if found == expected:
            return
        if again is not None and (other := again()).fingerprint() != found:
            raise PlanMismatch(another_each_time(self.graph, other))
        raise PlanMismatch(
            "the plan was made for another model: the captured operators, shapes or dtypes differ "
            f"(plan {str(expected)[:12]}, model {found[:12]}); plan again for this model"
        )

    def _check_environment(self) -> None:
        here, there = environment(self.graph.device), self.plan.environment.get("profile")
        if str(there).startswith(ESTIMATED):
            raise PlanMismatch(
                f"the plan's costs and its peak were {there}: they promise nothing; plan again with measured costs, "
                "without estimate"
            )
        if here != there:
            raise PlanMismatch(f"the plan was made for [{there}], and this is [{here}]; plan again here")

    def check_autocast(self) -> None:
        """Raises ``PlanMismatch`` where autocast is not as planned: a loss outside the plan runs in the caller's."""
        now, apart = autocast.state(self._device), self.captured.cast_apart
        if apart and autocast.is_off_inside(self._device):
            raise PlanMismatch(autocast.why_not_inside(apart))
        if now != self._autocast:
            raise PlanMismatch(
                f"autocast is {autocast.describe(now)}, and the plan was made with autocast "
                f"{autocast.describe(self._autocast)}: call it under the same torch.autocast as monet.plan or "
                "monet.optimize, or plan again"
            )

    def _check_model(self) -> None:
        """The model must be what tracing read: another one would be trained by another step."""
        difference = self._guard.difference()
        if difference is not None:
            for name, tensor in (*self.model.named_parameters(), *self.model.named_buffers()):
                if not is_plain(tensor):  # says more than what makes it so: a hook, another class
                    raise PlanMismatch(why_not_plain(f"parameter {name}", tensor))
            raise PlanMismatch(
                f"{difference.sentence}; undo that, or plan again for the model as it is", place=difference.place
            )

    def _locate(
        self, source: Source, state: Callable[[Source], Locate] | None
    ) -> tuple[Mapping[str, Any] | _Found | None, Any]:
        """Where a call finds a source: in what, and by which key. In nothing: it is the input at the position."""
        if source.kind == INPUT:
            return None, int(source.target)
        if source.kind == CONSTANT:
            return self.captured.constants, source.target
        if source.kind == TOTAL:
            return _Found(lambda: None), None  # there when the backward pass begins
        if source.kind == STATE:
            if state is None:
                raise PlanMismatch("the plan updates weights; use it with monet.optimize, not with MonetModule")
            return _Found(state(source)), None
        owner, name = owner_of(self.model, source.target)
        return (owner._parameters if source.kind == PARAMETER else owner._buffers), name

    def sources(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
        """The tensors that the step is run on. Raises ``PlanMismatch`` where the call is not as planned."""
        # A GPU's kernels ask for the same memory under any number of them.
        if self._device == "cpu" and torch.get_num_threads() != self.plan.environment["threads"]:
            raise PlanMismatch(
                f"the plan was made for {self.plan.environment['threads']} threads and torch now has "
                f"{torch.get_num_threads()}; memory requests depend on it. Set torch.set_num_threads, or plan again"
            )
        self.check_autocast()
        self._check_model()
        leaves = self._inputs.leaves(args, kwargs)
        # None for a .grad
        tensors: list[Any] = [leaves[key] if within is None else within[key] for within, key in self._places]
        self._inputs.check_sources(tensors)
        return tensors

    def release(self) -> None:
        """Before a step: drop what the forward pass of the last one has assigned, and this one's will."""
        release(self.model, self.captured.writes)

    def flat(self, outputs: Sequence[torch.Tensor]) -> list[Any]:
        """The forward pass's outputs, further ones included, from the runner's."""
        named = dict(zip(self.runner.code.outputs, outputs, strict=True))
        return [
            self.captured.output_literals.get(i) if name is None else named[name]
            for i, name in enumerate(self.graph.outputs)
        ]

    @property
    def generator(self) -> torch.Generator:
        """Of the step's random numbers."""
        device = self.graph.device
        return torch.default_generator if device.type == "cpu" else torch.cuda.default_generators[device.index or 0]

    @property
    def has_conditions(self) -> bool:
        """Whether the plan is of one path of several, which a call's values choose between."""
        return any(write.expected is not None for write in self.captured.writes)

    def results(self, outputs: Sequence[torch.Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What the model returns, from the runner's outputs; what its forward pass assigns to attributes is assigned.
        ``args``, ``kwargs``: of the call."""
        flat, of = self.flat(outputs), self.captured.out_spec
        if self.captured.writes:
            assign(self.model, self.captured.writes, flat, pytree.tree_leaves((args, kwargs)))
        return pytree.tree_unflatten(flat[: of.num_leaves], of)

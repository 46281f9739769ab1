"""``Trainer``: runs whole training steps, weight updates included, by a plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from monet.base.graph import PARAMETER, STATE, Source
from monet.capture import Captured
from monet.capture.guards.model_guard import ModelGuard
from monet.errors import ConfigError, ExecutionError, PlanMismatch
from monet.executor.carried_state import CarriedState
from monet.executor.copying.disk_copies import DiskCopies
from monet.executor.planned_step import PlannedStep, owner_of
from monet.ops.weight_update import LiveUpdate
from monet.plans.plan import Plan


class Trainer:
    """``loss, outputs = trainer(inputs, targets)`` does what forward, ``loss_fn``, ``backward`` and
    ``optimizer.step()`` do, and leaves no gradients: ``zero_grad`` is not needed, and ``.grad`` stays None.

    The model and the optimiser are the user's own and stay as usable as before: ``state_dict`` and
    ``load_state_dict`` of both, learning-rate schedulers, evaluation between steps. ``loss`` and ``outputs`` are
    detached. Made by ``monet.optimize``.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        plan: Plan,
        captured: Captured,
        updates: Mapping[str, LiveUpdate],
        optimizer: torch.optim.Optimizer,
        plain: Callable[[Any], Any],
        weights: Callable[[str], torch.Tensor] | None = None,
    ) -> None:
        """``weights``: the values of the model's parameters and buffers, by their name in its ``state_dict``."""
        self.optimizer = optimizer
        self._updates = updates
        self._plain = plain
        self._step = PlannedStep(module, plan, captured, ModelGuard(module), self._state)
        copies = self._step.runner.copies
        values = self._step.graph.values
        self._carried: CarriedState | None = None
        if isinstance(copies, DiskCopies) and copies.carried:
            self._carried = CarriedState(copies, values.__getitem__)
        self._moved_of: dict[str, list[tuple[str, str]]] = {}  # parameter → storage and key of state that is moved
        self._moved: list[
            tuple[str, torch.nn.Module, str]
        ] = []  # storage of a parameter that is moved, and whose it is
        for source in captured.graph.sources:
            if self._carried is None or source.value not in self._carried.tensors:
                continue
            if source.kind == PARAMETER:
                self._moved.append((source.value, *owner_of(module, source.target)))
            elif source.kind == STATE:
                name, _, key = source.target.rpartition(".")
                self._moved_of.setdefault(name, []).append((source.value, key))
        moved = len(self._moved) + sum(map(len, self._moved_of.values()))
        if copies is not None and len(copies.carried) != moved:
            raise PlanMismatch(
                "the plan keeps what is no parameter of this model and no state of this optimizer in the second "
                "memory; plan again"
            )
        self._groups = self._parameters()
        self._owners = {name: owner_of(module, name) for name in updates}
        if weights is not None:
            self._load(module, weights)

    @torch.no_grad()
    def _load(self, module: torch.nn.Module, weights: Callable[[str], torch.Tensor]) -> None:
        """One tensor at a time; what is moved goes to its place, and its own memory is not touched. Raises
        ``ConfigError`` where there is none of the right shape."""
        model = module.model
        assert isinstance(model, torch.nn.Module)
        moved = {id(owner._parameters[key]): storage for storage, owner, key in self._moved}
        kept = {name for name, _ in model.state_dict(keep_vars=True).items()}
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            if name not in kept:  # a buffer that is made by the model, and not saved
                continue
            values = weights(name)
            if not isinstance(values, torch.Tensor) or values.shape != tensor.shape:
                found = tuple(values.shape) if isinstance(values, torch.Tensor) else type(values).__name__
                raise ConfigError(f"weights({name!r}) is {found}; the model's tensor is {tuple(tensor.shape)}")
            storage = moved.get(id(tensor))
            if storage is None or self._carried is None:
                tensor.copy_(values)
            else:
                self._carried.take_parameter(storage, tensor, values)
        if self._carried is not None:
            self._carried.release_pages()

    @property
    def plan(self) -> Plan:
        """The plan that each step follows; ``plan.save`` keeps it."""
        return self._step.plan

    def __call__(self, inputs: Any, targets: Any = None) -> tuple[torch.Tensor, Any]:
        """One step. ``inputs`` and ``targets`` must be of the sample's structure and geometry.

        Returns the loss and the model's outputs (None with ``return_outputs=False``). Raises ``PlanMismatch`` where
        the call, the model or the optimiser is not as planned: then no weight has changed. An error inside a step
        leaves the parameters that were updated by then updated.
        """
        self._check_optimizer()
        with torch.no_grad():
            args = self._plain(inputs), targets
            sources = self._step.sources(args, {})
            self._step.release()
            results = self._step.results(self._step.runner.whole(sources), args, {})
        for live in self._updates.values():
            live.done()
        self.optimizer._opt_called = True  # type: ignore[attr-defined]  # what learning-rate schedulers look for
        loss: torch.Tensor = results[0]
        return loss, results[1] if len(results) > 1 else None

    def _check_optimizer(self) -> None:
        """The optimiser would do nothing besides what is planned, and its state is there."""
        if self.optimizer._optimizer_step_pre_hooks or self.optimizer._optimizer_step_post_hooks:
            raise ExecutionError(
                "the optimizer has step hooks, and a planned step has no moment at which to call them; remove them, or "
                "plan the module alone (monet.plan, MonetModule)"
            )
        self._step.check_autocast()
        if self._parameters() != self._groups:
            raise PlanMismatch("the optimizer's parameters have changed since planning; plan again")
        for name, live in self._updates.items():
            owner, key = self._owners[name]
            if owner._parameters[key] is not live.parameter:
                raise PlanMismatch(f"{name} was replaced after planning; the optimizer has another parameter")
            if live.parameter._backward_hooks or live.parameter._post_accumulate_grad_hooks:
                raise ExecutionError(
                    f"{name} has gradient hooks, and a planned step has no moment at which to call them; remove them, "
                    "or plan the module alone (monet.plan, MonetModule)"
                )
            if live.parameter.grad is not None:
                raise ExecutionError(
                    f"{name} has a gradient from outside the planned step, which would not be used: a planned step "
                    "makes, uses and frees its own gradients. Set it to None (optimizer.zero_grad()); to accumulate "
                    "gradients over several batches, plan the module alone (monet.plan, MonetModule)"
                )
            live.prepare()
            for storage, key in self._moved_of.get(name, ()):
                assert self._carried is not None
                live.exchange(key, self._carried.taken_over(storage, live.state[key]))
        if self._carried is not None:
            for storage, owner, key in self._moved:
                parameter = owner._parameters[key]
                assert parameter is not None
                self._carried.take_parameter(storage, parameter)
            self._carried.release_pages()

    def _parameters(self) -> list[list[int]]:
        return [[id(parameter) for parameter in group["params"]] for group in self.optimizer.param_groups]

    def _state(self, source: Source) -> Callable[[], torch.Tensor]:
        name, _, key = source.target.rpartition(".")
        live = self._updates[name]
        return lambda: live.optimizer.state[live.parameter][key]

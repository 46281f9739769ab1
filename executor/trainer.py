"""``Trainer``: runs whole training steps, weight updates included, by a plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from monet.base.graph import Graph, Source
from monet.capture import Captured
from monet.capture.guards.model_guard import ModelGuard
from monet.errors import ExecutionError, PlanMismatch
from monet.executor.copying.checkpoint import Checkpoint
from monet.executor.held_state import HeldState
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
        checkpoint: Checkpoint | None = None,
        again: Callable[[], Graph] | None = None,
    ) -> None:
        """``weights``: the values of the model's parameters and buffers, by their name in its ``state_dict``.
        ``checkpoint``: from which training goes on; ``weights`` are not asked for where it has a step. ``again``: as of
        ``PlannedStep``."""
        self.optimizer = optimizer
        self._updates = updates
        self._plain = plain
        self._step = PlannedStep(module, plan, captured, ModelGuard(module), self._state, checkpoint, again)
        self._groups = self._parameters()
        self._owners = {name: owner_of(module, name) for name in updates}
        self._held = HeldState(module, self._step, updates, optimizer, checkpoint)
        if not self._held.resume() and weights is not None:
            self._held.load(weights)

    @property
    def plan(self) -> Plan:
        """The plan that each step follows; ``plan.save`` keeps it."""
        return self._step.plan

    @property
    def steps(self) -> int:
        """How many steps were made, those before the checkpoint that was gone on from included."""
        return self._held.steps

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
            with self._held.step():
                results = self._step.results(self._step.runner.whole(sources), args, {})
                for name, live in self._updates.items():
                    live.done(keep=self._held.moves(name))
        self.optimizer._opt_called = True  # type: ignore[attr-defined]  # what learning-rate schedulers look for
        loss: torch.Tensor = results[0]
        return loss, results[1] if len(results) > 1 else None

    def _check_optimizer(self) -> None:
        """The optimiser would do nothing besides what is planned, and its state is there."""
        self._held.recover()
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
            self._held.begin(name)
        self._held.ready()

    def _parameters(self) -> list[list[int]]:
        return [[id(parameter) for parameter in group["params"]] for group in self.optimizer.param_groups]

    def _state(self, source: Source) -> Callable[[], torch.Tensor]:
        name, _, key = source.target.rpartition(".")
        live = self._updates[name]
        return lambda: live.optimizer.state[live.parameter][key]

"""``monet.optimize``: a training step, weight update included, under a number of bytes."""

from __future__ import annotations

import os
from typing import Any

import torch

from monet import autocast
from monet.api import plan_prepared, prepare_whole
from monet.capture import device_type
from monet.errors import PlanMismatch
from monet.executor.trainer import Trainer
from monet.planfile import Plan
from monet.planner.schedules import STORAGE
from monet.whole_step import LossFunction, capture_whole_step, plain_inputs


def optimize(
    model: torch.nn.Module,
    sample_inputs: Any,
    sample_targets: Any = None,
    *,
    loss_fn: LossFunction,
    optimizer: torch.optim.Optimizer,
    budget: str | int | None = None,
    plan: Plan | str | os.PathLike[str] | None = None,
    clip_grad_norm: float | None = None,
    return_outputs: bool = True,
    reserve_bytes: int = 0,
    exact: bool = False,
    cache: bool = True,
    progress: bool = False,
    seed: int = 0,
    **options: Any,
) -> Trainer:
    """Plan forward, loss, backward and weight update as one step; ``trainer(inputs, targets)`` then runs it.

    ``sample_inputs``: a tensor, a tuple of arguments or a mapping of keyword arguments for the model.
    ``loss_fn(outputs, targets)`` returns a scalar; a ``torch.nn.Module`` with parameters of its own is trained, too.
    ``optimizer``: ``torch.optim.SGD``, ``Adam`` or ``AdamW`` with every parameter that requires a gradient.
    ``budget``: bytes, or text as ``"6GB"``, ``"50%"`` (of eager's peak); it counts parameters, optimiser state, the
    batch, outputs, gradients, activations and temporaries. ``plan``: of an earlier call, or its file, instead.
    ``clip_grad_norm``: the largest total 2-norm of the gradients, as ``torch.nn.utils.clip_grad_norm_`` takes it.
    ``return_outputs``: False frees the model's outputs inside the step. ``exact``: updates equal eager's bit by
    bit. Other options as for ``monet.plan``. Under ``torch.autocast``, forward and loss are in that precision, backward
    and update as eager runs them outside of it; the trainer is then called under the same ``torch.autocast``.

    Raises ``ConfigError``, ``CaptureError``, ``InfeasibleBudget``, ``SolverError``, or ``PlanMismatch`` for a ``plan``
    of another model. Ctrl-C while it plans is a KeyboardInterrupt: nothing is trained by a plan that nobody asked for.
    """
    if (budget is None) == (plan is None):
        raise TypeError("optimize takes a budget or a plan, and exactly one of them")
    step = capture_whole_step(
        model, sample_inputs, sample_targets, loss_fn=loss_fn, optimizer=optimizer, clip_grad_norm=clip_grad_norm,
        return_outputs=return_outputs,
    )  # fmt: skip
    if plan is None:
        assert budget is not None
        prepared = prepare_whole(
            step, reserve_bytes=reserve_bytes, exact=exact, storage=STORAGE.get(options.get("variant", "all"), ()),
            cache=cache, progress=progress, seed=seed,
        )  # fmt: skip
        plan = plan_prepared(prepared, budget, progress=progress, **options).plan
        if plan.solver["status"] == "interrupted":
            raise KeyboardInterrupt
    elif not isinstance(plan, Plan):
        plan = Plan.load(plan)
    planned, now = plan.model.get("autocast"), autocast.state(device_type(model, sample_inputs))
    if planned != now:
        raise PlanMismatch(
            f"autocast is {autocast.describe(now)}, and the plan was made with autocast {autocast.describe(planned)}; "
            "call optimize under the same torch.autocast"
        )
    return Trainer(step.module, plan, step.captured, step.updates, optimizer, plain_inputs)

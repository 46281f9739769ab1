"""Planning from Python: a model, sample inputs and a budget make a plan."""

from __future__ import annotations

import difflib
import inspect
import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from monet.amounts import ByteBudget, parse_budget, refusals_in
from monet.capture import autocast
from monet.capture.captured import device_type
from monet.errors import PlanMismatch
from monet.executor.trainer import Trainer
from monet.pipeline.planning import PlanResult, plan_prepared
from monet.pipeline.preparation import prepare, prepare_whole
from monet.planner.schedules import STORAGE
from monet.plans.plan import Plan
from monet.training_step.whole_step import LossFunction, capture_whole_step, plain_inputs


def plan(
    model: torch.nn.Module,
    args: Sequence[Any] | torch.Tensor,
    kwargs: Mapping[str, Any] | None = None,
    *,
    budget: str | int,
    **options: Any,
) -> Plan:
    """Plan one training step of ``model`` on inputs shaped like ``args`` and ``kwargs``.

    ``budget``: bytes, or text as ``"6GB"``, ``"5.5GiB"``, ``"50%"`` (of eager's step, counted likewise). It counts
    parameters, buffers, gradients, inputs, outputs, activations and temporaries. Options, by keyword: ``exact``,
    ``accumulate``, ``reserve_bytes``, ``cache``, ``progress`` and ``seed`` as in ``pipeline.preparation.prepare``;
    ``time_limit_s`` (of solving; capture, measuring and ordering come on top), ``gap``, ``window``, ``solver``,
    ``prove`` and ``variant`` as in ``pipeline.planning.plan_prepared``. Under ``torch.autocast`` the step
    is planned, and must later be called, in that precision.

    Raises ``monet.InfeasibleBudget``, whose ``smallest_bytes`` is a budget to try, and other ``monet.MonetError``s.
    """
    known = inspect.signature(plan_model).parameters
    for option in options:
        if option not in known:
            close = "".join(f"; did you mean {name!r}?" for name in difflib.get_close_matches(option, known, n=1))
            raise TypeError(f"plan() got an unexpected keyword argument {option!r}{close}")
    args = (args,) if isinstance(args, torch.Tensor) else args
    return plan_model(model, args, kwargs or {}, budget, **options).plan


def plan_model(
    model: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    budget: ByteBudget | int | str,
    *,
    reserve_bytes: int = 0,
    solver: str = "HIGHS",
    window: int | None = None,
    time_limit_s: float = 120.0,
    gap: float = 0.01,
    prove: bool = False,
    variant: str = "monet",
    exact: bool = False,
    accumulate: bool = False,
    cache: bool = True,
    progress: bool = False,
    seed: int = 0,
) -> PlanResult:
    """Plan and report: ``prepare``, then ``plan_prepared``; their options are described there.

    The model is not changed: neither its parameters, nor its buffers, nor the random state.
    """
    prepared = prepare(
        model, args, kwargs, reserve_bytes=reserve_bytes, exact=exact, accumulate=accumulate,
        storage=STORAGE.get(variant, ()), cache=cache, progress=progress, seed=seed,
    )  # fmt: skip
    budget = parse_budget(budget)
    with refusals_in(budget.unit):
        return plan_prepared(
            prepared, budget, variant=variant, window=window, time_limit_s=time_limit_s, gap=gap, solver=solver,
            prove=prove, progress=progress,
        )  # fmt: skip


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
            step, reserve_bytes=reserve_bytes, exact=exact, storage=STORAGE.get(options.get("variant", "monet"), ()),
            cache=cache, progress=progress, seed=seed,
        )  # fmt: skip
        with refusals_in(parse_budget(budget).unit):
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

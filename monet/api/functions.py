"""Planning from Python: ``monet.plan`` for a module, ``monet.optimize`` for a whole training step."""

from __future__ import annotations

import difflib
import functools
import inspect
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, Literal, ParamSpec, TypeVar

import torch

from monet.api.how import How, require_module
from monet.api.in_place import slot
from monet.api.in_place.plan_family import MOST_PLANS, OnMismatch, PlanFamily
from monet.api.in_place.plan_source import FOUND_OUT, PlanSource, options_of
from monet.api.in_place.several import common_options, distinct_calls
from monet.api.in_place.slot import Applied
from monet.base.amounts import ByteCount, parse_budget, refusals_of
from monet.capture import autocast
from monet.capture.captured import device_type
from monet.capture.input_geometry import call_of, example_inputs, ranges_of_plan
from monet.capture.varying_inputs import given_axes, largest, ranges_of
from monet.errors import ConfigError, InfeasibleBudget, PlanMismatch
from monet.executor.copying.checkpoint import checkpoint_at, opened, plan_of
from monet.executor.trainer import Trainer
from monet.native.channel import reason_against
from monet.ops.measuring.in_place import as_in_step
from monet.pipeline.preparation import prepare_whole
from monet.planner.ablation import MONET
from monet.planner.search import Solving
from monet.plans.plan import Plan
from monet.step.training_step.whole_step import LossFunction, capture_whole_step, plain_inputs

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")
_SOLVING = Solving()


def require_known(function: str, given: Iterable[str], known: Collection[str]) -> None:
    """Raises ``TypeError`` for a name that is not ``known``, with the one that was meant."""
    for name in given:
        if name not in known:
            close = "".join(f"; did you mean {guess!r}?" for guess in difflib.get_close_matches(name, known, n=1))
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}{close}")


def _guessing(function: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """``function``, which names the keyword that was meant where an unknown one is given."""
    known = inspect.signature(function).parameters

    @functools.wraps(function)
    def guessing(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
        require_known(function.__name__, kwargs, known)
        return function(*args, **kwargs)

    return guessing


@_guessing
def plan(
    model: torch.nn.Module,
    args: Sequence[Any] | Mapping[str, Any] | torch.Tensor,
    kwargs: Mapping[str, Any] | None = None,
    *,
    budget: str | int,
    variant: str = MONET,
    exact: bool = False,
    fused: bool = False,
    accumulate: bool = False,
    gradients: Literal["freed", "kept"] = "freed",
    offload: str | None = None,
    reserve_bytes: int = 0,
    bucket_bytes: int = 0,
    time_limit_s: float = _SOLVING.time_limit_s,
    gap: float = _SOLVING.gap,
    window: int | None = None,
    solver: str = _SOLVING.solver,
    prove: bool = False,
    cores: int | None = None,
    cache: bool = True,
    progress: bool = False,
    seed: int = 0,
    dynamic: Mapping[str, Any] | None = None,
) -> Plan:
    """Plan one training step of ``model`` on inputs shaped like ``args`` and ``kwargs``; the model is not changed.

    ``dynamic``: axes of arguments whose sizes vary, as ``torch.export`` takes them:
    ``{"input_ids": {0: Dim("batch", max=8), 1: Dim("length", max=512)}}``, by argument. The plan is made for the
    largest shape, and runs every smaller one at the same offsets, within the same peak.
    ``args``: a tensor, a tuple of arguments, or a mapping of keyword arguments, such as a tokenizer's result.
    ``budget``: bytes, or text as ``"6GB"``, ``"5.5GiB"``, ``"50%"`` (of eager's peak, or of what keeping everything
    needs in a plan, if that is more). It counts parameters, buffers, gradients, inputs, outputs, activations and
    temporaries. ``variant``: ``monet`` is the whole program; ``planner.schedules.VARIANTS`` has its parts and the
    baselines. ``exact``: only implementations that equal eager's bit by bit. ``fused``: elementwise operators,
    norms and cross entropy in regions, with kernels that PyTorch's compiler makes of them where they are faster (a
    minute the first time). ``offload``: a second memory that tensors may be moved to, as ``"disk"``,
    ``"disk:/scratch,limit=20GB"``, or ``"host"`` for a model on a GPU. ``reserve_bytes`` of the budget are left to
    others, ``bucket_bytes`` to the buckets of ``DistributedDataParallel`` (``monet.apply`` counts them itself);
    ``accumulate``, ``gradients``, ``cache`` and ``seed`` as in ``pipeline.preparation.Preparing``. ``time_limit_s``
    (of solving, ordering and layout; capture and measuring come on top), ``gap``, ``window``, ``solver``,
    ``prove`` and ``cores`` as in ``planner.search.Solving``. ``progress``: lines on stderr. Under ``torch.autocast``
    the step is planned, and must later be called, in that precision.

    Raises ``monet.InfeasibleBudget``, whose ``smallest_bytes`` is a budget to try, and other ``monet.MonetError``s.
    """
    how = How(
        variant, exact, offload, reserve_bytes, time_limit_s, gap, window, solver, prove, cache, progress, seed,
        accumulate, gradients, bucket_bytes, fused, cores,
    )  # fmt: skip
    called, named = call_of(args, kwargs)
    if dynamic is None:
        return how.plan(how.module_step(model, called, named), parse_budget(budget))
    require_module(model)
    ranges = ranges_of(model, called, named, dynamic)
    return how.plan(how.module_step(model, *largest(called, named, ranges), ranges), parse_budget(budget))


PLAN_OPTIONS: Mapping[str, Any] = MappingProxyType(
    {
        p.name: p.default
        for p in inspect.signature(plan).parameters.values()
        if p.kind is p.KEYWORD_ONLY and p.name != "dynamic"
    }
)
"""The keyword arguments of ``monet.plan`` for one shape and their defaults; ``budget`` has none that means anything."""


def plan_many(model: torch.nn.Module, samples: Sequence[Any], budget: str | int, **options: Any) -> tuple[Plan, ...]:
    """Plan several geometries ahead, such as the lengths that batches are padded to, for ``monet.apply(model, plans)``.

    ``samples``: of each geometry a batch: a tensor, a tuple of arguments or a mapping of keyword arguments for the
    model. The plans, one a geometry in that order, run over one arena of the largest size, and the step of the largest
    geometry in that arena stays within ``budget``: bytes, or text as ``"6GB"``, or as ``"50%"``, which is of the
    largest geometry's step. ``options``: those of ``monet.plan``.

    Raises ``ConfigError`` for samples that are none; ``InfeasibleBudget``, with a budget that works for the geometry
    that does not fit; what else ``monet.plan`` raises. Ctrl-C while it plans is a KeyboardInterrupt.
    """
    known = {name: default for name, default in PLAN_OPTIONS.items() if name != "budget"}
    require_known("plan_many", options, known)
    how, asked = How(**{**known, **options}), parse_budget(budget)
    require_module(model)
    with slot.apart(model):
        calls = distinct_calls(samples)
        prepared = [how.module_step(model, args, kwargs) for args, kwargs in calls]
    full_bytes = max(one.full_bytes for one in prepared)
    limit_bytes = asked.resolve(full_bytes)
    most_fixed = max(one.problem.fixed_bytes for one in prepared)
    plans: dict[int, Plan] = {}
    # The largest first: if it does not fit, that is said at once. A smaller one holds less beside the arena, but must
    # not make the arena larger than the largest leaves it.
    for number in sorted(range(len(calls)), key=lambda number: -prepared[number].full_bytes):
        spared = most_fixed - prepared[number].problem.fixed_bytes
        try:
            with refusals_of(asked, full_bytes):
                plans[number] = how.plan(prepared[number], ByteCount(limit_bytes - spared, asked.unit))
        except InfeasibleBudget as error:
            if error.smallest_bytes is not None:
                error.smallest_bytes += spared
            if error.counted_bytes is not None:
                error.counted_bytes += spared
            raise
        if plans[number].solver["status"] == "interrupted":
            raise KeyboardInterrupt
    return tuple(plans[number] for number in range(len(calls)))


def _plan_with(
    model: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    budget: str | int,
    seconds: Mapping[str, Sequence[float]] | None = None,
    **options: Any,
) -> Plan:
    """``plan``; with ``seconds``, by signature: what operators take in steps, which the others' costs follow."""
    if seconds is None:
        return _make_plan(model, args, kwargs, budget=budget, **options)
    known = {name: default for name, default in PLAN_OPTIONS.items() if name != "budget"}
    how = How(**{**known, **{name: value for name, value in options.items() if name != "dynamic"}})
    alone = how.module_step(model, args, kwargs).lowered
    how = replace(how, costs=as_in_step(alone.profile, alone.catalogue, seconds))
    return how.plan(how.module_step(model, args, kwargs), parse_budget(budget))


_make_plan = plan


@_guessing
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
    variant: str = MONET,
    exact: bool = False,
    fused: bool = False,
    offload: str | None = None,
    weights: Callable[[str], torch.Tensor] | Mapping[str, torch.Tensor] | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    reserve_bytes: int = 0,
    time_limit_s: float = _SOLVING.time_limit_s,
    gap: float = _SOLVING.gap,
    window: int | None = None,
    solver: str = _SOLVING.solver,
    prove: bool = False,
    cores: int | None = None,
    cache: bool = True,
    progress: bool = False,
    seed: int = 0,
    dynamic: Mapping[str, Any] | None = None,
) -> Trainer:
    """Plan forward, loss, backward and weight update as one step; ``trainer(inputs, targets)`` then runs it.

    ``sample_inputs``: a tensor, a tuple of arguments or a mapping of keyword arguments for the model.
    ``loss_fn(outputs, targets)`` returns a scalar; a ``torch.nn.Module`` with parameters of its own is trained, too.
    ``optimizer``: ``torch.optim.SGD``, ``Adam`` or ``AdamW`` with every parameter that requires a gradient.
    ``budget``: bytes, or text as ``"6GB"``, ``"50%"`` (of eager's peak); it counts parameters, optimiser state, the
    batch, outputs, gradients, activations and temporaries. ``plan``: of an earlier call, or its file, instead.
    ``clip_grad_norm``: the largest total 2-norm of the gradients, as ``torch.nn.utils.clip_grad_norm_`` takes it.
    ``offload``: a second memory for activations, parameters and the optimiser's state, as ``"disk:/scratch"``.
    ``weights``: a function that gives the values of a parameter or buffer by its name in the model's ``state_dict``,
    for a model that was made empty (``to_empty``) and is larger than memory: it is then never in memory whole. A
    mapping does, too.
    ``checkpoint``: a file that has model and optimiser after every step, whatever ends the process; where there is one,
    training goes on from it, by its plan, and ``trainer.steps`` says how many steps were made.
    ``return_outputs``: False frees the model's outputs inside the step. ``exact``: updates equal eager's bit by
    bit. ``fused``: as for ``monet.plan``; with ``return_outputs=False`` a language model's logits are never whole.
    ``dynamic``: as for ``monet.plan``, by argument of the model, and ``"targets"`` for the targets.
    Other options as for ``monet.plan``. Under ``torch.autocast``, forward and loss are in that precision, backward and
    update as eager runs them outside of it; the trainer is then called under the same ``torch.autocast``.

    Raises ``ConfigError``, ``CaptureError``, ``InfeasibleBudget``, ``SolverError``, or ``PlanMismatch`` for a ``plan``
    of another model. Ctrl-C while it plans is a KeyboardInterrupt: nothing is trained by a plan that nobody asked for.
    """
    if (budget is None) == (plan is None):
        raise TypeError("optimize takes a budget or a plan, and exactly one of them")
    require_module(model)
    values = weights.__getitem__ if isinstance(weights, Mapping) else weights
    if values is not None and not callable(values):
        raise ConfigError(f"weights is a {type(weights).__name__}; a function of a name, or a mapping, is needed")
    kept = None if checkpoint is None else checkpoint_at(checkpoint)
    if kept is not None and offload is not None and (reason := reason_against(kept.parent)) is not None:
        raise ConfigError(f"checkpoint {kept}: {reason}")
    if kept is not None and plan is None:
        plan = plan_of(kept)
    if plan is not None:
        plan = Plan.of(plan)
    if (name := next((n for n, p in model.named_parameters() if p.is_meta), None)) is not None:
        raise ConfigError(
            f"{name} is on the meta device, without values: before the optimizer is made, model.to_empty(device='cpu') "
            "gives it memory, which is not touched, and weights=, a function of a name, its values"
        )
    whole = partial(
        capture_whole_step, model, sample_inputs, sample_targets, loss_fn=loss_fn, optimizer=optimizer,
        clip_grad_norm=clip_grad_norm, return_outputs=return_outputs,
        dynamic=dynamic if plan is None else ranges_of_plan(plan),
    )  # fmt: skip
    step = whole()
    if plan is None:
        assert budget is not None
        how = How(
            variant, exact, offload, reserve_bytes, time_limit_s, gap, window, solver, prove, cache, progress, seed,
            fused=fused, cores=cores,
        )  # fmt: skip
        plan = how.plan(how.prepared(partial(prepare_whole, step)), parse_budget(budget))
        if plan.solver["status"] == "interrupted":
            raise KeyboardInterrupt
    planned, now = plan.model.get("autocast"), autocast.state(device_type(model, sample_inputs))
    if planned != now:
        raise PlanMismatch(
            f"autocast is {autocast.describe(now)}, and the plan was made with autocast {autocast.describe(planned)}; "
            "call optimize under the same torch.autocast"
        )
    trainer = partial(
        Trainer, step.module, plan, step.captured, step.updates, optimizer, plain_inputs, values,
        again=lambda: whole().captured.graph,
    )  # fmt: skip
    if kept is None:
        return trainer()
    with opened(kept) as files:
        made = trainer(checkpoint=files)
        files.keep_plan(plan)
    return made


def apply(
    model: torch.nn.Module,
    plan: Plan | str | os.PathLike[str] | Sequence[Plan | str | os.PathLike[str]] | None = None,
    *,
    budget: str | int | None = None,
    on_mismatch: OnMismatch = "eager",
    max_plans: int = MOST_PLANS,
    concurrent: int = 1,
    process_group: Any = None,
    rungs: int = 1,
    tune_steps: int = 0,
    **options: Any,
) -> None:
    """Run the training calls of ``model`` by a plan, in place, in any training loop: ``model`` stays what it is.

    With a ``budget``, as ``"6GB"``, the plan is made at the first training call, for inputs like that call's, with
    progress on stderr; ``options`` are those of ``monet.plan`` (``progress`` is on unless it is given). Such plans are
    kept on disk: the second start of the same training finds them. Where shapes vary from call to call, there is a plan
    for all so far, and another where a larger one comes, ``max_plans`` at most; ``dynamic=None``: there is not. With
    ``dynamic`` as for ``monet.plan`` it is for every shape up to one from the first, and there is another for sizes of
    1 where the model is run in another way then. With ``rungs`` there are so many, made when they are first needed, for
    the longest dimension and its half, its quarter and so on: a plan for less keeps more in the same bytes. Or with a
    ``plan`` of ``monet.plan``, or its file, or several of them, as from ``monet.plan_many``.
    A training call is one in training mode with gradients enabled; in any other the model itself runs.

    ``on_mismatch``: what is done with a training call that is not as planned (another shape, mode, autocast, number of
    threads; or one before the backward pass of the last): ``"eager"`` runs the model itself, outside of the budget,
    with one warning a kind; ``"replan"`` plans for it, up to ``max_plans`` plans in all, then as ``"eager"``;
    ``"error"`` raises ``PlanMismatch``. Plans of one model share one arena of the largest size.
    ``concurrent``: how many steps may be under way at a time, where a loop calls the model again before the backward
    pass of the call before. Each beyond the first has an arena of its own, and ``budget`` is for each: the promise is
    the sum, which is said, and is ``monet.applied(model).peak_bytes``.

    ``tune_steps``: so many steps of a plan are timed, operator by operator, where they run; then another plan is made
    with these times and timed as well, and the faster of the two stays, also for the next start. Where sizes vary,
    tensors move to a second memory, steps are concurrent or processes train together, it is not done.

    In ``DistributedDataParallel`` around ``model``, rank 0 plans at the first training call, and all run its plan;
    every process must have a first training call. ``process_group``: the same for the processes of that group, in
    other kinds of parallel training. Without one, each process plans for itself.

    Class, signature, ``state_dict`` and hooks of the model stay; copies and pickles of it are plain models.
    ``monet.applied(model)`` tells what was planned, ``monet.remove(model)`` undoes it.

    Raises ``ConfigError``, or ``PlanMismatch`` for a ``plan`` of another model; at the first training call as
    ``monet.plan``.
    """
    require_module(model)
    slot.require_plain(model)
    require_known("apply", options, [*PLAN_OPTIONS, "dynamic"])
    if not isinstance(rungs, int) or isinstance(rungs, bool) or rungs < 1:
        raise ConfigError(f"rungs, how many plans there are for rising sizes, must be a number from 1 on: {rungs!r}")
    if not isinstance(tune_steps, int) or isinstance(tune_steps, bool) or tune_steps < 0:
        raise ConfigError(f"tune_steps, how many steps of a plan are timed, must be a number from 0 on: {tune_steps!r}")
    if (plan is None) == (budget is None):
        raise TypeError("apply takes a budget or a plan, and exactly one of them")
    plans: list[Plan] = []
    if plan is not None:
        several = [plan] if isinstance(plan, Plan | str | os.PathLike) else list(plan)
        plans = [Plan.of(one) for one in several]
        options = {**common_options([options_of(one) for one in plans]), **options}
        for one in plans:
            if (ranges := ranges_of_plan(one)) is not None:
                options = {"dynamic": given_axes(model, *example_inputs(one), ranges), **options}
        budget = max(one.budget_bytes for one in plans)
    elif on_mismatch != "error":
        options = {"dynamic": FOUND_OUT, **options}
    assert budget is not None
    family = PlanFamily(type(model).__name__, on_mismatch, max_plans, concurrent)
    placed = slot.Applied(model, PlanSource(_plan_with, budget, options, rungs), family, process_group, tune_steps)
    for one in plans:
        placed.add(one)
    slot.put(placed)


def applied(model: torch.nn.Module) -> Applied:
    """What ``monet.apply`` has put into ``model``. Raises ``ConfigError`` where there is nothing."""
    return slot.applied(model)


def remove(model: torch.nn.Module) -> None:
    """Undo ``monet.apply``: ``model`` is the plain one again. A step that is under way can still be finished.

    Raises ``ConfigError`` where nothing was applied.
    """
    slot.remove(model)

"""Planning from Python: a model, sample inputs and a budget make a plan."""

from __future__ import annotations

import difflib
import inspect
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from monet import autocast
from monet.accumulation import with_accumulation
from monet.byte_count import ByteBudget, parse_budget
from monet.capture import capture
from monet.eager_peak import eager_peak_bytes
from monet.errors import CaptureError, InfeasibleBudget
from monet.executor.inputs import describe_inputs
from monet.fitting import fit, smallest_placed
from monet.graph import Graph, Operator
from monet.lowering import Lowered, lower
from monet.ops.catalogue import Catalogue, catalogue
from monet.ops.profiling import profile
from monet.ops.sparse import DENSITY
from monet.placement import Placement
from monet.planfile import Plan
from monet.planner.incumbents import fastest_plan
from monet.planner.problem import Problem
from monet.planner.replay import replay
from monet.planner.schedules import SCHEDULES, STORAGE
from monet.planner.smallest import smallest_plan
from monet.planner.solution import Run, Solution, Stage
from monet.planner.solvers import Progress
from monet.planner.variants import restrict
from monet.planner.verify import verify
from monet.present_scales import present_scales
from monet.profile import ProfileCache
from monet.solving_bar import SolvingBar
from monet.updates import updates_last
from monet.whole_step import WholeStep


@dataclass(frozen=True)
class PlanResult:
    """``summary``: what ``monet plan --json`` writes; its keys are documented in ``monet.summary``."""

    plan: Plan
    summary: Mapping[str, Any]
    solution: Solution


@dataclass(frozen=True)
class Prepared:
    """A captured and measured step, before any budget. ``eager``: how PyTorch itself would run it, counted as a plan
    is; ``eager_peak_bytes``: what it would then hold at most, see ``monet.eager_peak``.

    ``model`` and ``environment``: what a plan must be used with.
    """

    lowered: Lowered
    eager: Solution
    eager_peak_bytes: int
    model: Mapping[str, Any]
    environment: Mapping[str, Any]

    @property
    def problem(self) -> Problem:
        return self.lowered.problem


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
    ``accumulate``, ``reserve_bytes``, ``cache``, ``progress`` and ``seed`` as in ``monet.api.prepare``;
    ``time_limit_s`` (of solving; capture, measuring and ordering come on top), ``gap``, ``window``, ``solver``,
    ``prove`` and ``variant`` as in ``monet.api.plan_prepared``. Under ``torch.autocast`` the step is planned, and must
    later be called, in that precision.

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
    variant: str = "all",
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
    return plan_prepared(
        prepared, budget, variant=variant, window=window, time_limit_s=time_limit_s, gap=gap, solver=solver,
        prove=prove, progress=progress,
    )  # fmt: skip


def prepare(
    model: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    reserve_bytes: int = 0,
    exact: bool = False,
    accumulate: bool = False,
    storage: Collection[str] = (),
    density: float = DENSITY,
    cache: bool = True,
    progress: bool = False,
    seed: int = 0,
) -> Prepared:
    """Capture a training step and measure its operators: all that comes before a budget.

    ``reserve_bytes``: part of any budget that monet must leave to others (optimiser state). ``exact``:
    only implementations that equal eager's bit by bit. ``accumulate``: for gradients that add up over several batches:
    each is added to ``.grad`` as soon as it is made, so that a step holds one set of gradients and not two, whether
    ``.grad`` was there or not; gradient hooks of parameters cannot be called then, and ``torch.autograd.grad`` finds no
    gradients of parameters. ``storage``: compressed storages to offer besides, see
    ``planner.schedules.STORAGE``, and ``density``, the share of non-zero values that ``sparse`` has room for.
    ``cache``: read and write measurements of earlier runs. ``seed`` is recorded.
    """
    captured = capture(model, args, kwargs, gradients_leave=not accumulate)
    if not any(captured.graph.tangents):
        raise CaptureError(
            "nothing to train: no output of the model has a gradient (it is detached, made under torch.no_grad(), or a "
            "choice such as argmax)"
        )
    graph = with_accumulation(captured).captured.graph if accumulate else captured.graph
    offers = catalogue(
        graph, exact=exact, storage=frozenset(storage), density=density, scales=present_scales(model, captured)
    )
    lowered = _measured(offers, type(model).__name__, reserve_bytes, cache=cache, progress=progress)
    described = _described(model, lowered, (args, kwargs), exact, seed, storage, density)
    described |= {"accumulate": True} if accumulate else {}
    return Prepared(lowered, *_eager(lowered, graph, reserve_bytes), described, _environment(lowered))


def _eager(lowered: Lowered, graph: Graph, reserve_bytes: int) -> tuple[Solution, int]:
    """How PyTorch itself would run ``graph``, and its peak in bytes."""
    offers, name = replace(lowered.catalogue, graph=graph), lowered.problem.name
    as_eager = lower(offers, lowered.profile, name=name, reserve_bytes=reserve_bytes, eager=True)
    solution = baseline(as_eager.problem)
    return solution, eager_peak_bytes(solution, as_eager)


def prepare_whole(
    step: WholeStep,
    *,
    reserve_bytes: int = 0,
    exact: bool = False,
    storage: Collection[str] = (),
    density: float = DENSITY,
    cache: bool = True,
    progress: bool = False,
    seed: int = 0,
) -> Prepared:
    """Measure a step that has its own loss and updates; see ``prepare``. Eager's is the same with all updates last."""
    graph, name = step.captured.graph, type(step.module.model).__name__
    offers = catalogue(
        graph, exact=exact, storage=frozenset(storage), density=density,
        scales=present_scales(step.module, step.captured),
    )  # fmt: skip
    lowered = _measured(offers, name, reserve_bytes, cache=cache, progress=progress)
    described = _described(step.module, lowered, (step.args, {}), exact, seed, storage, density)
    eager = _eager(lowered, updates_last(graph), reserve_bytes)
    return Prepared(lowered, *eager, described, _environment(lowered))


def _described(
    module: torch.nn.Module,
    lowered: Lowered,
    inputs: tuple[Sequence[Any], Mapping[str, Any]],
    exact: bool,
    seed: int,
    storage: Collection[str],
    density: float,
) -> dict[str, Any]:
    """What a plan says of its model."""
    cast = autocast.state(next(iter(lowered.catalogue.graph.values.values())).device.type)
    return {
        "name": lowered.problem.name,
        "fingerprint": lowered.catalogue.graph.fingerprint(),
        "inputs": describe_inputs(*inputs),
        "training": [part.training for part in module.modules()],
        "exact": exact,
        "seed": seed,
        **({"autocast": cast} if cast is not None else {}),
        **({"storage": sorted(storage), "density": density} if storage else {}),
    }


def _measured(offers: Catalogue, name: str, reserve_bytes: int, *, cache: bool, progress: bool) -> Lowered:
    store = ProfileCache() if cache else None
    try:
        with autocast.ignored():  # the graph has its casts in it
            profiled = profile(offers, cache=store, progress=progress)
    finally:
        if store is not None:
            store.close()
    return lower(offers, profiled, name=name, reserve_bytes=reserve_bytes)


def _environment(lowered: Lowered) -> dict[str, Any]:
    return {
        "torch": torch.__version__,
        "profile": lowered.profile.environment,
        "threads": torch.get_num_threads(),
        "device": str(next(iter(lowered.catalogue.graph.values.values())).device),
    }


def plan_prepared(
    prepared: Prepared,
    budget: ByteBudget | int | str,
    *,
    variant: str = "all",
    window: int | None = None,
    time_limit_s: float = 120.0,
    gap: float = 0.01,
    solver: str = "HIGHS",
    prove: bool = False,
    cores: int | None = None,
    progress: bool | Progress = False,
) -> PlanResult:
    """Plan a prepared step for a budget, lay it out and verify it.

    ``variant``: a name of ``planner.schedules.SCHEDULES``: the whole program, a part of it, or a baseline.
    ``window``: stages before its last use in which a tensor may be recomputed (None: by size). ``gap``: relative;
    solving stops there. ``prove``: bound the full program, not the windowed one. ``cores``: for solving (None:
    all). ``progress``: show a line on stderr, or call this as ``plan_problem`` does.
    """
    budget_bytes = parse_budget(budget).resolve(prepared.eager.peak_bytes)
    options: dict[str, Any] = {
        "window": window, "time_limit_s": time_limit_s, "gap": gap, "solver": solver, "cores": cores,
    }  # fmt: skip
    if prove and SCHEDULES[variant].solves:
        options["prove"] = True
    return _result(prepared, budget_bytes, *fit(prepared.lowered, budget_bytes, variant, progress, options))


def plan_smallest(
    prepared: Prepared,
    max_overhead: float | None = None,
    *,
    window: int | None = None,
    time_limit_s: float = 120.0,
    gap: float = 0.01,
    solver: str = "HIGHS",
    progress: bool = False,
) -> PlanResult:
    """The fastest plan found within ``gap`` of the least memory found; its budget is what it needs.

    ``max_overhead``: predicted seconds beyond eager's, relative (0.1: 10 %); None: any. The bound on memory is
    ``summary["bound_bytes"]``. ``time_limit_s``: for each of the two searches. Other options as for ``plan_prepared``.
    """
    most_s = None if max_overhead is None else prepared.eager.objective_s * (1.0 + max_overhead)
    problem = restrict(prepared.problem, "all")
    with SolvingBar(progress, time_limit_s, unit="bytes") as bar:
        found = smallest_plan(
            problem, most_s, window=window, time_limit_s=time_limit_s, gap=gap, solver=solver, progress=bar
        )
    # The program counts the captured order. In another one a plan that recomputes nothing can be the smaller.
    fastest = fastest_plan(problem)
    if fastest is not None and most_s is not None and fastest.objective_s > most_s:
        fastest = None
    solution, placed = smallest_placed([found.solution, fastest], prepared.lowered)
    if found.solution.status != "interrupted":
        # Plans of least memory run nearly everything again, most of it for nothing.
        options = {"window": window, "time_limit_s": time_limit_s, "gap": gap, "solver": solver}
        solution, placed = _faster(prepared, solution, placed, progress, options)
    budget_bytes = problem.fixed_bytes + placed.layout.arena_bytes
    result = _result(prepared, budget_bytes, solution, placed)
    # Another order, or a step of several requests, which are laid out as they come, can need less than the program.
    bound_bytes = min(found.bound_bytes, budget_bytes)
    gap_bytes = (budget_bytes - bound_bytes) / budget_bytes
    summary = {**result.summary, "bound_s": None, "gap": gap_bytes, "bound_bytes": bound_bytes}
    return PlanResult(result.plan, summary, result.solution)


def _faster(
    prepared: Prepared, solution: Solution, placed: Placement, progress: bool, options: Mapping[str, Any]
) -> tuple[Solution, Placement]:
    """The fastest plan found within the gap of the memory of ``solution``; its status stays that of the search for
    memory, unless this one is interrupted."""
    budget_bytes = int((prepared.problem.fixed_bytes + placed.layout.arena_bytes) * (1 + options["gap"]))
    start = solution if solution.peak_bytes <= budget_bytes else None
    try:
        faster, other = fit(prepared.lowered, budget_bytes, "all", progress, {**options, "start": start})
    except InfeasibleBudget:
        return solution, placed
    except KeyboardInterrupt:
        return replace(solution, status="interrupted"), placed
    if faster.objective_s >= solution.objective_s:
        return solution, placed
    status = faster.status if faster.status == "interrupted" else solution.status
    return replace(faster, status=status, bound_scope=solution.bound_scope), other


def _result(prepared: Prepared, budget_bytes: int, solution: Solution, placed: Placement) -> PlanResult:
    made = Plan(
        budget_bytes=budget_bytes,
        arena_bytes=placed.layout.arena_bytes,
        arena_bound_bytes=placed.layout.bound_bytes,
        fixed_bytes=prepared.problem.fixed_bytes,
        fixed=prepared.lowered.fixed,
        steps=placed.unrolled.steps,
        buffers=placed.buffers,
        model=prepared.model,
        environment=prepared.environment,
        solver={
            "status": solution.status,
            "objective_s": solution.objective_s,
            "bound_s": solution.bound_s,
            "gap": solution.gap,
            "bound_scope": solution.bound_scope,
            "baseline_s": prepared.eager.objective_s,
            "baseline_peak_bytes": prepared.eager.peak_bytes,
            "eager_peak_bytes": prepared.eager_peak_bytes,
            "order": placed.ordered.method,
            "order_peak_bytes": placed.ordered.peak_bytes,
            "order_bound_bytes": placed.ordered.bound_bytes,
            "layout": placed.layout.method,
        },
    )
    verify(made)
    return PlanResult(made, _summary(made, solution, prepared.lowered), solution)


def baseline(problem: Problem) -> Solution:
    """Eager's step as the planner sees it: the first implementation of everything, nothing recomputed."""
    found = Solution(
        forward=tuple(Run(op.id, op.implementations[0].name) for op in problem.forward),
        stages=tuple(Stage((), op.id, op.implementations[0].name) for op in problem.backward),
        objective_s=0.0,
        bound_s=0.0,
        bound_scope="none",
        peak_bytes=0,
        status="baseline",
        build_s=0.0,
        solve_s=0.0,
    )
    played = replay(problem, found)
    return Solution(
        found.forward, found.stages, played.objective_s, 0.0, "none", played.peak_bytes, "baseline", 0.0, 0.0
    )


def _summary(made: Plan, solution: Solution, lowered: Lowered) -> dict[str, Any]:
    baseline_s = float(made.solver["baseline_s"])
    families: dict[str, Operator] = {
        op.name: op for op in (*lowered.catalogue.graph.forward, *lowered.catalogue.graph.backward)
    }
    choices: dict[str, Counter[str]] = {}
    for step in made.steps:
        op = families.get(step.node)
        family = "saved intermediate" if op is None else str(op.target).split(".")[1]
        choices.setdefault(family, Counter())[step.implementation] += 1
    recomputed = sum(len(stage.recompute) for stage in solution.stages)
    again = {run.operator for stage in solution.stages for run in stage.recompute}
    return {
        "status": solution.status,
        "budget_bytes": made.budget_bytes,
        "peak_bytes": made.peak_bytes,
        "arena_bytes": made.arena_bytes,
        "arena_bound_bytes": made.arena_bound_bytes,
        "fixed_bytes": made.fixed_bytes,
        "fixed": dict(made.fixed),
        "baseline_s": baseline_s,
        "baseline_peak_bytes": made.solver["baseline_peak_bytes"],
        "eager_peak_bytes": made.solver["eager_peak_bytes"],
        "objective_s": solution.objective_s,
        "overhead": solution.objective_s / baseline_s - 1.0,
        "bound_s": solution.bound_s,
        "gap": solution.gap,
        "bound_scope": solution.bound_scope,
        "order": {
            "method": made.solver["order"],
            "peak_bytes": made.solver["order_peak_bytes"],
            "bound_bytes": made.solver["order_bound_bytes"],
        },
        "build_s": solution.build_s,
        "solve_s": solution.solve_s,
        "kept": len(solution.forward) - len(again),
        "recomputed": recomputed,
        "choices": {family: dict(counts.most_common()) for family, counts in sorted(choices.items())},
    }

"""Planning from Python: a model, sample inputs and a budget make a plan."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from monet.byte_count import ByteBudget, format_bytes, parse_budget
from monet.capture import capture
from monet.errors import InfeasibleBudget
from monet.executor.inputs import describe_inputs
from monet.graph import Operator
from monet.lowering import ALIGNMENT, Lowered, lower
from monet.ops.catalogue import catalogue
from monet.ops.profiling import profile
from monet.ops.sparse import DENSITY
from monet.planfile import Plan
from monet.planner.layout import Layout, Lifetime, layout
from monet.planner.problem import Problem
from monet.planner.replay import replay
from monet.planner.schedules import SCHEDULES, STORAGE, schedule
from monet.planner.smallest import smallest_plan
from monet.planner.solution import Run, Solution, Stage
from monet.planner.solvers import Progress
from monet.planner.variants import restrict
from monet.planner.verify import verify
from monet.profile import ProfileCache
from monet.solving_bar import SolvingBar
from monet.unroll import Unrolled, place, unroll

logger = logging.getLogger(__name__)

# A layout may be a little larger than the program's peak; then the program gets that much less, so often.
TRIES = 4


@dataclass(frozen=True)
class PlanResult:
    """``summary``: what ``monet plan --json`` writes; its keys are documented in ``monet.summary``."""

    plan: Plan
    summary: Mapping[str, Any]
    solution: Solution


@dataclass(frozen=True)
class Prepared:
    """A captured and measured step, before any budget. ``eager``: how PyTorch itself would run it.

    ``model`` and ``environment``: what a plan must be used with.
    """

    lowered: Lowered
    eager: Solution
    model: Mapping[str, Any]
    environment: Mapping[str, Any]

    @property
    def problem(self) -> Problem:
        return self.lowered.problem


def plan(
    model: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    budget: str | int,
    **options: Any,
) -> Plan:
    """Plan one training step of ``model`` on inputs shaped like ``args`` and ``kwargs``.

    ``budget``: bytes, or text as ``"6GB"``, ``"5.5GiB"``, ``"50%"`` (of eager's peak). It counts
    parameters, buffers, gradients, inputs, outputs, activations and temporaries; see ``plan_model``
    for the options. Raises ``InfeasibleBudget``, ``CaptureError`` or ``SolverError``.
    """
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
    cache: bool = True,
    progress: bool = False,
    seed: int = 0,
) -> PlanResult:
    """Plan and report: ``prepare``, then ``plan_prepared``; their options are described there.

    The model is not changed: neither its parameters, nor its buffers, nor the random state.
    """
    prepared = prepare(
        model, args, kwargs, reserve_bytes=reserve_bytes, exact=exact, storage=STORAGE.get(variant, ()), cache=cache,
        progress=progress, seed=seed,
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
    storage: Collection[str] = (),
    density: float = DENSITY,
    cache: bool = True,
    progress: bool = False,
    seed: int = 0,
) -> Prepared:
    """Capture a training step and measure its operators: all that comes before a budget.

    ``reserve_bytes``: part of any budget that monet must leave to others (optimiser state). ``exact``:
    only implementations that equal eager's bit by bit. ``storage``: compressed storages to offer besides, see
    ``planner.schedules.STORAGE``, and ``density``, the share of non-zero values that ``sparse`` has room for.
    ``cache``: read and write measurements of earlier runs. ``seed`` is recorded.
    """
    captured = capture(model, args, kwargs)
    offers = catalogue(captured.graph, exact=exact, storage=frozenset(storage), density=density)
    store = ProfileCache() if cache else None
    try:
        profiled = profile(offers, cache=store, progress=progress)
    finally:
        if store is not None:
            store.close()
    lowered = lower(offers, profiled, name=type(model).__name__, reserve_bytes=reserve_bytes)
    return Prepared(
        lowered=lowered,
        eager=baseline(lowered.problem),
        model={
            "name": type(model).__name__,
            "fingerprint": captured.graph.fingerprint(),
            "inputs": describe_inputs(args, kwargs),
            "training": [module.training for module in model.modules()],
            "exact": exact,
            "seed": seed,
            **({"storage": sorted(storage), "density": density} if storage else {}),
        },
        environment={
            "torch": torch.__version__,
            "profile": profiled.environment,
            "threads": torch.get_num_threads(),
            "device": str(next(iter(captured.graph.values.values())).device),
        },
    )


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
    laid_out = _solve(prepared.lowered, budget_bytes, variant, progress, options)
    return _result(prepared, budget_bytes, *laid_out)


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
    """The plan of least memory; its budget is what it needs.

    ``max_overhead``: predicted seconds beyond eager's, relative (0.1: 10 %); None: any. The bound on memory is
    ``summary["bound_bytes"]``. Other options as for ``plan_prepared``.
    """
    most_s = None if max_overhead is None else prepared.eager.objective_s * (1.0 + max_overhead)
    problem = restrict(prepared.problem, "all")
    with SolvingBar(progress, time_limit_s, unit="bytes") as bar:
        found = smallest_plan(
            problem, most_s, window=window, time_limit_s=time_limit_s, gap=gap, solver=solver, progress=bar
        )
    unrolled, placed = _lay_out(found.solution, prepared.lowered, found.solution.peak_bytes)
    budget_bytes = problem.fixed_bytes + placed.arena_bytes
    result = _result(prepared, budget_bytes, found.solution, unrolled, placed)
    # A step of several requests is laid out as they come, so an arena can be below the program's peak.
    bound_bytes = min(found.bound_bytes, budget_bytes)
    gap_bytes = (budget_bytes - bound_bytes) / budget_bytes
    summary = {**result.summary, "bound_s": None, "gap": gap_bytes, "bound_bytes": bound_bytes}
    return PlanResult(result.plan, summary, result.solution)


def _result(
    prepared: Prepared, budget_bytes: int, solution: Solution, unrolled: Unrolled, placed: Layout
) -> PlanResult:
    made = Plan(
        budget_bytes=budget_bytes,
        arena_bytes=placed.arena_bytes,
        arena_bound_bytes=placed.bound_bytes,
        fixed_bytes=prepared.problem.fixed_bytes,
        fixed=prepared.lowered.fixed,
        steps=unrolled.steps,
        buffers=place(unrolled, placed.offsets),
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
            "layout": placed.method,
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


def _lay_out(solution: Solution, lowered: Lowered, budget_bytes: int) -> tuple[Unrolled, Layout]:
    """A place for every buffer; the search for a better one ends when they fit in what the fixed bytes leave."""
    unrolled = unroll(solution, lowered)
    lifetimes = [Lifetime(b.id, b.bytes, b.begin, b.end) for b in unrolled.buffers]
    capacity_bytes = max(0, budget_bytes - lowered.problem.fixed_bytes)
    placed = layout(lifetimes, alignment=ALIGNMENT, capacity_bytes=capacity_bytes)
    if placed.interrupted:  # there is no plan that fits yet
        raise KeyboardInterrupt
    return unrolled, placed


def _solve(
    lowered: Lowered, budget_bytes: int, variant: str, progress: bool | Progress, options: Mapping[str, Any]
) -> tuple[Solution, Unrolled, Layout]:
    """Solve, unroll and lay out until the arena fits beside the fixed bytes."""
    problem = lowered.problem
    target, excess = budget_bytes, 0
    for _ in range(TRIES):
        try:
            with SolvingBar(progress is True, options["time_limit_s"]) as bar:
                told = progress if callable(progress) else bar
                solution = schedule(variant, problem, target, progress=told, **options)
        except InfeasibleBudget:
            if excess == 0:
                raise
            break
        unrolled, placed = _lay_out(solution, lowered, budget_bytes)
        excess = problem.fixed_bytes + placed.arena_bytes - budget_bytes
        if excess <= 0:
            return solution, unrolled, placed
        logger.info("the arena is %d bytes over the budget; solving again with that much less", excess)
        target -= excess
    raise InfeasibleBudget(
        f"a plan for {format_bytes(budget_bytes)} exists only without fragmentation: the best arena found is {excess} "
        f"bytes too large; raise the budget by that much, to {budget_bytes + excess} bytes",
        budget_bytes + excess,
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
        "objective_s": solution.objective_s,
        "overhead": solution.objective_s / baseline_s - 1.0,
        "bound_s": solution.bound_s,
        "gap": solution.gap,
        "bound_scope": solution.bound_scope,
        "build_s": solution.build_s,
        "solve_s": solution.solve_s,
        "kept": len(solution.forward) - len(again),
        "recomputed": recomputed,
        "choices": {family: dict(counts.most_common()) for family, counts in sorted(choices.items())},
    }

"""What ``monet plan`` says of a plan, to people and as data; docs/summary-format.md is its table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from monet.planner.channel import Traffic
from monet.planner.construction.kept import next_peak_bytes
from monet.planner.replay import replay

if TYPE_CHECKING:
    from monet.pipeline.lowering import Lowered
    from monet.planner.problem import Problem, SecondMemory
    from monet.planner.solution import Runs, Solution
    from monet.plans.plan import Plan


@dataclass(frozen=True, slots=True)
class OrderSummary:
    """The order of a plan's runs: what its arena needs, counted by whole runs, and what it needs in any order."""

    method: str
    peak_bytes: int
    bound_bytes: int


@dataclass(frozen=True, slots=True)
class SecondMemorySummary:
    """What a plan moves to a second memory, what that takes, and which rates (bytes a second) it was planned with."""

    moved: int
    moved_bytes: int
    written_bytes: int
    read_bytes: int
    hidden_bytes: int
    waited_s: float
    write_rate: float
    read_rate: float
    mode: str

    def as_measured(self, second: SecondMemory, waited_s: float) -> SecondMemorySummary:
        """With the rates of ``second``, and what a step is measured to wait."""
        copy_s = second.write_s(self.written_bytes) + second.read_s(self.read_bytes)
        hidden_bytes = Traffic(self.written_bytes, self.read_bytes, copy_s, waited_s, 0.0).hidden_bytes
        return replace(
            self, write_rate=second.write_rate, read_rate=second.read_rate, waited_s=waited_s, hidden_bytes=hidden_bytes
        )


@dataclass(frozen=True, slots=True)
class Summary:
    """A plan, or the schedule of a published profile. Each field is described in docs/summary-format.md.

    Fields without a default are there for every plan; ``bound_s`` and ``gap`` are None where nothing was proven. The
    others are None where the kind of plan has no such figure.
    """

    status: str
    budget_bytes: int
    peak_bytes: int
    fixed_bytes: int
    baseline_s: float
    baseline_peak_bytes: int
    objective_s: float
    overhead: float
    bound_s: float | None
    gap: float | None
    bound_scope: str | None
    build_s: float
    solve_s: float
    recomputed: int
    name: str | None = None
    variant: str | None = None
    batch: int | None = None
    batches_tried: Mapping[int, bool] | None = None
    arena_bytes: int | None = None
    arena_bound_bytes: int | None = None
    fixed: Mapping[str, int] | None = None
    eager_peak_bytes: int | None = None
    eager_memory_s: float | None = None
    bound_bytes: int | None = None
    order: OrderSummary | None = None
    kept: int | None = None
    next_peak_bytes: int | None = None
    choices: Mapping[str, Mapping[str, int]] | None = None
    columns: int | None = None
    rows: int | None = None
    stages: Sequence[Mapping[str, Any]] | None = None
    second_memory: SecondMemorySummary | None = None
    measured: Mapping[str, Mapping[str, float | int | None]] | None = None

    def as_json(self) -> dict[str, Any]:
        """As ``monet plan --json`` writes it: a field that is None is left out, unless every plan has it."""
        always = {field.name for field in fields(self) if field.default is MISSING}
        return {name: value for name, value in asdict(self).items() if value is not None or name in always}


def plan_summary(plan: Plan, solution: Solution, lowered: Lowered, traffic: Traffic | None = None) -> Summary:
    """The summary of a model's plan, which was made of ``solution``. ``traffic``: as of ``Placement``."""
    baseline_s = float(plan.solver["baseline_s"])
    again = {run.operator for stage in solution.runs.stages for run in stage.recompute}
    return Summary(
        status=solution.status,
        budget_bytes=plan.budget_bytes,
        peak_bytes=plan.peak_bytes,
        arena_bytes=plan.arena_bytes,
        arena_bound_bytes=plan.arena_bound_bytes,
        fixed_bytes=plan.fixed_bytes,
        fixed=dict(plan.fixed),
        baseline_s=baseline_s,
        baseline_peak_bytes=plan.solver["baseline_peak_bytes"],
        eager_peak_bytes=plan.solver["eager_peak_bytes"],
        eager_memory_s=plan.solver.get("eager_memory_s"),
        objective_s=solution.objective_s,
        overhead=solution.objective_s / baseline_s - 1.0,
        bound_s=solution.bound_s or None,
        gap=solution.gap if solution.bound_s else None,
        bound_scope=solution.bound_scope,
        order=OrderSummary(plan.solver["order"], plan.solver["order_peak_bytes"], plan.solver["order_bound_bytes"]),
        build_s=solution.build_s,
        solve_s=solution.solve_s,
        kept=len(solution.runs.forward) - len(again),
        recomputed=sum(len(stage.recompute) for stage in solution.runs.stages),
        next_peak_bytes=next_peak_bytes(lowered.problem, solution.runs)
        if again and solution.status != "interrupted"
        else None,
        choices=_choices(plan, lowered),
        second_memory=second_memory_summary(lowered.problem, solution.runs, traffic, _carried_bytes(lowered)),
    )


def _carried_bytes(lowered: Lowered) -> list[int]:
    return [lowered.catalogue.values[name].storage_bytes for name in sorted(lowered.carried)]


def second_memory_summary(
    problem: Problem, runs: Runs, traffic: Traffic | None = None, carried_bytes: Sequence[int] = ()
) -> SecondMemorySummary | None:
    """What the runs move; None where there is no second memory. ``traffic``: where more is copied than what the runs
    move; ``carried_bytes``: of each such tensor."""
    second, traffic = problem.second, traffic or replay(problem, runs).traffic
    if second is None or traffic is None:
        return None
    size = {tensor.id: tensor.bytes for tensor in problem.tensors}
    moved = [*(size[name] for name in runs.moved), *carried_bytes]
    return SecondMemorySummary(
        len(moved), sum(moved), traffic.written_bytes, traffic.read_bytes,
        traffic.hidden_bytes, traffic.waited_s, second.write_rate, second.read_rate, second.mode,
    )  # fmt: skip


def _choices(plan: Plan, lowered: Lowered) -> dict[str, dict[str, int]]:
    """Family of operators → implementation → how often the plan runs it, most often first."""
    graph = lowered.catalogue.graph
    operators = {op.name: op for op in (*graph.forward, *graph.backward)}
    counts: dict[str, Counter[str]] = {}
    for step in plan.steps:
        if step.place is not None:
            continue  # a copy
        op = operators.get(step.node)
        family = "saved intermediate" if op is None else str(op.target).split(".")[1]
        counts.setdefault(family, Counter())[step.implementation] += 1
    return {family: dict(used.most_common()) for family, used in sorted(counts.items())}

"""What a plan's summary says; docs/summary-format.md describes it."""

from __future__ import annotations

from collections import Counter
from typing import Any

from monet.graph import Operator
from monet.pipeline.lowering import Lowered
from monet.planner.solution import Solution
from monet.plans.plan import Plan


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
    recomputed = sum(len(stage.recompute) for stage in solution.runs.stages)
    again = {run.operator for stage in solution.runs.stages for run in stage.recompute}
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
        "kept": len(solution.runs.forward) - len(again),
        "recomputed": recomputed,
        "choices": {family: dict(counts.most_common()) for family, counts in sorted(choices.items())},
    }

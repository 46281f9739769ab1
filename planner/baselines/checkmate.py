"""Checkmate (Jain et al., MLSys 2020): optimal recomputation of defaults, and the same with the fastest algorithms."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from monet.planner.ablation import restrict
from monet.planner.baselines.runs import cheapest, replayed
from monet.planner.problem import (
    BackwardImplementation,
    ForwardImplementation,
    ForwardOperator,
    Problem,
    recompute_cost,
)
from monet.planner.replay import Moment, replay
from monet.planner.search import Solving, plan_problem
from monet.planner.solution import Run, Solution, Stage


def checkmate_d(problem: Problem, budget_bytes: int, solving: Solving | None = None, **options: Any) -> Solution:
    """Optimal recomputation of the default implementations (Jain et al., Checkmate, MLSys 2020).

    Solves the variant ``none``: Checkmate's decisions are its own, what is in memory and what runs again
    before each operator. Other arguments: of ``plan_problem``; status and bound are its.

    Raises:
        InfeasibleBudget: as ``plan_problem``.
        SolverError: as ``plan_problem``.
    """
    return plan_problem(restrict(problem, "none"), budget_bytes, solving, **options)


def checkmate_o(problem: Problem, budget_bytes: int, solving: Solving | None = None, **options: Any) -> Solution:
    """Checkmate's plan, then for every run the fastest algorithm whose workspace fits at that moment.

    As in MONeT's comparison ("Checkmate-O"): the plan is made without knowing of the choice. A workspace
    is in memory during its own run only, so each run is decided by itself, and exactly.

    Raises:
        InfeasibleBudget: as ``plan_problem``.
        SolverError: as ``plan_problem``.
    """
    plan = checkmate_d(problem, budget_bytes, solving, **options)
    return fastest_algorithms(problem, budget_bytes, plan)


def fastest_algorithms(problem: Problem, budget_bytes: int, plan: Solution) -> Solution:
    """``plan`` with each default replaced by the fastest algorithm of the variant ``conv`` that fits there."""
    offered = restrict(problem, "conv")
    moments = iter(replay(problem, plan.runs).moments)
    operators = {operator.id: operator for operator in offered.forward}

    def run(old: Run, again: bool) -> Run:
        room = budget_bytes - next(moments).bytes
        for _ in old.intermediates:
            next(moments)
        return replace(old, implementation=_fastest_forward(operators[old.operator], old.implementation, room, again))

    begun = time.monotonic()
    forward = tuple(run(old, False) for old in plan.runs.forward)
    stages = []
    for operator, stage in zip(offered.backward, plan.runs.stages, strict=True):
        recompute = tuple(run(old, True) for old in stage.recompute)
        chosen = _fastest_backward(operator.implementations, stage.implementation, next(moments), budget_bytes)
        stages.append(Stage(recompute, operator.id, chosen))
    found = replayed(problem, forward, stages, begun)
    found = replace(found, build_s=plan.build_s + found.build_s, solve_s=plan.solve_s)
    return cheapest(problem, "Checkmate's plan", budget_bytes, [found])


def _fastest_forward(operator: ForwardOperator, name: str, room: int, again: bool) -> str:
    """``room``: bytes left beside the run by implementation ``name``."""

    def cost(q: ForwardImplementation) -> tuple[float, int]:
        return recompute_cost(q) if again else (q.time_s, q.workspace_bytes)

    old = next(q for q in operator.implementations if q.name == name)
    candidates = [
        q
        for q in operator.implementations
        # Reading other saved tensors would change what must be kept for it.
        if cost(q)[1] - q.aliased_bytes <= cost(old)[1] - old.aliased_bytes + room
        and q.overwrites == old.overwrites
        and set(q.recompute_reads) == set(old.recompute_reads)
    ]
    return min(candidates, key=lambda q: cost(q)).name


def _fastest_backward(
    implementations: Sequence[BackwardImplementation], name: str, moment: Moment, budget_bytes: int
) -> str:
    old = next(q for q in implementations if q.name == name)
    room = budget_bytes - moment.bytes + old.workspace_bytes - old.aliased_bytes
    candidates = [q for q in implementations if q.workspace_bytes - q.aliased_bytes <= room]
    return min(candidates, key=lambda q: (q.time_s, q.workspace_bytes)).name

"""Parts of the baselines: runs of a step in one pass, their exact cost, and whether they fit."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from monet.errors import InfeasibleBudget
from monet.planner.problem import BackwardImplementation, Intermediate, Problem
from monet.planner.replay import replay
from monet.planner.solution import Run, Runs, Solution, Stage


def forward_runs(problem: Problem, made: Mapping[str, Sequence[Intermediate]]) -> tuple[Run, ...]:
    """Every forward operator by its default, with its intermediates."""
    return tuple(Run(o.id, o.implementations[0].name, tuple(v.id for v in made.get(o.id, ()))) for o in problem.forward)


def stages_without_recomputation(
    problem: Problem, chosen: Sequence[BackwardImplementation] | None = None
) -> tuple[Stage, ...]:
    """Every backward operator by the chosen implementation or its default; nothing runs again."""
    chosen = [o.implementations[0] for o in problem.backward] if chosen is None else chosen
    return tuple(Stage((), o.id, q.name) for o, q in zip(problem.backward, chosen, strict=True))


def made_in_forward(
    problem: Problem, chosen: Sequence[BackwardImplementation] | None = None
) -> dict[str, list[Intermediate]]:
    """The intermediates that the backward pass reads, by operator."""
    chosen = [o.implementations[0] for o in problem.backward] if chosen is None else chosen
    read = {name for q in chosen for name in q.reads}
    made: dict[str, list[Intermediate]] = {}
    for v in problem.intermediates:
        if v.id in read:
            made.setdefault(v.operator, []).append(v)
    return made


def replayed(problem: Problem, forward: Sequence[Run], stages: Sequence[Stage], begun: float) -> Solution:
    """The runs as a solution with their exact cost."""
    runs = Runs(tuple(forward), tuple(stages))
    cost = replay(problem, runs)
    return Solution(runs, cost.objective_s, cost.peak_bytes, build_s=time.monotonic() - begun)


def one_pass(
    problem: Problem, what: str, budget_bytes: int, forward: Sequence[Run], stages: Sequence[Stage], begun: float
) -> Solution:
    """The runs as a solution; raises as ``cheapest``."""
    return cheapest(problem, what, budget_bytes, [replayed(problem, forward, stages, begun)])


def cheapest(problem: Problem, what: str, budget_bytes: int, found: Sequence[Solution]) -> Solution:
    """The fastest of these that fits; ``what`` made them, for people.

    Raises:
        InfeasibleBudget: none fits; it has the smallest peak among them.
    """
    fits = [plan for plan in found if plan.peak_bytes <= budget_bytes]
    if fits:
        return min(fits, key=lambda plan: (plan.objective_s, plan.peak_bytes))
    smallest = min(found, key=lambda plan: plan.peak_bytes)
    raise InfeasibleBudget(
        (f"No plan of {problem.name} by {what} fits in ", budget_bytes, "."),
        smallest.peak_bytes,
        advice="that budget, or a variant that plans for the budget",
        smallest_plan=smallest,
    )

"""PyTorch's own step: everything is kept."""

from __future__ import annotations

import time

from monet.planner.baselines.runs import forward_runs, made_in_forward, one_pass, stages_without_recomputation
from monet.planner.problem import Problem
from monet.planner.solution import Solution


def keep_all(problem: Problem, budget_bytes: int) -> Solution:
    """PyTorch as it is: every default once, and all that the defaults' backward reads is kept.

    Raises:
        InfeasibleBudget: it needs more than ``budget_bytes``, fixed bytes included.
    """
    begun = time.monotonic()
    made = made_in_forward(problem)
    forward, stages = forward_runs(problem, made), stages_without_recomputation(problem)
    return one_pass(problem, "keeping everything", budget_bytes, forward, stages, begun)

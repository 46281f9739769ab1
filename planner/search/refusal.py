"""What is said where no plan fits."""

from __future__ import annotations

import time

from monet.errors import InfeasibleBudget
from monet.planner.construction.first_plans import smallest_budget
from monet.planner.problem import Problem


def refusal(problem: Problem, budget_bytes: int, status: str, scope: str, time_limit_s: float) -> InfeasibleBudget:
    """Why no plan fits ``budget_bytes``, with the smallest budget known to work, looked for up to ``time_limit_s``.

    ``status``: of the search that found none; ``infeasible`` is a proof, for ``scope``.
    """
    known = smallest_budget(problem, time.monotonic() + time_limit_s)
    if known is None:
        return InfeasibleBudget(
            f"No plan fits in {human(budget_bytes)}, and no plan of {problem.name} is known at all: something the "
            "backward pass needs can neither be kept nor made again."
        )
    smallest, plan = known
    size = f"{human(budget_bytes)}, {human(problem.fixed_bytes)} of which hold what is there in any plan"
    advice = "that budget or more, or a smaller batch"
    if budget_bytes < problem.fixed_bytes:
        what = (
            f"No plan of {problem.name} fits in {human(budget_bytes)}: what is there in any plan (parameters, their "
            f"gradients, inputs, outputs) takes {human(problem.fixed_bytes)}."
        )
        advice = "that budget or more"
    elif status == "infeasible":
        what = f"No plan of {problem.name} fits in {size}: proven for {scope}."
        advice += ", or a larger window" if scope.startswith("window") else ""
    else:
        what = f"No plan of {problem.name} that fits in {size}, was found in {time_limit_s:g} s."
        advice += ", a larger window, or a longer time limit"
    return InfeasibleBudget(what, smallest, advice=advice, smallest_plan=plan)


def human(count: int) -> str:
    """Bytes as MiB where that says something, and exactly."""
    return f"{count / 2**20:,.1f} MiB ({count:,} bytes)" if count >= 2**20 else f"{count:,} bytes"

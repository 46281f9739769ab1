"""What is said where no plan fits."""

from __future__ import annotations

import time

from monet.errors import InfeasibleBudget, Sentence
from monet.planner.construction.first_plans import smallest_budget
from monet.planner.problem import Problem
from monet.planner.solution import Solution

ORDERED = "every plan in the order that is counted"
REFUSAL_SHARE = 0.25
"""Of the time limit: how long the smallest budget is looked for, at most, where no plan fits."""


def refusal(
    problem: Problem,
    budget_bytes: int,
    status: str,
    scope: str,
    time_limit_s: float,
    scope_needs_bytes: int | None = None,
    *,
    known: tuple[int, Solution] | None = None,
) -> InfeasibleBudget:
    """Why no plan fits ``budget_bytes``, with the smallest budget known to work, looked for in a part of the time.

    ``status``: of the search that found none; ``infeasible`` is a proof. ``scope``: the plans that the refusal is
    about; ``scope_needs_bytes``: what each of them needs, if known. ``known``: as
    ``smallest_budget`` returned it, where it was already asked.
    """
    known = known or smallest_budget(problem, time.monotonic() + REFUSAL_SHARE * time_limit_s)
    if known is None:
        reason: Sentence = (
            "No plan fits in ", budget_bytes, f", and no plan of {problem.name} is known at all: something the "
            "backward pass needs can neither be kept nor made again.",
        )  # fmt: skip
        return InfeasibleBudget(reason)
    smallest, plan = known
    size: Sentence = (budget_bytes, ", ", problem.fixed_bytes, " of which hold what is there in any plan")
    advice, counted = "that budget or more, or a smaller batch", None
    if budget_bytes < problem.fixed_bytes:
        reason = (
            f"No plan of {problem.name} fits in ", budget_bytes, ": what is there in any plan (parameters, inputs, "
            "outputs) takes ", problem.fixed_bytes, ".",
        )  # fmt: skip
        advice = "that budget or more"
    elif status == "infeasible":
        needed: Sentence = () if scope_needs_bytes is None else (", which needs ", scope_needs_bytes)
        counted = scope_needs_bytes
        of = ORDERED if scope == "full" else scope
        reason = (f"No plan of {problem.name} fits in ", *size, f": proven for {of}", *needed, ".")
        advice += ", or a larger window" if scope.startswith("window") else ""
    else:
        reason = (f"No plan of {problem.name} that fits in ", *size, f", was found in {time_limit_s:g} s.")
        advice += ", a larger window, or a longer time limit"
    return InfeasibleBudget(reason, smallest, advice=advice, smallest_plan=plan, counted_bytes=counted)

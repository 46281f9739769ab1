"""Every way to plan a step, by name: MONeT's ablation and the baselines that it is compared with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from monet.errors import ConfigError
from monet.planner.ablation import restrict
from monet.planner.baselines.checkmate import checkmate_d, checkmate_o
from monet.planner.baselines.gist import gist
from monet.planner.baselines.pytorch import keep_all
from monet.planner.baselines.segments import sqrt_n
from monet.planner.problem import Problem
from monet.planner.progress import Progress
from monet.planner.search import Solving, plan_problem
from monet.planner.solution import Runs, Solution

Planner = Callable[..., Solution]
"""``(problem, budget_bytes) -> Solution``, or with the arguments of ``plan_problem``."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """``solves``: whether ``plan`` takes the options of ``plan_problem`` and solves a 0-1 program; the
    others follow a fixed policy in milliseconds and take none."""

    name: str
    description: str
    plan: Planner
    solves: bool


def _variant(problem: Problem, budget_bytes: int, solving: Solving | None, *, variant: str, **options: Any) -> Solution:
    return plan_problem(restrict(problem, variant), budget_bytes, solving, **options)


_DESCRIPTIONS = {
    "none": "recomputation alone, every operator by its default (MONeT-NoOp)",
    "conv": "recomputation and the choice of algorithms",
    "output-activated": "recomputation and backward operators that read the output for the input, or the reverse",
    "intermediate-activated": "recomputation and backward operators that read sign bits or pool indices",
    "in-place": "recomputation and operators that overwrite an input",
    "all": "everything at once: MONeT",
}

ABLATION = tuple(_DESCRIPTIONS)
"""MONeT's variants, from recomputation alone to everything."""

_BASELINES = (
    Schedule("pytorch", "everything kept, every operator by its default", keep_all, False),
    Schedule("sqrt-n", "segments, each run again once (Chen et al. 2016)", sqrt_n, False),
    Schedule("checkmate-d", "optimal recomputation of defaults (Checkmate, Jain et al. 2020)", checkmate_d, True),
    Schedule("checkmate-o", "Checkmate's plan, then the fastest algorithms that fit it", checkmate_o, True),
    Schedule("gist", "encoded feature maps, nothing recomputed (Gist, Jain et al. 2018)", gist, False),
    Schedule("gist-reduced", "the same with 16-bit copies: changes gradients", partial(gist, reduced=True), False),
)

STORAGE: Mapping[str, frozenset[str]] = {"gist": frozenset({"sparse"}), "gist-reduced": frozenset({"sparse", "half"})}
"""Compressed storages that a schedule needs and the others do not use: they are measured only for it."""

BASELINES = tuple(baseline.name for baseline in _BASELINES)
"""What MONeT is compared with."""

SCHEDULES: Mapping[str, Schedule] = {
    **{name: Schedule(name, text, partial(_variant, variant=name), True) for name, text in _DESCRIPTIONS.items()},
    **{baseline.name: baseline for baseline in _BASELINES},
}


def schedule(
    name: str,
    problem: Problem,
    budget_bytes: int,
    solving: Solving | None = None,
    *,
    start: Runs | None = None,
    progress: Progress | None = None,
) -> Solution:
    """Plans ``problem`` for ``budget_bytes`` by the schedule ``name``; other arguments are those of ``plan_problem``.

    A schedule that solves nothing heeds none of them.

    Raises:
        ConfigError: there is no such schedule.
        InfeasibleBudget: the schedule does not fit, or no plan was found.
        SolverError: the solver is missing or fails.
    """
    if name not in SCHEDULES:
        raise ConfigError(f"there is no schedule {name!r}; choose one of {', '.join(SCHEDULES)}")
    found = SCHEDULES[name]
    if not found.solves:
        return found.plan(problem, budget_bytes)
    return found.plan(problem, budget_bytes, solving, start=start, progress=progress)

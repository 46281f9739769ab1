"""Every variant, by name: MONeT (``monet``), the parts of it, and the baselines that it is compared with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from monet.errors import ConfigError
from monet.planner.ablation import MONET, restrict
from monet.planner.baselines.checkmate import checkmate_d, checkmate_o
from monet.planner.baselines.checkpoint import block, selective, sqrt_n_blocks
from monet.planner.baselines.gist import gist
from monet.planner.baselines.pytorch import keep_all
from monet.planner.baselines.segments import sqrt_n
from monet.planner.problem import ASYNCHRONOUS, MODES, STATIC, SYNCHRONOUS, Problem
from monet.planner.progress import Progress
from monet.planner.search import Solving, plan_problem
from monet.planner.solution import Runs, Solution

Planner = Callable[..., Solution]
"""``(problem, budget_bytes) -> Solution``, or with the arguments of ``plan_problem``."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to plan a step: what a user picks.

    ``description``: one line. ``solves``: whether ``plan`` takes the options of ``plan_problem`` and solves a 0-1
    program; the others follow a fixed policy in milliseconds and take none.
    """

    name: str
    description: str
    plan: Planner
    solves: bool


def _plan_part(
    problem: Problem, budget_bytes: int, solving: Solving | None, *, variant: str, **options: Any
) -> Solution:
    return plan_problem(restrict(problem, variant), budget_bytes, solving, **options)


MOVE, MOVE_ONLY = "monet+move", "move-only"
"""MONeT's program with a second memory: kept, made again or moved; and nothing made again."""


def _plan_moving(
    problem: Problem, budget_bytes: int, solving: Solving | None, *, recompute: bool = False, **options: Any
) -> Solution:
    if problem.second is None:
        raise ConfigError("this variant moves tensors to a second memory, and there is none: give one with --offload")
    problem = restrict(problem, MONET)
    if not recompute:
        problem = replace(problem, forward=tuple(replace(o, recomputable=False) for o in problem.forward))
    return plan_problem(problem, budget_bytes, solving, **options)


_DESCRIPTIONS = {
    "none": "recomputation alone, every operator by its default (MONeT-NoOp)",
    "conv": "recomputation and the choice of algorithms",
    "output-activated": "recomputation and backward operators that read the output for the input, or the reverse",
    "intermediate-activated": "recomputation and backward operators that read sign bits or pool indices",
    "in-place": "recomputation and operators that overwrite an input",
    MONET: "everything at once: MONeT",
}

ABLATION = tuple(_DESCRIPTIONS)
"""The parts of MONeT, from recomputation alone to everything."""

_BASELINES = (
    Variant("pytorch", "everything kept, every operator by its default", keep_all, False),
    Variant("sqrt-n", "segments, each run again once (Chen et al. 2016)", sqrt_n, False),
    Variant("block", "every repeated block run again once (torch.utils.checkpoint)", block, False),
    Variant("sqrt-n-blocks", "groups of repeated blocks, each run again once", sqrt_n_blocks, False),
    Variant("selective", "as block, results of products, attention and convolutions kept", selective, False),
    Variant("checkmate-d", "optimal recomputation of defaults (Checkmate, Jain et al. 2020)", checkmate_d, True),
    Variant("checkmate-o", "Checkmate's plan, then the fastest algorithms that fit it", checkmate_o, True),
    Variant("gist", "encoded feature maps, nothing recomputed (Gist, Jain et al. 2018)", gist, False),
    Variant("gist-reduced", "Gist's and 16-bit copies: changes gradients", partial(gist, reduced=True), False),
)

STORAGE: Mapping[str, frozenset[str]] = {"gist": frozenset({"sparse"}), "gist-reduced": frozenset({"sparse", "half"})}
"""Compressed storages that a variant needs and the others do not use: they are measured only for it."""

_MOVING = (
    Variant(
        MOVE,
        "everything, and tensors moved to a second memory (--offload)",
        partial(_plan_moving, recompute=True),
        True,
    ),
    Variant(MOVE_ONLY, "tensors moved, nothing recomputed", _plan_moving, True),
    Variant(
        ASYNCHRONOUS, "the same: copies beside operators (AutoTM, Hildebrand et al. 2020)",
        _plan_moving, True,
    ),
    Variant(
        SYNCHRONOUS, "tensors moved by copies that the step waits for (AutoTM)",
        _plan_moving, True,
    ),
    Variant(
        STATIC, "tensors that live in the second memory, where operators use them (AutoTM)",
        _plan_moving, True,
    ),
)  # fmt: skip

MOVING = tuple(variant.name for variant in _MOVING)
"""What needs a second memory."""

BASELINES = tuple(baseline.name for baseline in _BASELINES)
"""What MONeT is compared with."""

VARIANTS: Mapping[str, Variant] = {
    **{name: Variant(name, text, partial(_plan_part, variant=name), True) for name, text in _DESCRIPTIONS.items()},
    **{variant.name: variant for variant in _MOVING},
    **{baseline.name: baseline for baseline in _BASELINES},
}


def as_planned(problem: Problem, variant: str) -> Problem:
    """The problem that a variant's plans are replayed on: without a second memory, or with one that is used as the
    variant does."""
    second = problem.second
    if second is None or variant not in MOVING:
        return problem if second is None else replace(problem, second=None)
    return replace(problem, second=replace(second, mode=variant)) if variant in MODES else problem


def moving_variant(name: str) -> str:
    """The variant that does what ``name`` does, and moves."""
    return MOVE if name == MONET else name


def plan_variant(
    variant: str,
    problem: Problem,
    budget_bytes: int,
    solving: Solving | None = None,
    *,
    start: Runs | None = None,
    enough_s: float | None = None,
    progress: Progress | None = None,
) -> Solution:
    """Plans ``problem`` for ``budget_bytes`` by ``variant``; other arguments are those of ``plan_problem``.

    A variant that solves nothing heeds none of them.

    Raises:
        ConfigError: there is no such variant.
        InfeasibleBudget: the variant's plan does not fit, or no plan was found.
        SolverError: the solver is missing or fails.
    """
    if variant not in VARIANTS:
        raise ConfigError(f"there is no variant {variant!r}; choose one of {', '.join(VARIANTS)}")
    planner, problem = VARIANTS[variant], as_planned(problem, variant)
    if not planner.solves:
        return planner.plan(problem, budget_bytes)
    options = {} if enough_s is None else {"enough_s": enough_s}
    return planner.plan(problem, budget_bytes, solving, start=start, progress=progress, **options)

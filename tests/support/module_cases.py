"""Small models with inputs, planned as modules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from small_models import Awkward, Inverted, Residual, Running, Transformer
from torch import nn

from monet.ops.catalogue import Catalogue
from monet.ops.measuring.profiling import Profile, implementations, profile
from monet.ops.measuring.signature import signature
from monet.ops.offers.implementation import Implementation
from monet.ops.offers.offering import Offering
from monet.pipeline.planning import PlanResult, plan_prepared
from monet.pipeline.preparation import Prepared, prepare
from monet.planner.search import Solving

Inputs = tuple[tuple[torch.Tensor, ...], dict[str, torch.Tensor]]


def images(*shape: int, requires_grad: bool = False) -> Callable[[int], Inputs]:
    def make(seed: int) -> Inputs:
        generator = torch.Generator().manual_seed(seed)
        return (torch.randn(*shape, generator=generator).requires_grad_(requires_grad),), {}

    return make


def _tokens(seed: int) -> Inputs:
    return (torch.randint(0, 50, (3, 9), generator=torch.Generator().manual_seed(seed)),), {}


def _awkward(seed: int) -> Inputs:
    generator = torch.Generator().manual_seed(seed)
    return (
        (torch.randint(0, 11, (2, 4), generator=generator),),
        {"scale": torch.randn(2, 4, 8, generator=generator).requires_grad_()},
    )


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Inputs]]] = {
    "residual": (lambda: Residual(16), images(8, 3, 32, 32, requires_grad=True)),
    "inverted": (Inverted, images(6, 4, 8, 8)),
    "transformer": (Transformer, _tokens),
    "awkward": (Awkward, _awkward),
    "running": (Running, images(5, 8)),
}


def case_model(case: str) -> nn.Module:
    torch.manual_seed(7)
    return CASES[case][0]()


@cache
def case_prepared(case: str, exact: bool) -> Prepared:
    args, kwargs = CASES[case][1](0)
    return prepare(case_model(case), args, kwargs, offering=Offering(exact=exact))


def case_plan(case: str, budget: int | str, *, exact: bool = False) -> PlanResult:
    return plan_prepared(case_prepared(case, exact), budget, Solving(time_limit_s=10))


def residual_images(seed: int = 0) -> torch.Tensor:
    return CASES["residual"][1](seed)[0][0]


def costs_by_bytes(offers: Catalogue, **options: Any) -> Profile:
    """Real requests of memory, but times that only depend on sizes: plans then do not hang on the timer's noise."""
    measured = profile(offers, **options)
    times = {signature(i, offers.values): step_seconds(i, offers) for i in implementations(offers)}
    return replace(
        measured, measurements={key: replace(found, time_s=times[key]) for key, found in measured.measurements.items()}
    )


def step_seconds(implementation: Implementation, offers: Catalogue) -> float:
    names = [*implementation.inputs(), *(n for n in implementation.outputs if n is not None)]
    return sum(offers.values[name].storage_bytes for name in names) / 1e9

"""Small models with inputs, planned as modules."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from small_models import Awkward, Inverted, Residual, Running, Transformer
from torch import nn

from monet.pipeline.planning import PlanResult, plan_prepared
from monet.pipeline.preparation import Prepared, prepare

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
    return prepare(case_model(case), args, kwargs, exact=exact)


def case_plan(case: str, budget: int | str, *, exact: bool = False) -> PlanResult:
    return plan_prepared(case_prepared(case, exact), budget, time_limit_s=10)

"""``monet.apply`` with nothing said of shapes: which sizes vary is found out from the calls."""

from __future__ import annotations

import copy
import gc
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import pytest
import torch
from eager_reference import assert_same_gradients
from small_models import Decoder, tokens
from torch import nn

import monet
from monet.api.in_place.seen_sizes import SeenSizes

pytestmark = pytest.mark.usefixtures("hasty_orders")

QUICK: dict[str, Any] = {"time_limit_s": 5, "progress": False}


def compare(model: nn.Module, eager: nn.Module, *given: torch.Tensor) -> None:
    results = []
    for one in (model, eager):
        one.zero_grad()
        output = one(*given)
        output.sum().backward()
        results.append(output.detach())
    assert torch.equal(*results)
    assert_same_gradients(model, eager)


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def made(model: nn.Module) -> list[dict[str, Any] | None]:
    """Of each plan the largest sizes."""
    found = [plan.model.get("dynamic") for plan in monet.applied(model).plans]
    return [None if one is None else {name: most for name, (_, most) in one["sizes"].items()} for one in found]


@pytest.mark.slow
def test_a_second_shape_makes_a_plan_for_the_range_and_a_larger_one_another() -> None:
    torch.manual_seed(0)
    model = Decoder()
    eager = copy.deepcopy(model)
    monet.apply(model, budget="4MB", exact=True, **QUICK)
    plans = []
    for seed, shape in enumerate([(6, 10), (6, 7), (4, 9), (5, 3), (6, 10), (6, 19), (3, 17), (6, 24)]):
        compare(model, eager, tokens(shape, seed), tokens(shape, seed + 50))
        plans.append(len(made(model)))
    assert plans == [1, 2, 3, 3, 3, 4, 4, 4]
    # Of lengths alone, then of batches too, then of more.
    assert made(model) == [None, {"size1": 10}, {"size1": 8, "size2": 16}, {"size1": 8, "size2": 32}]
    applied = monet.applied(model)
    assert applied.eager_calls == 0
    assert applied.peak_bytes <= 4_000_000


@pytest.mark.slow
def test_ranges_too_large_for_the_budget_are_left_for_those_of_the_call() -> None:
    torch.manual_seed(0)
    model = Decoder()
    eager = copy.deepcopy(model)
    sample = tokens((16, 3)), tokens((16, 3))
    budget = monet.plan(model, sample, budget="100%", **QUICK).peak_bytes + 40_000
    monet.apply(model, budget=budget, exact=True, **QUICK)
    with no_garbage_collection():  # what a refusal keeps alive would keep the call's step under way
        for shape in ((16, 3), (2, 23), (2, 19), (15, 3)):
            model(tokens(shape), tokens(shape, 9))  # of which nobody calls backward
            compare(model, eager, tokens(shape), tokens(shape, 9))
    assert monet.applied(model).eager_calls == 0, str(monet.applied(model))
    assert max(most["size2"] for most in made(model) if most and most["size1"] > 8) <= 4  # not 16 texts of 24


def test_what_one_plan_cannot_hold_for_is_told_and_goes_by_the_rule(caplog: pytest.LogCaptureFixture) -> None:
    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            scale = {5: 1.0, 3: 2.0, 2: 3.0}[int(x.shape[0])]
            out: torch.Tensor = self.linear(x).sum() * scale
            return out

    torch.manual_seed(0)
    rules: list[tuple[Literal["eager", "replan"], int]] = [("eager", 1), ("replan", 2)]
    for rule, by_plan in rules:
        model = Branches()
        eager = copy.deepcopy(model)
        monet.apply(model, budget="100%", on_mismatch=rule, exact=True, **QUICK)
        with caplog.at_level(logging.WARNING):
            for batch in (5, 3):
                compare(model, eager, torch.randn(batch, 4))
        assert "no plan holds for all of them" in caplog.text
        assert len(made(model)) == by_plan
        assert monet.applied(model).eager_calls == 2 - by_plan


@pytest.mark.parametrize("options", [{"dynamic": None}, {"on_mismatch": "error"}])
def test_nothing_is_found_out_where_it_is_turned_off(options: dict[str, Any]) -> None:
    model = Decoder()
    monet.apply(model, budget="100%", **options, **QUICK)
    model(tokens((4, 10)), tokens((4, 10))).backward()
    if "on_mismatch" in options:
        with pytest.raises(monet.errors.PlanMismatch, match="has shape"):
            model(tokens((3, 10)), tokens((3, 10)))
    else:
        model(tokens((3, 10)), tokens((3, 10)))
        assert monet.applied(model).eager_calls == 1


def shapes(*sizes: tuple[int, ...]) -> list[Any]:
    return [(size, torch.int64, torch.device("cpu"), False) for size in sizes]


def test_axes_of_one_size_in_every_call_are_one_dimension() -> None:
    seen = SeenSizes(shapes((4, 8), (4, 8), (8, 4)))
    ranges = seen.with_call(shapes((4, 9), (4, 9), (8, 4)))
    assert ranges is not None and ranges.largest == {"size1": 10}  # 9, rounded up by less than a quarter
    assert ranges.inputs == {0: (None, "size1"), 1: (None, "size1")}
    ranges = seen.with_call(shapes((2, 6), (2, 6), (8, 2)))
    assert ranges is not None and ranges.largest == {"size1": 4, "size2": 16}
    assert ranges.inputs == {0: ("size1", "size2"), 1: ("size1", "size2"), 2: (None, "size1")}
    seen.rounds = False
    ranges = seen.with_call(shapes((3, 7), (3, 7), (8, 3)))
    assert ranges is not None and ranges.largest == {"size1": 4, "size2": 9}
    seen.alone = True
    ranges = seen.with_call(shapes((3, 2), (3, 2), (8, 3)))
    assert ranges is not None and ranges.largest == {"size1": 3, "size2": 2}
    assert seen.with_call(shapes((0, 8), (0, 8), (8, 0))) is None
    assert SeenSizes(shapes((4,))).with_call(shapes((4,))) is None


def test_a_discriminator_is_planned_with_and_without_gradients_of_its_input() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    eager = copy.deepcopy(model)
    monet.apply(model, budget="1MB", exact=True, **QUICK)
    for seed in range(2):
        made_up = torch.randn(5, 8, generator=torch.Generator().manual_seed(seed))
        for needs in (False, True):
            gradients = []
            for one in (model, eager):
                one.zero_grad()
                x = made_up.clone().requires_grad_(needs)
                one(x).square().sum().backward()
                gradients.append([x.grad, *(parameter.grad for parameter in one.parameters())])
            assert (gradients[0][0] is not None) == needs
            pairs = zip(*gradients, strict=True)
            assert all(mine is theirs is None or torch.equal(mine, theirs) for mine, theirs in pairs)
    applied = monet.applied(model)
    assert (applied.planned_calls, applied.eager_calls, len(applied.plans)) == (4, 0, 2)


@pytest.mark.slow
def test_ranges_are_found_out_under_autocast() -> None:
    torch.manual_seed(0)
    model = Decoder()
    eager = copy.deepcopy(model)
    monet.apply(model, budget="4MB", exact=True, **QUICK)
    for seed, shape in enumerate([(4, 12), (4, 7), (2, 9)]):
        given, gradients = (tokens(shape, seed), tokens(shape, seed + 9)), []
        for one in (model, eager):
            one.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = one(*given)
            loss.backward()
            gradients.append([loss.detach(), *(parameter.grad for parameter in one.parameters())])
        assert all(torch.equal(*pair) for pair in zip(*gradients, strict=True))
    assert monet.applied(model).eager_calls == 0 and len(monet.applied(model).plans) == 3


def test_calls_of_another_kind_are_told_apart() -> None:
    """With a mask and without, an image and a batch of them: the structure of the arguments is the same."""

    class Masked(nn.Linear):
        def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
            out = super().forward(x)
            return out if mask is None else out * mask

    torch.manual_seed(0)
    model = Masked(4, 4)
    eager = copy.deepcopy(model)
    monet.apply(model, budget="1MB", exact=True, on_mismatch="replan", **QUICK)
    x = torch.randn(6, 4)
    for given in ((x, None), (x[:5], None), (x, torch.ones(6, 1)), (x[:3], torch.ones(3, 1)), (x[:2], None), (x[0],)):
        results = []
        for one in (model, eager):
            one.zero_grad()
            one(*given).sum().backward()
            results.append([parameter.grad for parameter in one.parameters()])
        assert all(torch.equal(*pair) for pair in zip(*results, strict=True))
    assert monet.applied(model).eager_calls == 0
    assert made(model) == [None, {"size1": 6}, None, {"size1": 6}, None]

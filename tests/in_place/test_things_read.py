"""Whatever a forward pass reads in Python and is changed after planning: a planned step says so, and another plan is of
the model as it is then."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import read_things
import settings_read
import torch
import torch.nn.functional as F
from loop_cases import HASTE
from read_things import CASES
from slow_cases import slow_but
from torch import Tensor

import monet
from monet.errors import PlanMismatch

pytestmark = pytest.mark.usefixtures("hasty_orders")
VALUES = ("a teacher's weights in place", "a tensor in a list")
"""These are values of tensors, which each step reads anew."""


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    """Edits of globals and classes are undone."""
    held: list[dict[str, Any]] = [vars(settings_read), vars(F), vars(read_things.ACT), vars(read_things.BOUND)]
    held += [vars(read_things.OfClass.options), read_things.OfClass.table, read_things.TABLE, vars(read_things)]
    before = [dict(of) for of in held]
    functions = {
        of: (of.__code__, of.__defaults__) for of in (read_things.Default.forward, read_things.Reloaded.forward)
    }
    yield
    for of, was in zip(held, before, strict=True):
        of.clear()
        of.update(was)
    settings_read.Numbers.gain = 1.0
    read_things.OfClass.numbers[:] = [1.0]
    for function, (code, defaults) in functions.items():
        function.__code__, function.__defaults__ = code, defaults


def _step(model: Any, batch: Tensor) -> list[Tensor]:
    torch.manual_seed(2)
    for parameter in model.parameters():
        parameter.grad = None
    loss = model(batch).square().sum()
    loss.backward()
    return [loss.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]


def _assert_eagers(model: Any, eager: Any, batch: Tensor) -> None:
    for found, expected in zip(_step(model, batch), _step(eager, batch), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", slow_but(list(CASES)[::5], CASES))
def test_a_module_refuses_and_another_plan_is_of_the_model_as_it_is(name: str) -> None:
    """Also from a capture that was kept."""
    make, edit = CASES[name]
    torch.manual_seed(1)
    model, batch = make(), torch.randn(5, 6)
    planned = monet.MonetModule(model, monet.plan(model, (batch,), budget="1MB", **HASTE))
    _assert_eagers(planned, model, batch)
    with torch.no_grad():
        edit(model)
    if name not in VALUES:
        with pytest.raises(PlanMismatch) as refused:
            planned(batch)
        assert len(str(refused.value)) > 40
    again = planned if name in VALUES else monet.MonetModule(model, monet.plan(model, (batch,), budget="1MB", **HASTE))
    _assert_eagers(again, model, batch)


@pytest.mark.parametrize("name", slow_but(list(CASES)[1::6], CASES))
def test_a_training_loop_goes_on_with_the_model_as_it_is(name: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    make, edit = CASES[name]
    both = []
    for _ in range(2):
        torch.manual_seed(1)
        both.append(make())
    (model, eager), batch = both, torch.randn(5, 6)
    monet.apply(model, budget="1MB", on_mismatch="replan", **HASTE)
    _assert_eagers(model, eager, batch)
    for one in both:
        torch.manual_seed(4)
        with torch.no_grad():
            edit(one)
    for _ in range(2):
        _assert_eagers(model, eager, batch)
    # What goes through all attributes meets the plan that is put into the model, too: no plan is of that.
    assert monet.applied(model).eager_calls == (3 if name == "all attributes" else 0)

"""Whatever is changed of a model after planning: the next step is eager's, or refused by name, never something else."""

from __future__ import annotations

import logging
import random
from typing import Any

import pytest
import torch
from edited_models import EDITS, MODELS
from loop_cases import HASTE
from slow_cases import slow_but
from torch import Tensor

import monet
from monet.errors import MonetError, PlanMismatch

pytestmark = [
    pytest.mark.usefixtures("hasty_orders"),
    pytest.mark.filterwarnings("ignore"),  # of hooks and of deprecated parametrizations
]
PAIRS = [(model, edit) for model in MODELS for edit in EDITS]


def _step(model: Any, batch: Tensor) -> tuple[Any, ...]:
    """The loss and gradients of a step, or the error that it ends in."""
    torch.manual_seed(11)
    for parameter in model.parameters():
        parameter.grad = None
    try:
        out = model(batch)
        loss = out.square().sum()
        loss.backward()
    except PlanMismatch:
        raise
    except Exception as error:  # whatever eager raises
        return (type(error),)
    return (loss.detach(), *(parameter.grad for parameter in model.parameters()))


def _same(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    if len(one) != len(other):
        return False
    return all(
        torch.allclose(a, b, rtol=1e-5, atol=1e-6, equal_nan=True) if isinstance(a, Tensor) and isinstance(b, Tensor)
        else a is b
        for a, b in zip(one, other, strict=True)
    )  # fmt: skip


def after_an_edit(model_name: str, edit_name: str, way: str) -> str:
    """What became of the step after the edit: ``"same"``, or what was said; raises where it is another step."""
    made: list[Any] = []
    for _ in range(2):
        torch.manual_seed(3)
        made.append(MODELS[model_name]())
    eager, planned = made
    batch, edit = torch.randn(5, 6), EDITS[edit_name]
    if way in ("apply", "replan"):
        monet.apply(planned, budget="10MB", on_mismatch="replan" if way == "replan" else "eager", **HASTE)
    model = planned
    if way == "module":
        planned = monet.MonetModule(model, monet.plan(model, (batch,), budget="100%", **HASTE))
    assert _same(_step(eager, batch), _step(planned, batch))
    undo: list[Any] = []
    for one in (eager, model):
        torch.manual_seed(5)
        undo.append(edit(one))
        if undo[-1] is not None:  # it is for both, or for neither
            break
    if undo[0] is False:
        return "none"
    try:
        expected = _step(eager, batch)
        try:
            found = _step(planned, batch)
        except PlanMismatch as error:
            assert way == "module" and len(str(error)) > 20
            return str(error)
        assert _same(expected, found), f"{edit_name}, {model_name}, {way}: {expected} is not {found}"
        return "same"
    finally:
        if callable(undo[0]):
            undo[0]()


@pytest.mark.parametrize("way", ["apply", "replan", "module"])
@pytest.mark.parametrize("number", slow_but(range(3), range(12)))
def test_the_step_after_an_edit(number: int, way: str, caplog: pytest.LogCaptureFixture) -> None:
    """A dozen pairs, others with each version of the lists."""
    caplog.set_level(logging.ERROR)
    pairs = random.Random(number).sample(PAIRS, len(PAIRS))
    assert any(after_an_edit(model, edit, way) != "none" for model, edit in pairs)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["apply", "replan", "module"])
@pytest.mark.parametrize("edit", EDITS)
def test_the_step_after_every_edit(edit: str, way: str) -> None:
    """Every edit, of the first two models in some order that have what it changes."""
    ended = 0
    for model in random.Random(edit).sample(list(MODELS), len(MODELS)):
        ended += after_an_edit(model, edit, way) != "none"
        if ended == 2:
            break
    assert ended


def test_there_are_enough_of_them() -> None:
    assert len(EDITS) >= 100 and len(MODELS) >= 20
    assert issubclass(PlanMismatch, MonetError)

"""Plans on disk are of the model that finds them, whatever another one has left there."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from loop_cases import HASTE
from torch import Tensor, nn

import monet
from monet.api.in_place.kept_plans import key_of
from monet.api.in_place.plan_source import TUNED
from monet.base.files.cache import cache_folder
from monet.errors import CaptureError

pytestmark = pytest.mark.usefixtures("hasty_orders")


class Scaled(nn.Module):
    """By a number; None: by one that is another each time, where a lock keeps its captures from being kept."""

    def __init__(self, scale: float | None) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layer, self.scale = nn.Linear(8, 8), scale
        self.lock = threading.Lock() if scale is None else None

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.layer(x)
        return result * (time.perf_counter() if self.scale is None else self.scale)


def trained(scale: float | None, **options: Any) -> Scaled:
    """After a step by a plan."""
    model = Scaled(scale)
    monet.apply(model, budget="100%", exact=True, **HASTE, **options)
    model(torch.ones(4, 8)).sum().backward()
    assert monet.applied(model).planned_calls == 1
    return model


def kept() -> set[Path]:
    return set((cache_folder() / "plans").glob("*.plan.json"))


def test_a_model_that_is_another_one_each_time_leaves_no_plan() -> None:
    """It would be one trace's, kept under the key of another."""
    before = kept()
    with pytest.raises(CaptureError, match=r"computes something else each time it is traced.*\n.*\d+, in forward"):
        trained(None)
    assert kept() == before


@pytest.mark.parametrize("tuned", [False, True])
def test_a_plan_of_another_model_is_made_again(tuned: bool, caplog: pytest.LogCaptureFixture) -> None:
    """As earlier versions have left some."""
    before, number = kept(), 2.0 + tuned
    first = trained(number)
    (path,) = kept() - before
    trained(number + 2.5)
    (other,) = kept() - before - {path}
    if tuned:
        path = path.with_name(f"{key_of(path.name.removesuffix('.plan.json'), TUNED)}.plan.json")
    path.write_bytes(other.read_bytes())
    again = trained(number, tune_steps=int(tuned))
    assert monet.applied(again).plans[0].model == monet.applied(first).plans[0].model
    assert "cannot be used, and is made again: the plan was made for another model" in caplog.text
    caplog.clear()
    trained(number, tune_steps=int(tuned))
    assert "made again" not in caplog.text and path.exists() is not tuned

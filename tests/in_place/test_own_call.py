"""Classes of models that are called in a way of their own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from loop_cases import HASTE
from torch import nn

import monet
from monet.errors import ConfigError


class Doubled(nn.Linear):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return super().__call__(*args, **kwargs) * 2


def test_a_call_of_a_class_is_in_a_modules_plan_and_refused_in_place() -> None:
    model, x = Doubled(8, 8), torch.randn(4, 8)
    planned = monet.MonetModule(model, monet.plan(model, x, budget="100%", exact=True, **HASTE))
    assert torch.equal(planned(x), model(x))
    with pytest.raises(ConfigError, match="Doubled has a __call__ of its own"):
        monet.apply(model, budget="100%", **HASTE)


def test_a_graph_modules_call_is_that_of_all() -> None:
    model, x = torch.fx.symbolic_trace(nn.Sequential(nn.Linear(8, 8), nn.Tanh())), torch.randn(4, 8)
    expected = model(x)
    monet.apply(model, budget="100%", exact=True, **HASTE)
    assert torch.equal(model(x), expected) and monet.applied(model).planned_calls == 1

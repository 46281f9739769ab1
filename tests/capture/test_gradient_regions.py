"""Gradients that a model turns off inside of its own autocast are off in a plan."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import monet


class Towers(nn.Module):
    def __init__(self, where: str) -> None:
        super().__init__()
        self.first, self.second, self.where = nn.Linear(6, 6), nn.Linear(6, 6), where

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = self.first(x)
            with torch.no_grad():
                z = self.second(self.first(y) if self.where == "between" else y)
                if self.where == "on again":
                    with torch.enable_grad():
                        z = z + self.second(y)
            y = self.first(y) * z
        return y.float(), z


class Nested(nn.Module):
    """Runs its layers in contexts that are given as a tree: layers by number, contexts by name."""

    def __init__(self, tree: list[Any]) -> None:
        super().__init__()
        self.tree, self.layers = tree, nn.ModuleList([nn.Linear(6, 6), nn.Linear(6, 6)])

    def forward(self, x: Tensor) -> Tensor:
        return self._within(self.tree, x).float()

    def _within(self, tree: list[Any], x: Tensor) -> Tensor:
        for part in tree:
            if isinstance(part, int):
                x = torch.tanh(self.layers[part](x if torch.is_autocast_enabled("cpu") else x.float())) + x.mean()
            else:
                with CONTEXTS[part[0]]():
                    x = x + self._within(part[1], x)
        return x


CONTEXTS: dict[str, Callable[[], Any]] = {
    "half": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "off": lambda: torch.autocast("cpu", enabled=False),
    "without": torch.no_grad,
    "with": torch.enable_grad,
}


@pytest.mark.parametrize(
    "tree",
    [
        [("without", [("half", [1, ("with", [0])])]), 0],  # autocast and enable_grad inside of no_grad
        [1, ("without", [("half", [("without", [0])])]), 0],  # turned off where it is off
        [1, ("half", [("without", [("off", [1])])])],  # in which x.float() is x
        [1, ("half", [("without", [0]), 0, 0])],  # a weight that is cast without a gradient at first
    ],
    ids=["on again", "off again", "no cast", "first cast"],
)
def test_nested_contexts_are_eagers(tree: list[Any]) -> None:
    torch.manual_seed(0)
    model = Nested(tree)
    planned, x = copy.deepcopy(model), torch.randn(3, 6)
    plan = monet.plan(planned, (x,), budget="1MB", exact=True, progress=False, time_limit_s=1)
    for run in (model, monet.MonetModule(planned, plan)):
        run(x).square().sum().backward()
    for own, eager in zip(planned.parameters(), model.parameters(), strict=True):
        assert (own.grad is None) == (eager.grad is None)
        assert own.grad is None or torch.equal(own.grad, eager.grad)  # type: ignore[arg-type]


@pytest.mark.parametrize("where", ["between", "at the end", "on again"])
def test_they_are_eagers(where: str) -> None:
    torch.manual_seed(0)
    model = Towers(where)
    planned = copy.deepcopy(model)
    x = torch.randn(3, 6)
    plan = monet.plan(planned, (x,), budget="1MB", exact=True, progress=False)
    found: list[list[Any]] = []
    for run in (model, monet.MonetModule(planned, plan)):
        y, z = run(x)
        (y.square() + z.detach()).sum().backward()
        found.append([y, z, *(p.grad for p in run.parameters())])
    for own, eager in zip(*found, strict=True):
        assert (own is None) == (eager is None)
        assert own is None or torch.equal(own, eager)
    assert any(gradient is None for gradient in found[0]) == (where != "on again")

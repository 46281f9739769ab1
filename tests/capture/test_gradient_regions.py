"""Gradients that a model turns off inside of its own autocast are off in a plan."""

from __future__ import annotations

import copy
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

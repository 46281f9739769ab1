"""Convolutions of one channel, whose strides tell nothing of where elements lie, but oneDNN what to ask for."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import monet


class OneChannel(nn.Module):
    """A map of (7, 7) made of tokens, as attention over positions has it; ``"last"``: put in channels-last by name."""

    def __init__(self, layout: str) -> None:
        super().__init__()
        self.layout = layout
        self.score = nn.Linear(3, 1)
        self.convolutions = nn.ModuleList(nn.Conv2d(1, 1, 3, padding=1) for _ in range(3))
        self.head = nn.Linear(1, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.score(x).transpose(1, 2).reshape(2, 1, 7, 7)
        if self.layout == "last":
            x = x.contiguous(memory_format=torch.channels_last)
        for convolution in self.convolutions:
            x = convolution(x).tanh()
        tokens: torch.Tensor = self.head(x.flatten(2).transpose(1, 2))
        return tokens


@pytest.mark.parametrize("layout", ["first", "last"])
def test_requests_are_as_measured(layout: str) -> None:
    torch.manual_seed(0)
    model, x = OneChannel(layout), torch.randn(2, 49, 3)
    wanted = model(x)
    wanted.square().sum().backward()
    gradients = [p.grad for p in model.parameters()]
    model.zero_grad()
    module = monet.MonetModule(model, monet.plan(model, (x,), budget="100%", exact=True, time_limit_s=5.0))
    found = module(x)
    found.square().sum().backward()
    assert torch.equal(found, wanted)
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        assert gradient is not None and parameter.grad is not None and torch.equal(parameter.grad, gradient)
    arena = module._step.runner.arena
    assert arena is not None
    assert arena.statistics().misses == 0, arena.statistics()

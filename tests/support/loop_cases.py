"""Small models in training loops of others, eager and with plans in place."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from small_models import Residual
from torch import Tensor, nn

HASTE: dict[str, Any] = {"time_limit_s": 2, "progress": False}
"""Options of ``monet.plan`` for tests."""
BUDGET = "10MB"


def pair() -> tuple[Residual, Residual]:
    """Two models with the same weights."""
    torch.manual_seed(7)
    model = Residual()
    return model, copy.deepcopy(model)


def batches(*sizes: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(size, 3, 16, 16, generator=generator) for size in sizes]


def train(model: nn.Module, data: Iterable[Tensor], between: Callable[[], object] = lambda: None) -> list[Tensor]:
    """Steps of SGD; returns all losses, gradients, weights and buffers."""
    optimizer, seen = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), []
    for images in data:
        optimizer.zero_grad()
        loss = model(images).square().mean()
        loss.backward()
        seen += [loss.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]
        del loss
        optimizer.step()
        between()
    return [*seen, *(t.clone() for t in model.state_dict().values())]


def equal(one: list[Tensor], other: list[Tensor]) -> bool:
    return len(one) == len(other) and all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What plans in place said; a busy machine is said, too."""
    return [record.getMessage() for record in caplog.records if record.name.startswith("monet.api.in_place")]

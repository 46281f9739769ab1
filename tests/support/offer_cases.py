"""Models that between them have every family of operators."""

from __future__ import annotations

from typing import Any

import torch
from small_models import Awkward, Inverted, Residual, Running, Transformer
from torch import nn

CASES: dict[str, tuple[nn.Module, tuple[Any, ...], dict[str, Any]]] = {
    "residual": (Residual(16), (torch.randn(8, 3, 64, 64),), {}),
    "inverted": (Inverted(), (torch.randn(3, 4, 8, 8),), {}),
    "transformer": (Transformer(), (torch.randint(0, 50, (2, 7)),), {}),
    "running": (Running(), (torch.randn(5, 8),), {}),
    "awkward": (Awkward(), (torch.randint(0, 11, (2, 4)),), {"scale": torch.randn(2, 4, 8, requires_grad=True)}),
}

"""What eager's peak is said to be, against what PyTorch's allocator hands out in eager's step."""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
from small_models import Residual
from torch import nn

from monet.native import allocator
from monet.pipeline.preparation import prepare

functional = nn.functional


class Block(nn.Module):
    """A transformer's."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.unflatten(-1, (4, -1)).transpose(1, 2) for t in self.qkv(self.before(x)).chunk(3, -1))
        x = x + self.out(functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        y: torch.Tensor = x + self.down(functional.gelu(self.up(self.between(x))))
        return y


class Assigns(nn.Module):
    """To a part of a tensor; and gathers rows, whose gradients add up in a tensor of zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 64), nn.Linear(64, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        y[:, :16] = 0.5
        y[:, 20] = y[:, 30] * 2
        y = y.tanh()[torch.arange(0, len(y), 2)]
        return self.last(y)  # type: ignore[no-any-return]


def _perceptron() -> nn.Module:
    hidden = [layer for _ in range(4) for layer in (nn.Linear(256, 256), nn.ReLU())]
    return nn.Sequential(*hidden, nn.Linear(256, 10))


def _convolutions() -> nn.Module:
    """The gradient of a filter is as large as everything else together."""
    return nn.Sequential(
        nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 256, 3, padding=1), nn.BatchNorm2d(256), nn.ReLU(),
        nn.Conv2d(256, 256, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 10),
    )  # fmt: skip


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], torch.Tensor]]] = {
    "perceptron": (_perceptron, lambda: torch.randn(64, 256)),
    "transformer": (
        lambda: nn.Sequential(Block(128), Block(128), nn.Linear(128, 50)),
        lambda: torch.randn(1, 16, 128),
    ),
    "long transformer": (
        lambda: nn.Sequential(Block(64), Block(64), nn.Linear(64, 50)),
        lambda: torch.randn(8, 64, 64),
    ),
    # Its last layer's weight is the largest tensor, which autocast casts.
    "vocabulary": (
        lambda: nn.Sequential(nn.Embedding(1000, 64), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1000)),
        lambda: torch.randint(0, 1000, (8, 32)),
    ),
    "convolutions": (_convolutions, lambda: torch.randn(2, 3, 16, 16)),
    "assignments": (Assigns, lambda: torch.randn(512, 64)),
    "residual": (lambda: Residual(16), lambda: torch.randn(8, 3, 32, 32)),
    "dropout": (
        lambda: nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, dropout=0.1),
        lambda: torch.randn(8, 32, 64),
    ),
}


@pytest.mark.parametrize(
    ("name", "precision"),
    [
        *((name, "float32") for name in MODELS),
        # Where the CPU has no kernels for bfloat16, convolutions take seconds.
        *(pytest.param(name, "bfloat16", marks=pytest.mark.slow) for name in ("residual", "convolutions")),
        *((name, "bfloat16") for name in MODELS if name not in ("residual", "convolutions")),
    ],
)
@pytest.mark.sampled(2)
def test_it_is_what_pytorch_hands_out(name: str, precision: str) -> None:
    allocator.installed()
    gc.collect()
    before = allocator.live_bytes()
    torch.manual_seed(0)
    make, sample = MODELS[name]
    model, x = make(), sample()

    def casts() -> torch.autocast | nullcontext[None]:
        return torch.autocast("cpu", torch.bfloat16) if precision == "bfloat16" else nullcontext()

    for _ in range(2):  # the first step may make what stays
        model.zero_grad()
        allocator.reset_peak()
        with casts():
            output = model(x)
        torch.autograd.backward(output, torch.ones_like(output))
        del output
    measured = allocator.peak_bytes() - before
    model.zero_grad()
    with casts():
        counted = prepare(model, (x,), {}).eager_peak_bytes
    assert counted == pytest.approx(measured, rel=0.001)

"""Operators that torch traces as something else than eager runs: results are eager's all the same, bit by bit.

Recurrent cells write over views, whose kernels see other rows than those of tensors of their own.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from eager_reference import compare_steps
from torch import nn

import monet
from monet.capture import capture


class Then(nn.Sequential):
    """A linear layer and a function of its output, of 8 rows and 9 columns."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__(nn.Linear(9, 9))
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self[0](x)
        return self.function(y)


class Frozen(nn.Module):
    """A linear layer without gradients of its parameters, on a tensor with gaps."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.frozen = nn.Linear(9, 9), nn.Linear(8, 24).requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.frozen(self.first(x).view(8, 1, 9)[..., :8])
        return out


def _margin_loss(y: torch.Tensor) -> torch.Tensor:
    return F.multi_margin_loss(y, torch.arange(8) % 5)


def _multilabel_loss(y: torch.Tensor) -> torch.Tensor:
    labels = torch.tensor([[0, 2, -1, 1, -1, -1, 3, 0, 4]])
    return F.multilabel_margin_loss(y, labels.expand(8, 9).contiguous())


def _factors(y: torch.Tensor) -> torch.Tensor:
    matrix = y[:, :8] @ y[:, :8].T + 8 * torch.eye(8)
    lower, upper = torch.lu_unpack(*torch.linalg.lu_factor_ex(matrix)[:2])[1:]
    inverse: torch.Tensor = torch.linalg.inv_ex(matrix).inverse
    determinant: torch.Tensor = torch.linalg.det(matrix)
    return determinant * 1e-8 + (lower @ upper).sum() + inverse.sum()


pytestmark = pytest.mark.usefixtures("hasty_orders")

LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "GRUCell": (lambda: nn.GRUCell(12, 20), (5, 12)),
    "GRUCell, whole vectors": (lambda: nn.GRUCell(16, 16), (8, 16)),
    "GRUCell without bias": (lambda: nn.GRUCell(12, 40, bias=False), (5, 12)),
    "GRUCell, no batch": (lambda: nn.GRUCell(12, 20), (12,)),
    "GRU": (lambda: nn.GRU(12, 20, 2, bidirectional=True), (4, 5, 12)),
    "GRU, batch first, dropout": (lambda: nn.GRU(12, 20, 2, batch_first=True, dropout=0.5), (4, 5, 12)),
    "GRU, dropout both ways": (lambda: nn.GRU(12, 20, 3, bidirectional=True, dropout=0.5), (4, 5, 12)),
    "multi-margin loss": (lambda: Then(_margin_loss), (8, 9)),
    "multilabel margin loss": (lambda: Then(_multilabel_loss), (8, 9)),
    "factorizations": (lambda: Then(_factors), (8, 9)),
    "sign": (lambda: Then(lambda y: torch.sgn(y) + y), (8, 9)),
    "linear of strided": (Frozen, (8, 9)),
    "transformer layer": (lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), (3, 5, 8)),
    "LSTMCell": (lambda: nn.LSTMCell(12, 20), (5, 12)),
    "LSTM": (lambda: nn.LSTM(12, 20, 2, bidirectional=True), (4, 5, 12)),
    "LSTM, dropout": (lambda: nn.LSTM(12, 20, 2, dropout=0.5), (4, 5, 12)),
    "RNN, dropout": (lambda: nn.RNN(12, 20, 2, dropout=0.5, batch_first=True), (4, 5, 12)),
    "RNN": (lambda: nn.RNN(12, 20, 2, nonlinearity="relu"), (4, 5, 12)),
}


# They take longest; an RNN with dropout is unrolled as these are.
SLOW = {"GRU", "GRU, dropout both ways", "GRU, batch first, dropout", "LSTM, dropout", "LSTM", "RNN"}


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] if n in SLOW else []) for n in LAYERS])
@torch.backends.mkldnn.flags(enabled=False)  # capturing an LSTM asks for that
@pytest.mark.sampled(4)
def test_steps_are_bitwise_eagers(name: str) -> None:
    make, shape = LAYERS[name]
    torch.manual_seed(0)
    model = make()

    def inputs(seed: int) -> tuple[tuple[torch.Tensor, ...], dict[str, torch.Tensor]]:
        return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)),), {}

    compare_steps(model, monet.plan(model, inputs(0)[0], budget="200%", exact=True, time_limit_s=3.0), inputs)


@pytest.mark.parametrize("layer", [nn.Dropout(1.0), nn.TransformerEncoderLayer(8, 2, 16, dropout=1.0)])
def test_a_dropout_of_everything_draws_nothing(layer: nn.Module) -> None:
    captured = capture(nn.Sequential(nn.Linear(8, 8), layer), (torch.randn(2, 3, 8),))
    assert not any(op.random for op in captured.graph.forward)

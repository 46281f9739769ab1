"""What cannot be planned is refused with a sentence that says what to do."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence

import monet
from monet.capture import capture
from monet.errors import CaptureError


class Sparse(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(100, 16))

    def forward(self, words: Tensor) -> Tensor:
        return functional.embedding(words, self.table, sparse=True).mean()


class Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.LSTM(8, 8, batch_first=True)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        state: Tensor = self.cells(packed)[1][0]
        return state.mean()


class Spelling(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 5)

    def forward(self, x: Tensor, target: Tensor, given: Tensor, wanted: Tensor) -> Tensor:
        return functional.ctc_loss(self.linear(x).log_softmax(-1), target, given, wanted)


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = torch.cond(x.sum() > 0, self.linear, lambda y: -self.linear(y), (x,))
        return made.mean()


class Dropping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers, self.layerdrop = nn.ModuleList(nn.Linear(8, 8) for _ in range(3)), 0.1

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            if self.training and torch.rand([]) < self.layerdrop:
                continue
            x = layer(x)
        return x.mean()


@pytest.mark.parametrize(
    ("make", "inputs", "advice"),
    [
        (Sparse, (torch.randint(100, (4, 8)),), "the gradient of an embedding with sparse=True is one"),
        (Packed, (torch.randn(3, 5, 8), torch.tensor([5, 3, 2])), "leave the packing out and mask the loss"),
        (
            Spelling,
            (torch.randn(10, 2, 8), torch.randint(1, 5, (2, 4)), torch.tensor([10, 10]), torch.tensor([4, 3])),
            r"a part of the model \(torch.nn.CTCLoss\), which .* or apply the loss to the module's output",
        ),
        (Branches, (torch.randn(2, 8),), "torch.cond, .* use torch.where"),
        (Dropping, (torch.randn(2, 8),), "LayerDrop.*turn it off in the model's configuration"),
    ],
)
def test_what_to_do_is_said(make: Callable[[], nn.Module], inputs: tuple[Tensor, ...], advice: str) -> None:
    with pytest.raises(CaptureError, match=advice):
        capture(make().train(), inputs, {})


def test_numbers_may_be_keyword_arguments() -> None:
    """They were copied, and who reads a copy by keyword was forgotten."""

    class Segments(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(16, 4)

        def forward(self, x: Tensor) -> Tensor:
            return torch.segment_reduce(self.linear(x), "sum", lengths=torch.tensor([3, 5])).square().mean()

    torch.manual_seed(0)
    model, x = Segments(), torch.randn(8, 16)
    plan = monet.plan(model, x, budget="200%", cache=False)
    gradients = []
    for step in (model, monet.MonetModule(model, plan)):
        model.zero_grad()
        step(x).backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    for eager, planned in zip(*gradients, strict=True):
        assert eager is not None and planned is not None and torch.equal(eager, planned)

"""A loss function that changes what it closes over, or is bound to, is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import monet
from monet.errors import CaptureError


class Warming:
    """Counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        self.calls += 1
        return nn.functional.mse_loss(outputs, targets) * min(1.0, self.calls / 10)


def _counting() -> Any:
    calls = 0

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return nn.functional.mse_loss(outputs, targets) * min(1.0, calls / 10)

    return loss


@pytest.mark.parametrize("form", ["method", "lambda", "closure"])
def test_a_loss_that_counts_its_calls_is_refused(form: str) -> None:
    """The plan would have the number of the call that was traced, in every step."""
    warming, model = Warming(), nn.Linear(8, 4)
    forms = {"method": warming.loss, "lambda": lambda o, y: warming.loss(o, y), "closure": _counting()}
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with pytest.raises(CaptureError, match=r"loss_fn changes .*, which a planned step would not"):
        monet.optimize(
            model, torch.randn(3, 8), torch.randn(3, 4), loss_fn=forms[form], optimizer=optimizer, budget="100%"
        )
    assert warming.calls == 0

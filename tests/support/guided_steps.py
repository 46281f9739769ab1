"""Training steps for the profile-guided arena, and the same in plain eager."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn


def small_model() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(32, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1)) for _ in range(4)]
    return nn.Sequential(*layers, nn.Linear(32, 5))


class Training:
    """A model, its optimiser, and steps on fresh inputs that depend on the number of the step alone."""

    def __init__(self, make: Callable[[], nn.Module] = small_model, *, zero_first: bool = False) -> None:
        self.model = make()
        self.optimizer = torch.optim.Adam(self.model.parameters(), 1e-2)
        self.zero_first = zero_first

    def batch(self, number: int, rows: int = 16) -> tuple[Tensor, Tensor]:
        torch.manual_seed(1000 + number)
        return torch.randn(rows, 32), torch.randint(0, 5, (rows,))

    def step(self, number: int, rows: int = 16) -> float:
        inputs, targets = self.batch(number, rows)
        if self.zero_first:
            self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.model(inputs), targets)
        loss.backward()
        self.optimizer.step()
        if not self.zero_first:
            self.optimizer.zero_grad()
        return loss.item()

    def state(self) -> list[Tensor]:
        return [value.clone() for value in self.model.state_dict().values()]


def same(first: Training, second: Training) -> bool:
    """Whether both models hold the same bits."""
    return all(torch.equal(a, b) for a, b in zip(first.state(), second.state(), strict=True))

"""Planned steps with regions: without a compiler, and beside eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from monet.executor.trainer import Trainer
from monet.ops.fusion import compiling_ahead, fused


def run_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """No compiler: a region's calls one after another."""
    for module in (fused, compiling_ahead):
        monkeypatch.setattr(module, "kernel_of", lambda program, geometry: lambda given: program.run(*given))


def assert_updates_are_eagers(
    trainer: Trainer,
    planned: nn.Module,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    make_inputs: Callable[[], tuple[Any, ...]],
    *,
    atol: float,
) -> None:
    """Three steps of ``trainer``, which trains ``planned``, and of ``model``, which returns its loss, in eager."""
    for seed in range(3):
        torch.manual_seed(seed)
        inputs = make_inputs()
        trainer(inputs)
        optimizer.zero_grad()
        loss: Tensor = model(*inputs)
        loss.backward()
        optimizer.step()
        for found, eager in zip(planned.parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(found, eager, rtol=1e-4, atol=atol)

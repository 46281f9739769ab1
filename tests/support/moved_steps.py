"""Small models whose plans move tensors to a disk, and what a step of one leaves."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from module_cases import costs_by_bytes, images
from torch import nn

import monet
from monet.errors import ExecutionError
from monet.executor.copying.disk_copies import DiskCopies
from monet.native.channel import Channel
from monet.plans.plan import Plan

RATES = "write=8GB/s,read=8GB/s"
"""As if the disk were fast beside ``costs_by_bytes``: tensors are moved rather than made again."""
ROWS = 1030
"""Of which a tensor of 256 columns has 1 MiB and a bit, and no whole number of blocks."""


def copies_of(stepping: monet.MonetModule | monet.Trainer) -> DiskCopies:
    copies = stepping._step.runner.copies
    assert isinstance(copies, DiskCopies)
    return copies


def _layers(*after: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(5)
    layers = [layer for n in range(6) for layer in (nn.Linear(256, 256), nn.Tanh(), *(f() for f in after if n % 2))]
    return nn.Sequential(*layers, nn.Linear(256, 10))


def _convolutions() -> nn.Module:
    torch.manual_seed(6)
    layers = [
        layer
        for n in range(4)
        for layer in (nn.Conv2d(8 if n else 3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=n % 2 == 0))
    ]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(8 * 31 * 31, 5))


class _Joined(nn.Module):
    """Moved tensors with several readers, a sum and a join of them, and views."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.first, self.second, self.third = (nn.Linear(256, 256) for _ in range(3))
        self.head = nn.Linear(512, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one = torch.tanh(self.first(x))
        two = torch.sigmoid(self.second(one)) * one
        three = torch.nn.functional.gelu(self.third(two + one)) + two.view(2, -1, 256).flatten(0, 1)
        out: torch.Tensor = self.head(torch.cat([three, one], 1))
        return out


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Any], float]] = {
    "layers": (_layers, images(ROWS, 256), 0.6),
    "dropout": (lambda: _layers(lambda: nn.Dropout(0.2)), images(ROWS, 256), 0.5),
    "convolutions": (_convolutions, images(40, 3, 31, 31), 0.6),
    "joined": (_Joined, images(ROWS, 256), 0.8),
}
"""Model, inputs by seed, and the share of the arena that a plan without moves needs and one with moves is given."""


def case_model(case: str) -> nn.Module:
    return CASES[case][0]()


def case_inputs(case: str, seed: int) -> torch.Tensor:
    tensor: torch.Tensor = CASES[case][1](seed)[0][0]
    return tensor


def disk_or_skip(folder: Path) -> Path:
    """``folder``, where it lies on a disk."""
    try:
        Channel(folder, 1).close()
    except ExecutionError as error:
        pytest.skip(str(error))
    return folder


@cache
def unmoved_plan(case: str) -> Plan:
    """Exact, with everything kept in memory."""
    return _planned(case, "10GB")


@cache
def moved_plan(case: str, folder: Path, mode: str = "asynchronous") -> Plan:
    """Exact, in less memory than there is without moves."""
    full = unmoved_plan(case)
    budget = full.fixed_bytes + int(CASES[case][2] * full.arena_bytes)
    plan = _planned(case, budget, offload=f"disk:{folder},{RATES},mode={mode}", time_limit_s=20)
    assert sum(step.kind == "read" for step in plan.steps) > 1
    return plan


def _planned(case: str, budget: int | str, **options: Any) -> Plan:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("monet.pipeline.preparation.profile", costs_by_bytes)
        patched.setattr("monet.pipeline.placement.ORDER_S", 2.0)
        return monet.plan(case_model(case), case_inputs(case, 0), budget=budget, exact=True, **options)


def step_of(module: nn.Module, case: str, seed: int) -> list[torch.Tensor]:
    """One step on fresh inputs: output, buffers and gradients."""
    torch.manual_seed(seed)
    module.zero_grad(set_to_none=True)
    out = module(case_inputs(case, seed))
    out.backward(torch.randn(out.shape, generator=torch.Generator().manual_seed(100 + seed)))
    gradients = [p.grad.clone() for p in module.parameters() if p.grad is not None]
    return [out.detach(), *(b.detach().clone() for b in module.buffers()), *gradients]


def assert_equal(found: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    """Bit by bit."""
    assert len(found) == len(expected)
    for n, (one, other) in enumerate(zip(found, expected, strict=True)):
        assert torch.equal(one, other), f"tensor {n}: {(one.double() - other.double()).abs().max()}"

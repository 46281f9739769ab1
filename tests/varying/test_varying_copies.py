"""Plans for every shape up to one that move tensors to a disk: what is copied is what the largest shape has."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from module_cases import costs_by_bytes
from moved_steps import RATES, assert_equal, case_model, copies_of, disk_or_skip
from small_models import tokens
from torch import nn
from torch.export import Dim

import monet
from monet.native import allocator
from monet.plans.format import READ
from monet.plans.plan import Plan

pytestmark = pytest.mark.usefixtures("hasty_orders")

ROWS = 2048
SHAPES = (2048, 2047, 5, 2048, 1030, 2)
"""Of a tensor of 256 columns: whole numbers of blocks, and others."""


@pytest.fixture
def moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[nn.Module, Plan]:
    """A plan of up to that many rows, in less memory than there is without moves."""
    folder = disk_or_skip(tmp_path)
    monkeypatch.setattr("monet.pipeline.preparation.profile", costs_by_bytes)
    model, x = case_model("dropout"), torch.randn(64, 256)
    how: dict[str, Any] = {"dynamic": {"input": {0: Dim("rows", min=2, max=ROWS)}}, "exact": True, "time_limit_s": 8}
    full = monet.plan(model, x, budget="10GB", **how)
    budget = full.fixed_bytes + int(0.5 * full.arena_bytes)
    plan = monet.plan(model, x, budget=budget, offload=f"disk:{folder},{RATES}", **how)
    assert sum(step.kind == READ for step in plan.steps) > 1
    return model, plan


def step_of(module: nn.Module, rows: int) -> list[torch.Tensor]:
    torch.manual_seed(rows)
    module.zero_grad(set_to_none=True)
    x = torch.randn(rows, 256)
    out = module(x)
    out.square().mean().backward()
    return [out.detach().clone(), *(p.grad.clone() for p in module.parameters() if p.grad is not None)]


def test_every_shape_is_eagers_and_within_the_promise(moved: tuple[nn.Module, Plan], tmp_path: Path) -> None:
    model, plan = moved
    eager = copy.deepcopy(model)
    plan.save(tmp_path / "plan.json")
    module = monet.MonetModule(model, Plan.load(tmp_path / "plan.json"))
    step_of(module, ROWS)
    held = allocator.live_bytes() if allocator.available() else 0
    gradients = sum(p.nbytes for p in model.parameters())
    for rows in SHAPES:
        before = copies_of(module).waits.count
        if allocator.available():
            allocator.reset_peak()
        found = step_of(module, rows)
        assert copies_of(module).waits.count > before
        if allocator.available():
            # What is asked for outside: the clones that are compared, inputs, outputs and gradients.
            assert allocator.peak_bytes() <= held + 4 * gradients + 8 * rows * 256 * 4
        assert_equal(found, step_of(eager, rows))
    arena = module._step.runner.arena
    assert arena is None or arena.statistics().misses == 0


def test_whole_steps_of_every_shape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = disk_or_skip(tmp_path)
    monkeypatch.setattr("monet.pipeline.preparation.profile", costs_by_bytes)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(512, 512), nn.Linear(512, 1024), nn.GELU(), nn.Linear(1024, 10))
    eager = copy.deepcopy(model)
    optimizers = torch.optim.SGD(model.parameters(), 0.1), torch.optim.SGD(eager.parameters(), 0.1)
    axes = [Dim("batch", min=2, max=16), Dim("length", min=2, max=64)]

    def loss_of(scores: torch.Tensor, tags: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(scores.flatten(0, 1), tags.flatten())

    trainer = monet.optimize(
        model, tokens((4, 8), 0), tokens((4, 8), 1) % 10, loss_fn=loss_of, optimizer=optimizers[0], budget="75%",
        exact=True, offload=f"disk:{folder},{RATES}", time_limit_s=8, dynamic={"input": axes, "targets": axes},
    )  # fmt: skip
    assert any(step.kind == READ for step in trainer.plan.steps)
    for seed, shape in enumerate([(16, 64), (3, 7), (16, 63), (2, 64)]):
        words, tags = tokens(shape, seed), tokens(shape, seed + 9) % 10
        loss, _ = trainer(words, tags)
        optimizers[1].zero_grad()
        expected = loss_of(eager(words), tags)
        expected.backward()
        optimizers[1].step()
        assert_equal([loss, *model.parameters()], [expected, *eager.parameters()])

"""Whole steps of every shape up to one: loss, weights and outputs are eager's, within one promise, from a file, too."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from slow_cases import slow_but
from small_models import tokens
from torch import nn
from torch.export import Dim

import monet
from monet.errors import ConfigError, PlanMismatch
from monet.ops.estimating.rates import parse_rates
from monet.pipeline.preparation import Preparing, prepare_whole
from monet.step.training_step.whole_step import capture_whole_step

pytestmark = pytest.mark.usefixtures("hasty_orders")

AXES = [Dim("batch", min=2, max=6), Dim("length", min=2, max=24)]
SHAPES = [(6, 24), (5, 9), (2, 7), (6, 24), (3, 23)]


class Tagger(nn.Module):
    """Words to scores of ten tags, with attention and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(100, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.scores = nn.Linear(16, 10)

    def forward(self, words: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        scores: torch.Tensor = self.scores(self.layer(self.embedding(words)))
        return scores if mask is None else scores * mask[..., None]


def loss_of(scores: torch.Tensor, tags: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(scores.flatten(0, 1), tags.flatten())


def batch(shape: tuple[int, int], seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    return tokens(shape, seed), tokens(shape, seed + 100) % 10


def optimizer_of(model: nn.Module, which: str) -> torch.optim.Optimizer:
    if which == "sgd":
        return torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    return torch.optim.AdamW(model.parameters(), 0.01)


def made(which: str = "sgd", **options: Any) -> tuple[nn.Module, torch.optim.Optimizer, monet.Trainer]:
    torch.manual_seed(0)
    model = Tagger()
    optimizer = optimizer_of(model, which)
    words, tags = batch((4, 10), 1)
    options = {"exact": True, "time_limit_s": 5, "cores": 1, **options}
    trainer = monet.optimize(model, words, tags, loss_fn=loss_of, optimizer=optimizer, **options)
    return model, optimizer, trainer


@pytest.mark.parametrize(("which", "clip"), slow_but([("adamw", 0.5)], [("sgd", None), ("adamw", 0.5)]))
def test_every_shape_is_eagers_and_within_the_promise(which: str, clip: float | None, tmp_path: Path) -> None:
    dynamic = {"words": AXES, "targets": AXES}
    model, _, trainer = made(which, budget="90%", dynamic=dynamic, clip_grad_norm=clip)
    trainer.plan.save(tmp_path / "plan.json")
    model, _, trainer = made(which, plan=tmp_path / "plan.json", clip_grad_norm=clip)
    assert trainer.plan.model["dynamic"]["sizes"] == {"batch": [2, 6], "length": [2, 24]}
    arena = trainer._step.runner.arena
    assert arena is not None
    eager = copy.deepcopy(model)
    optimizer = optimizer_of(eager, which)
    for seed, shape in enumerate(SHAPES):
        words, tags = batch(shape, seed)
        torch.manual_seed(seed)
        loss, outputs = trainer(words, tags)
        torch.manual_seed(seed)
        optimizer.zero_grad()
        expected_outputs = eager(words)
        expected = loss_of(expected_outputs, tags)
        expected.backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(eager.parameters(), clip)
        optimizer.step()
        assert torch.equal(loss, expected.detach()) and torch.equal(outputs, expected_outputs.detach())
        for one, other in zip(model.parameters(), eager.parameters(), strict=True):
            assert torch.equal(one, other)
    assert arena.statistics().misses == 0


@pytest.mark.slow
def test_several_arguments_and_targets_that_do_not_vary() -> None:
    torch.manual_seed(0)
    model = Tagger()
    words, _ = batch((4, 10), 1)
    sample: Mapping[str, torch.Tensor] = {"words": words, "mask": torch.ones(4, 10)}
    trainer = monet.optimize(
        model, sample, None, loss_fn=lambda scores, _: scores.square().mean(), optimizer=optimizer_of(model, "sgd"),
        budget="100%", time_limit_s=5, cores=1, dynamic={"words": AXES, "mask": AXES},
    )  # fmt: skip
    for seed, shape in enumerate(SHAPES[:3]):
        words, _ = batch(shape, seed)
        loss, outputs = trainer({"words": words, "mask": torch.ones(shape)})
        assert outputs.shape == (*shape, 10) and torch.isfinite(loss)
    with pytest.raises(PlanMismatch, match="length"):
        trainer({"words": batch((2, 30), 1)[0], "mask": torch.ones(2, 30)})


@pytest.mark.slow
def test_eagers_peak_is_that_of_updates_at_the_end() -> None:
    """As for one shape: gradients are all there before the first update."""
    torch.manual_seed(0)
    model = Tagger()
    words, tags = batch((4, 24), 1)
    peaks = []
    for dynamic in (None, {"words": [None, AXES[1]], "targets": [None, AXES[1]]}):
        step = capture_whole_step(
            model, words, tags, loss_fn=loss_of, optimizer=optimizer_of(model, "adamw"), dynamic=dynamic
        )
        peaks.append(prepare_whole(step, Preparing(costs=parse_rates("300GFLOPS,20GB/s"))).eager_peak_bytes)
    assert peaks[0] == peaks[1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dynamic": {"words": AXES, "labels": AXES}}, "dynamic names 'labels', and the call has words, targets"),
        (
            {"dynamic": {"words": AXES, "targets": AXES}, "fused": True, "exact": False},
            "fused kernels are made for one shape",
        ),
    ],
)
def test_what_does_not_vary_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        made(budget="100%", **options)

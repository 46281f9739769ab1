"""Estimated requests beside those that the recorder sees, and what may be done with a plan of estimates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional

import monet
from monet.errors import PlanMismatch, ProfileError
from monet.ops.estimating.profiling import estimated_profile
from monet.ops.estimating.rates import parse_rates
from monet.ops.measuring import bench
from monet.ops.measuring.profiling import implementations
from monet.ops.offers.generic import draw
from monet.pipeline.planning import plan_prepared
from monet.pipeline.preparation import Prepared, Preparing, prepare
from monet.planner.search import Solving

BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default
RATES = parse_rates("300GFLOPS,20GB/s")


class Images(nn.Module):
    """Convolutions of every form that oneDNN treats in a way of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 3, padding=1)
        self.norm = nn.BatchNorm2d(32)
        self.halving = nn.Conv2d(32, 64, 3, stride=2, padding=1)
        self.shortcut = nn.Conv2d(32, 64, 1, stride=2)
        self.depthwise = nn.Conv2d(64, 64, 3, padding=1, groups=64)
        self.odd = nn.Conv2d(64, 20, 1)
        self.doubling = nn.ConvTranspose2d(20, 24, 3, stride=2, padding=1, output_padding=1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        images = functional.relu(self.norm(self.stem(images)))
        half = functional.max_pool2d(functional.relu(self.halving(images) + self.shortcut(images)), 3, 1, 1)
        output: torch.Tensor = self.doubling(functional.dropout(self.odd(self.depthwise(half)), 0.2))
        return output


class Tokens(nn.Module):
    """Attention by its products and by the fused kernel, norms, dropout, the loss of a vocabulary."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(500, 64)
        self.layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.1, batch_first=True, activation="gelu")
        self.norm = nn.LayerNorm(64)
        self.words = nn.Linear(64, 500)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(self.layer(self.embed(tokens)))
        fused = functional.scaled_dot_product_attention(hidden, hidden, hidden)
        return functional.cross_entropy(self.words(hidden + fused).flatten(0, 1), tokens.flatten())


CASES: dict[str, Callable[[], tuple[nn.Module, torch.Tensor]]] = {
    "images": lambda: (Images(), torch.randn(8, 3, 32, 32)),
    "tokens": lambda: (Tokens(), torch.randint(500, (4, 64))),
}


def prepared_twice(case: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Prepared, Prepared]:
    """With estimated and with recorded costs, where each implementation is timed once."""
    monkeypatch.setattr(bench, "_median_s", lambda run, most_runs: run())
    model, example = CASES[case]()
    estimated = prepare(model, (example,), {}, Preparing(costs=RATES))
    return estimated, prepare(model, (example,), {}, Preparing(cache=False))


@pytest.mark.parametrize("case", CASES)
def test_requests_of_every_implementation(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eager's peak within a percent. Results to the byte; workspaces to a sixteenth of the largest."""
    estimated, recorded = prepared_twice(case, monkeypatch)
    assert estimated.eager_peak_bytes == pytest.approx(recorded.eager_peak_bytes, rel=0.01)
    assert estimated.problem.fixed_bytes == recorded.problem.fixed_bytes
    offers = recorded.lowered.catalogue
    largest = max(recorded.lowered.profile.of(run, offers).workspace_bytes() for run in implementations(offers))
    for run in implementations(offers):
        guess, seen = estimated.lowered.profile.of(run, offers), recorded.lowered.profile.of(run, offers)
        results = [{r.output: r.bytes for r in m.requests if r.output is not None} for m in (guess, seen)]
        assert results[0] == results[1], run
        assert abs(guess.workspace_bytes() - seen.workspace_bytes()) <= largest / 16, run


class Attending(nn.Module):
    """Fused attention, each of whose gradients is read."""

    def __init__(self, query: torch.Tensor) -> None:
        super().__init__()
        self.query, self.scale = nn.Parameter(query), nn.Parameter(torch.ones_like(query[0, 0, 0]))

    def forward(self, keys: torch.Tensor) -> torch.Tensor:
        return functional.scaled_dot_product_attention(self.query, keys * self.scale, keys + self.scale)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize(
    ("rows", "columns", "width"), [(64, 40, 16), (200, 300, 8), (800, 600, 16), (63, 64, 8), (64, 65, 7)]
)
def test_blocks_of_attention_to_the_byte(dtype: torch.dtype, rows: int, columns: int, width: int) -> None:
    query, keys = torch.randn(2, 2, rows, width, dtype=dtype), torch.randn(2, 2, columns, width, dtype=dtype)
    model = Attending(query)
    estimated = prepare(model, (keys,), {}, Preparing(costs=RATES)).lowered
    recorded = prepare(model, (keys,), {}, Preparing(cache=False)).lowered
    forward = [run for run in implementations(recorded.catalogue) if run.call is draw]
    backward = [run for run in implementations(recorded.catalogue) if run.call is BACKWARD]
    assert forward and backward
    for run in [*forward, *(backward if dtype.itemsize >= 4 else [])]:  # oneDNN's products of halves are not known
        guess, seen = (lowered.profile.of(run, lowered.catalogue) for lowered in (estimated, recorded))
        assert guess.workspace_bytes() == seen.workspace_bytes() > 0, run


def test_nothing_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(*_: object) -> None:
        raise AssertionError("an implementation was run")

    monkeypatch.setattr(bench.Bench, "measure", measure)
    model, example = CASES["images"]()
    profile = prepare(model, (example,), {}, Preparing(costs=RATES)).lowered.profile
    assert profile.estimated and profile.measured == 0 and profile.measurements


def test_a_plan_of_estimates_is_not_run() -> None:
    model, example = CASES["images"]()
    prepared = prepare(model, (example,), {}, Preparing(costs=RATES))
    plan = plan_prepared(prepared, "95%", Solving(time_limit_s=1)).plan
    with pytest.raises(PlanMismatch, match=r"estimated by 3e\+11 FLOP/s .* promise nothing"):
        monet.MonetModule(model, plan)


def test_costs_of_another_step() -> None:
    model, example = CASES["images"]()
    profile = prepare(model, (example,), {}, Preparing(costs=RATES)).lowered.profile
    again = prepare(model, (example,), {}, Preparing(costs=profile))
    assert again.lowered.profile == profile
    with pytest.raises(ProfileError, match="of another model"):
        prepare(model, (example[:4],), {}, Preparing(costs=profile))


def test_another_device() -> None:
    model, example = CASES["images"]()
    offers = prepare(model, (example,), {}, Preparing(costs=RATES)).lowered.catalogue
    name, value = next(iter(offers.graph.values.items()))
    values = {name: replace(value, device=torch.device("cuda"))}
    with pytest.raises(ProfileError, match="estimated for the CPU"):
        estimated_profile(replace(offers, graph=replace(offers.graph, values=values)), RATES)

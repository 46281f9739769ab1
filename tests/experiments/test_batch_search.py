"""The largest batch of a small model: found, planned and measured in earnest; and the scaled guesses behind it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from monet.base.amounts import ByteCount, parse_budget
from monet.errors import CaptureError, ConfigError, InfeasibleBudget
from monet.lab.experiments.batch_search import largest_batch, largest_planned, problem_at_batch
from monet.models.config import Config, InputSpec, load_config
from monet.models.model_loading import build_model
from monet.models.sample_inputs import empty_inputs
from monet.ops.estimating.rates import parse_rates
from monet.pipeline.planning import plan_prepared
from monet.pipeline.preparation import Prepared, Preparing, prepare
from monet.planner.schedules import plan_variant
from monet.planner.search import Solving
from monet.plans.plan import Plan

TINY = load_config("tiny.yaml")
BUDGET = 6_000_000
MONET = [sys.executable, "-m", "monet", "plan"]


@pytest.fixture(scope="module", autouse=True)
def measurements_of_this_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Other tests want to be the first to measure the same model."""
    folder = tmp_path_factory.mktemp("batch-search-cache")
    built = Path(os.environ["MONET_CACHE"]) / "native"
    if built.exists():
        (folder / "native").symlink_to(built)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MONET_CACHE", str(folder))
        yield


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*MONET, *arguments], cwd=folder, capture_output=True, text=True, check=False, timeout=300)


def fits(batch: int, budget_bytes: int) -> bool:
    sized = TINY.with_batch(batch)
    model = build_model(sized)
    args, kwargs = empty_inputs(sized, model)
    prepared = prepare(model, args, kwargs)
    try:
        return (
            plan_prepared(prepared, budget_bytes, Solving(time_limit_s=15.0, gap=0.05)).plan.peak_bytes <= budget_bytes
        )
    except InfeasibleBudget:
        return False


@pytest.mark.slow
def test_the_largest_batch_that_fits() -> None:
    found = largest_batch(TINY, parse_budget(BUDGET), solving=Solving(time_limit_s=15.0, gap=0.05))
    assert found.result.plan.peak_bytes <= BUDGET
    assert found.tried[found.batch] is True
    assert found.batch == max(batch for batch, worked in found.tried.items() if worked)
    # A plan for the batch that was found, and none for one a quarter larger.
    assert found.result.plan.model["inputs"] != {}
    assert fits(found.batch, BUDGET)
    assert not fits(found.batch + max(2, found.batch // 4), BUDGET)


@pytest.mark.slow
def test_overhead_makes_the_batch_smaller() -> None:
    limited = largest_batch(TINY, parse_budget(BUDGET), 0.1, solving=Solving(time_limit_s=15.0, gap=0.02))
    assert limited.result.summary.overhead <= 0.1
    assert limited.result.plan.peak_bytes <= BUDGET
    # As much memory without a limit of time holds at least this batch.
    assert fits(limited.batch, BUDGET)


def test_a_budget_below_one_sample() -> None:
    with pytest.raises(InfeasibleBudget, match=r"no batch of .* that was tried \(.*\) fits in 100\.000 kB"):
        largest_batch(TINY, parse_budget("100kB"), solving=Solving(time_limit_s=5.0))


def with_batch_norm(batch: int) -> Prepared:
    """A step that batch 1 cannot be: batch norm needs more than one value a channel. Its costs are estimates."""
    model = nn.Sequential(nn.Linear(16, 64), nn.BatchNorm1d(64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
    return prepare(model, (torch.empty(batch, 16),), {}, Preparing(costs=parse_rates("300GFLOPS,20GB/s")))


def test_far_too_little_says_what_was_tried_and_why_nothing_else() -> None:
    with pytest.raises(InfeasibleBudget, match=r"tried \(64\) fits in .* not even batch 1 would; .* takes 22\.024 kB"):
        largest_planned(with_batch_norm, 64, ByteCount(10_000), solving=Solving(time_limit_s=1))


@pytest.mark.slow
def test_a_batch_that_cannot_be_captured_is_not_the_end() -> None:
    with pytest.raises(InfeasibleBudget, match=r"tried \(1, 2, 64\).*batch 1 cannot be captured: .* more than 1 value"):
        largest_planned(with_batch_norm, 64, ByteCount(24_000), solving=Solving(time_limit_s=1))
    enough = ByteCount(with_batch_norm(2).eager_peak_bytes + 100)
    found = largest_planned(with_batch_norm, 64, enough, solving=Solving(time_limit_s=1))
    assert found.batch in (2, 3) and found.result.plan.peak_bytes <= enough.bytes
    with pytest.raises(CaptureError, match="more than 1 value"):
        largest_planned(with_batch_norm, 1, enough)


def test_shares_of_eagers_peak_are_refused() -> None:
    with pytest.raises(ConfigError, match="grows with the batch"):
        largest_batch(TINY, parse_budget("50%"))


def test_the_batch_of_a_configuration() -> None:
    assert TINY.batch() == TINY.inputs[0].shape[0]  # type: ignore[index]
    assert TINY.with_batch(3).batch() == 3
    two = TINY.model_copy(update={"inputs": (InputSpec(shape=(2, 3)), InputSpec(shape=(4, 3)))})
    with pytest.raises(ConfigError, match=r"\[2, 4\]"):
        two.batch()
    named = TINY.model_copy(update={"inputs": {"x": InputSpec(shape=(2, 3)), "y": InputSpec(shape=(2,))}})
    sized: Config = named.with_batch(7)
    assert {name: spec.shape for name, spec in sized.inputs.items()} == {"x": (7, 3), "y": (7,)}  # type: ignore[union-attr]


def test_a_scaled_step_costs_in_proportion() -> None:
    model = build_model(TINY)
    args, kwargs = empty_inputs(TINY, model)
    problem = prepare(model, args, kwargs).problem
    per_batch = 1000
    double = problem_at_batch(problem, per_batch, 2.0)
    assert double.fixed_bytes == problem.fixed_bytes + per_batch
    one, two = plan_variant("pytorch", problem, 2**62), plan_variant("pytorch", double, 2**62)
    assert two.objective_s == pytest.approx(2 * one.objective_s)
    assert two.peak_bytes - double.fixed_bytes == 2 * (one.peak_bytes - problem.fixed_bytes)
    assert replace(problem_at_batch(problem, per_batch, 1.0), name="") == replace(problem, name="")


@pytest.mark.slow  # plans several batches, and runs a step in two processes
def test_the_command_finds_plans_and_measures_a_batch(tmp_path: Path) -> None:
    arguments = ("tiny.yaml", "--budget", str(BUDGET), "--max-batch", "--time-limit", "5", "--gap", "0.05", "--measure")
    done = run(tmp_path, *arguments, "--json", "out.json")
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "out.json").read_text())
    assert summary["batches_tried"][str(summary["batch"])] is True
    assert f"{summary['batch']} (fits)" in done.stdout
    plan = Plan.load(tmp_path / "tiny.plan.json")
    assert plan.peak_bytes == summary["peak_bytes"] <= plan.budget_bytes == BUDGET
    # Measured with the batch that was found: exact, in bytes.
    assert summary["measured"]["planned"]["allocator_peak_bytes"] == plan.peak_bytes
    refused = run(tmp_path, "tiny.yaml", "--budget", "50%", "--max-batch", "--output", "no.json")
    assert refused.returncode == 2 and "grows with the batch" in refused.stderr
    assert not os.path.exists(tmp_path / "no.json")


@pytest.mark.slow  # each runs the command, and a step in two processes
@pytest.mark.parametrize("limit", [(), ("--max-overhead", "10%")])
def test_the_least_memory_is_measured_exactly(tmp_path: Path, limit: tuple[str, ...]) -> None:
    done = run(
        tmp_path,
        "tiny.yaml",
        "--minimise",
        "memory",
        *limit,
        "--time-limit",
        "5",
        "--gap",
        "0.05",
        "--measure",
        "--json",
        "out.json",
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "out.json").read_text())
    plan = Plan.load(tmp_path / "tiny.plan.json")
    assert summary["measured"]["planned"]["allocator_peak_bytes"] == plan.peak_bytes == summary["peak_bytes"]
    assert summary["bound_bytes"] <= summary["peak_bytes"] < summary["baseline_peak_bytes"]
    assert summary["bound_s"] is None
    if limit:
        assert summary["overhead"] <= 0.1

"""Plans that were changed; samples of the two benchmarks that try plans in numbers, changed and in limited memory."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys

import pytest
import torch
from repository import ROOT
from torch import nn

import monet
from monet.errors import ExecutionError, InvalidPlan


def run(script: str, *options: str) -> str:
    command = [sys.executable, str(ROOT / "benchmarks" / script), *options]
    done = subprocess.run(command, cwd=ROOT / "benchmarks", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_results_of_one_size_with_each_others_requests_are_found_in_the_first_step() -> None:
    """Nobody but the kernel knows which of its requests is for which of its results."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3))
    x = torch.randn(4, 3, 12, 12)
    plan = monet.plan(model, x, budget="100%", exact=True, time_limit_s=2, cores=1)
    k = next(i for i, step in enumerate(plan.steps) if "batch_norm" in step.node)
    step = plan.steps[k]
    mean, scale = list(step.writes.values())[1:3]
    other = {mean: scale, scale: mean}
    requests = tuple(id if id is None else other.get(id, id) for id in step.requests)
    steps = [dataclasses.replace(step, requests=requests) if i == k else step for i, step in enumerate(plan.steps)]
    changed = dataclasses.replace(plan, steps=tuple(steps))
    monet.MonetModule(model, plan)(x).sum().backward()
    with pytest.raises(ExecutionError, match=rf"step {k} .*_batch_norm_.* lies \d+ bytes (above|below) its place"):
        monet.MonetModule(model, changed)(x)


def test_an_operator_that_is_left_out_or_run_twice_is_found() -> None:
    """Also where nothing reads what it makes: batch norm's number of batches."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3))
    x = torch.randn(4, 3, 12, 12)
    plan = monet.plan(model, x, budget="100%", exact=True, time_limit_s=2, cores=1)
    k = next(i for i, step in enumerate(plan.steps) if step.node == "add")
    norm = next(step.node for step in plan.steps if "batch_norm" in step.node)
    steps = list(plan.steps)
    steps[k] = dataclasses.replace(steps[k], node=norm)
    changed = dataclasses.replace(plan, steps=tuple(steps))
    with pytest.raises(InvalidPlan, match=rf"forward operator ({norm}|add) is run [02] times, and a step runs it once"):
        monet.MonetModule(model, changed)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["module", "accumulating", "whole step", "moving", "varying", "fused"])
def test_a_changed_file_is_refused_or_runs_with_eagers_results(name: str) -> None:
    """Other seeds than the record's."""
    printed = run("bench_tampered.py", "--only", name, "--count", "300", "--first", "1000000")
    assert f"{name}: " in printed and "'refused'" in printed and "fault" not in printed, printed


@pytest.mark.slow
def test_steps_stay_within_a_limited_memory() -> None:
    """Whether eager's own do is in the record: 16 MiB beside the promise let those of small networks pass."""
    printed = run("bench_certified.py", "--only", "mlp, deep", "--budgets", "3", "--again")
    found = json.loads(printed)
    assert found["runs"] == 36 and found["errors"] == []
    assert (found["killed"], found["misses"], found["off_bytes"]) == (0, 0, 0)

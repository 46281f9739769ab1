"""The first run on a GPU, tried on the CPU, so that it is known to work on the day; and where packages are missing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from repository import ROOT

BLOCK = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names}:
            raise ModuleNotFoundError("No module named " + name, name=name)

sys.meta_path.insert(0, Missing())
"""
STEP = """
import torch, monet
torch.manual_seed(0)
model, x = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Tanh(), torch.nn.Linear(6, 4)), torch.randn(5, 6)
"""
PLAN = "monet.plan(model, (x,), budget='1MB', progress=False).save('plan.json')"
RUN = "planned = monet.MonetModule(model, 'plan.json'); planned(x).sum().backward(); print(planned.plan.peak_bytes)"


def python(*arguments: str, at: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "MONET_CACHE": str(at / "cache"), "OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, *arguments], cwd=at, env=environment, capture_output=True, text=True)


@pytest.mark.slow
def test_a_plan_runs_where_no_planner_can(tmp_path: Path) -> None:
    """Solvers, configurations and models of others are for whoever plans."""
    made = python("-c", STEP + PLAN, at=tmp_path)
    assert made.returncode == 0, made.stderr
    missing = {
        "cvxpy",
        "highspy",
        "gurobipy",
        "pydantic",
        "pydantic_core",
        "platformdirs",
        "transformers",
        "torchvision",
    }
    ran = python("-c", BLOCK.format(names=missing) + STEP + RUN, at=tmp_path)
    assert ran.returncode == 0 and int(ran.stdout) > 0, ran.stderr


def test_monet_is_a_module_to_run(tmp_path: Path) -> None:
    """Where its commands are not installed."""
    found = python("-m", "monet", "--help", at=tmp_path)
    assert found.returncode == 0 and "profile" in found.stdout


@pytest.mark.slow
def test_the_first_run_on_a_gpu(tmp_path: Path) -> None:
    found = python(
        str(ROOT / "benchmarks/first_gpu_run.py"),
        "--device",
        "cpu",
        "--tiny",
        "--out",
        str(tmp_path / "out"),
        at=tmp_path,
    )
    rows = [json.loads(line) for line in (tmp_path / "out" / "parts.jsonl").read_text().splitlines()]
    assert [row for row in rows if row["status"] != 0] == [] and found.returncode == 0, found.stderr
    assert len(rows) == 3 + 3 + 3 * 3
    promises = [row for row in rows if row["part"].startswith("promise")]
    assert len(promises) == 3 and all(row["promised"] == row["measured"] for row in promises)


def test_an_unknown_part_is_named(tmp_path: Path) -> None:
    found = python(str(ROOT / "benchmarks/first_gpu_run.py"), "promises", at=tmp_path)
    assert found.returncode == 2 and "there is no part promises" in found.stderr

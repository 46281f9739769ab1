"""A sweep of a model on this machine: plan files, and measuring beside planning."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from monet.cli.main import program
from monet.errors import ExecutionError
from monet.plans.plan import Plan
from monet.plans.verifier import verify

MODULE = """
from torch import nn

def make():
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 8))
"""


def run(*arguments: str) -> Result:
    return CliRunner().invoke(program, ["sweep", *arguments, "--time-limit", "5"])


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "swept_model.py").write_text(MODULE)
    (tmp_path / "swept.yaml").write_text("model: swept_model:make\ninputs: [{shape: [512, 64]}]\n")
    return "swept.yaml"


@pytest.mark.slow
def test_plans_are_saved_and_measured_once(config: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, bool]] = []

    def measure(loaded: object, plan: Path, *, eager: bool, progress: bool) -> dict[str, dict[str, Any]]:
        calls.append((plan.name.partition("-")[0], eager))
        peak = Plan.load(plan).peak_bytes
        planned = {"step_s": 0.25, "allocator_peak_bytes": peak, "resident_peak_bytes": None}
        return {"planned": planned, **({"eager": {**planned, "allocator_peak_bytes": 9_999_999}} if eager else {})}

    monkeypatch.setattr("monet.lab.experiments.measured_steps.measure_config", measure)
    arguments = (config, "--budgets", "10kB,100%", "--variants", "monet,pytorch", "--measure")
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    assert calls == [("monet", True), ("pytorch", False)]
    folder = Path("swept.sweep")
    rows = json.loads((folder / "sweep.json").read_text())["rows"]
    assert [(row["variant"], row["status"] == "infeasible") for row in rows] == [
        ("monet", True), ("monet", False), ("pytorch", True), ("pytorch", False)
    ]  # fmt: skip
    plans = sorted((folder / "plans").iterdir())
    assert len(plans) == 2
    for path, row in zip(plans, (rows[1], rows[3]), strict=True):
        plan = Plan.load(path)
        verify(plan)
        assert plan.peak_bytes == row["peak_bytes"] == row["arena_bytes"] + row["fixed_bytes"]
        assert plan.peak_bytes <= plan.budget_bytes == row["budget_bytes"]
        assert row["measured_allocator_peak_bytes"] == row["peak_bytes"]
        assert row["measured_eager_allocator_peak_bytes"] == 9_999_999
    page = (folder / "report.html").read_text()
    assert "Planned and measured" in page and "250.00 ms" in page

    # Again: nothing is planned or measured, except what is gone.
    assert "4 cells, 0 of them planned now" in run(*arguments).stdout
    assert len(calls) == 2
    plans[1].unlink()
    assert "4 cells, 1 of them planned now" in run(*arguments).stdout
    assert calls[2:] in ([], [("pytorch", False)])  # the same plan again need not be measured again


@pytest.mark.slow
def test_a_plan_that_does_not_run_says_so_everywhere(config: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(loaded: object, plan: Path, *, eager: bool, progress: bool) -> dict[str, dict[str, Any]]:
        if plan.name.startswith("pytorch"):
            raise ExecutionError("relu_2 is too dense")
        found = {"step_s": 0.25, "allocator_peak_bytes": 1, "resident_peak_bytes": None}
        return {"planned": found, "eager": found}

    monkeypatch.setattr("monet.lab.experiments.measured_steps.measure_config", measure)
    result = run(config, "--budgets", "100%", "--variants", "monet,pytorch", "--measure")
    assert result.exit_code == 0 and "pytorch" in result.stderr and "relu_2 is too dense" in result.stderr
    rows = json.loads(Path("swept.sweep/sweep.json").read_text())["rows"]
    assert [row["message"] for row in rows] == [None, "planned, but cannot be measured: relu_2 is too dense"]
    assert rows[1]["status"] == "heuristic" and rows[1]["measured_step_s"] is None
    page = Path("swept.sweep/report.html").read_text()
    assert "Cells without a plan or a measurement" in page and "relu_2 is too dense" in page


@pytest.mark.slow
def test_what_is_measured_is_what_was_promised(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    result = run("tiny.yaml", "--budgets", "80%", "--variants", "monet", "--measure", "--output", str(folder))
    assert result.exit_code == 0, result.output
    (row,) = json.loads((folder / "sweep.json").read_text())["rows"]
    assert row["measured_allocator_peak_bytes"] == row["peak_bytes"] <= row["budget_bytes"]
    assert row["measured_step_s"] > 0 and row["measured_eager_step_s"] > 0
    assert row["measured_eager_allocator_peak_bytes"] > row["peak_bytes"]

"""``monet plan`` says what a plan is about like before it measures, where that takes long."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result

from monet.capture import kept_captures
from monet.capture.effects import same_outputs
from monet.cli.main import program
from monet.models.examples import tiny_resnet
from monet.pipeline import preparation

CONFIG = """
model: monet.models.examples:tiny_resnet
inputs:
  - shape: [4, 3, 16, 16]
"""


def plan(folder: Path, budget: str, *options: str) -> Result:
    (folder / "small.yaml").write_text(CONFIG)
    arguments = [str(folder / "small.yaml"), "--budget", budget, "--output", str(folder / "p.json"), *options]
    return CliRunner().invoke(program, ["plan", "--time-limit", "2", *arguments])


@pytest.fixture
def cold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing was measured, and all measuring takes long."""
    monkeypatch.setenv("MONET_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(preparation, "LOOK_S", 0.0)
    return tmp_path


def test_a_plan_by_estimates_is_said_first_and_once(cold: Path) -> None:
    first = plan(cold, "1MB")
    assert first.exit_code == 0, first.output
    said = re.search(r"by estimates: a plan of ([\d.]+) kB, .* eager's, .* again; (\d+) operators are", first.stderr)
    assert said is not None and float(said[1]) <= 1000 and int(said[2]) > 20
    assert first.stderr.index("by estimates") < first.stderr.index("measuring operators")
    assert "by estimates" not in first.stdout
    assert "by estimates" not in plan(cold, "1MB").stderr  # all of it is known now


@pytest.mark.slow
def test_a_refusal_by_estimates_is_no_refusal(cold: Path) -> None:
    """The one that counts is by what was measured."""
    refused = plan(cold, "1kB")
    assert re.search(r"by estimates: no plan fits, the smallest known takes [\d.]+ kB; \d+ operators", refused.stderr)
    assert refused.exit_code == 1 and "fits in 1.000 kB" in refused.stderr


def test_nobody_who_wants_quiet_is_told(cold: Path) -> None:
    quiet = plan(cold, "1MB", "--quiet")
    assert (quiet.exit_code, quiet.stderr) == (0, "")


def test_the_model_is_run_after_it(cold: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Comparing the trace with the model takes two forward passes: at a large batch, longer than all that is before."""
    order: list[str] = []
    compares = same_outputs.require_same_outputs

    def noted(*call: Any, **how: Any) -> bool:
        order.append("run")
        return compares(*call, **how)

    monkeypatch.setattr(kept_captures, "require_same_outputs", noted)
    for _ in range(2):
        preparation.prepare(tiny_resnet(), (torch.randn(2, 3, 16, 16),), {}, look=lambda *_: order.append("look"))
    assert order == ["look", "run"]  # both once: it is kept what was measured and compared

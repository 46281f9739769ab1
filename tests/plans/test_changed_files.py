"""Samples of the two benchmarks that try plans in numbers: files changed at random, and steps in limited memory."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from repository import ROOT


def run(script: str, *options: str) -> str:
    command = [sys.executable, str(ROOT / "benchmarks" / script), *options]
    done = subprocess.run(command, cwd=ROOT / "benchmarks", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", ["module", "accumulating", "whole step", "moving", "varying", "fused"])
def test_a_changed_file_is_refused_or_runs_with_eagers_results(name: str) -> None:
    """Other seeds than the record's."""
    printed = run("bench_tampered.py", "--only", name, "--count", "300", "--first", "1000000")
    assert f"{name}: " in printed and "'refused'" in printed and "fault" not in printed, printed


@pytest.mark.slow
def test_steps_stay_within_a_limited_memory() -> None:
    """And eager's own do not."""
    printed = run("bench_certified.py", "--only", "mlp, deep", "--budgets", "3", "--again")
    found = json.loads(printed)
    assert found["runs"] == 36 and found["errors"] == []
    assert (found["killed"], found["misses"], found["off_bytes"]) == (0, 0, 0)
    assert found["controls"] == {"True": 6}

"""The command line on a real, tiny configuration, each run in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
from interrupts import default_interrupts
from slow_cases import slow_but

from monet.base.files.cache import open_table
from monet.plans.plan import Plan

MONET = [sys.executable, "-m", "monet"]


def _run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*MONET, *arguments], cwd=folder, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("work")


@pytest.mark.slow
def test_plan_measure_and_json(folder: Path) -> None:
    done = _run(folder, "plan", "tiny.yaml", "--budget", "80%", "--measure", "--json", "summary.json")
    assert done.returncode == 0, done.stderr
    summary = json.loads((folder / "summary.json").read_text())
    plan = Plan.load(folder / "tiny.plan.json")
    assert summary["peak_bytes"] == plan.peak_bytes <= plan.budget_bytes == summary["budget_bytes"]
    assert summary["arena_bytes"] + summary["fixed_bytes"] == summary["peak_bytes"]
    for key in (
        "status",
        "baseline_s",
        "baseline_peak_bytes",
        "objective_s",
        "overhead",
        "build_s",
        "solve_s",
    ):
        assert summary[key] is not None, key
    assert "planned again with the times of its own step" in done.stdout
    assert plan.solver["objective_s"] == summary["objective_s"]
    assert summary["bound_s"] is None or summary["bound_s"] <= summary["objective_s"]
    # The promise, measured in another process: exact, in bytes.
    assert summary["measured"]["planned"]["allocator_peak_bytes"] == plan.peak_bytes
    eager_bytes = summary["measured"]["eager"]["allocator_peak_bytes"]
    assert eager_bytes > plan.peak_bytes
    # Eager adds gradients up in place where the trace makes a new sum, and so may need less than is said.
    assert summary["eager_peak_bytes"] == pytest.approx(eager_bytes, rel=0.03)
    assert summary["eager_peak_bytes"] < summary["baseline_peak_bytes"]
    assert "measuring" not in done.stdout.splitlines()[0]
    assert "saved tiny.plan.json" in done.stdout


def _as_if_quiet() -> None:
    """What was measured while other tests kept the machine busy would be measured again: take it for good."""
    with closing(open_table("measurement", "value TEXT")) as database, database:
        database.execute(
            "UPDATE OR REPLACE measurement SET key = substr(key, length('busy machine|') + 1) "
            "WHERE key LIKE 'busy machine|%'"
        )


@pytest.mark.slow  # two whole runs of the command
def test_second_run_measures_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MONET_CACHE", str(tmp_path / "cache"))
    command = ("plan", "tiny.yaml", "--budget", "90%")
    first = _run(tmp_path, *command)
    assert first.returncode == 0 and "measuring operators" in first.stderr, first.stderr
    _as_if_quiet()
    second = _run(tmp_path, *command)
    assert second.returncode == 0 and "measuring operators" not in second.stderr, second.stderr


@pytest.mark.slow
def test_infeasible_budget_says_what_is_feasible(folder: Path) -> None:
    done = _run(folder, "plan", "tiny.yaml", "--budget", "1MB", "--output", "no.plan.json", "--json", "no.json")
    assert done.returncode == 1
    assert done.stdout == ""
    assert "smallest" in done.stderr and "Traceback" not in done.stderr
    assert "fits in 1.000 MB (1,000,000 bytes)" in done.stderr and "MiB" not in done.stderr
    assert not (folder / "no.plan.json").exists() and not (folder / "no.json").exists()


@pytest.mark.slow  # a whole run of the command
def test_a_configuration_that_accumulates(folder: Path) -> None:
    (folder / "sums.yaml").write_text("model: torch.nn:Linear\nkwargs: {in_features: 8, out_features: 8}\n"
                                      "inputs: [{shape: [4, 8]}]\naccumulate: true\n")  # fmt: skip
    done = _run(folder, "plan", "sums.yaml", "--budget", "100%", "--measure", "--json", "sums.json")
    assert done.returncode == 0, done.stderr
    summary = json.loads((folder / "sums.json").read_text())
    assert Plan.load(folder / "sums.plan.json").model["accumulate"]
    assert summary["measured"]["planned"]["allocator_peak_bytes"] == summary["peak_bytes"]


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (("tiny.yaml", "--budget", "6QB"), 2, "6QB"),
        (("malformed.yaml", "--budget", "6GB"), 2, "malformed.yaml:3"),
        *slow_but(
            [],
            [
                (("missing.yaml", "--budget", "6GB"), 2, "missing.yaml"),
                (("tiny.yaml", "--budget", "6GB", "--solver", "NONE"), 1, "NONE"),
                (("unimportable.yaml", "--budget", "6GB"), 2, "no_such_package"),
                (
                    ("misnamed.yaml", "--budget", "6GB"),
                    2,
                    "missing a required argument: 'input'; Sequential.forward takes input",
                ),
            ],
        ),
    ],
)
def test_bad_input(folder: Path, arguments: tuple[str, ...], status: int, said: str) -> None:
    (folder / "unimportable.yaml").write_text("model: no_such_package:make\ninputs: [{shape: [2, 3]}]\n")
    (folder / "malformed.yaml").write_text("model: monet.models.examples:tiny_resnet\ninputs: [{shape: [2, 3]\n")
    (folder / "misnamed.yaml").write_text("model: monet.models.examples:tiny_resnet\ninputs: {y: {shape: [2, 3]}}\n")
    before = set(folder.iterdir())
    done = _run(folder, "plan", *arguments)
    assert done.returncode == status, done.stderr
    assert said in done.stderr and "Traceback" not in done.stderr
    assert set(folder.iterdir()) == before


def ended_in(process: subprocess.Popen[bytes], limit_s: float) -> bool:
    """Whether it ends by itself; it is gone in any case."""
    try:
        process.wait(limit_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return False
    return True


def test_interrupt_while_solving_saves_the_best_plan(folder: Path) -> None:
    # Many equal blocks: little to measure, much to decide.
    (folder / "deep.py").write_text(
        "from torch import nn\n"
        "def make():\n"
        "    block = lambda: [nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()]\n"
        "    return nn.Sequential(*[layer for _ in range(40) for layer in block()])\n"
    )
    (folder / "deep.yaml").write_text("model: deep:make\ninputs: [{shape: [8, 8, 24, 24]}]\n")
    arguments = ["plan", "deep.yaml", "--budget", "35%", "--gap", "0", "--time-limit", "900"]
    errors = folder / "stderr.txt"
    with errors.open("w") as stream:
        process = subprocess.Popen(
            [*MONET, *arguments, "--output", "stopped.plan.json"],
            cwd=folder,
            stderr=stream,
            stdout=subprocess.PIPE,
            preexec_fn=default_interrupts,
        )
        deadline = time.monotonic() + 90
        while "best" not in errors.read_text() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        ended = ended_in(process, 240)
    text = errors.read_text()
    assert ended and "Traceback" not in text, text[-2000:]
    assert process.returncode == 130, (process.returncode, text[-2000:])
    Plan.load(folder / "stopped.plan.json")
    assert not [name for name in os.listdir(folder) if "tmp" in name]


def test_ctrl_c_in_a_weak_references_callback_is_not_lost() -> None:
    """Python drops what is raised there."""
    script = (
        "import os, signal, sys, time, weakref\n"
        "from monet.cli.main import _keep_interrupts\n"
        "class Thing: pass\n"
        "def freed(_): os.kill(os.getpid(), signal.SIGINT); time.sleep(0.1)\n"
        "_keep_interrupts()\n"
        "thing = Thing(); watched = weakref.ref(thing, freed)\n"
        "try:\n"
        "    del thing\n"
        "    time.sleep(5)\n"
        "except KeyboardInterrupt:\n"
        "    sys.exit(7)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], preexec_fn=default_interrupts, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (7, "")


@pytest.mark.slow
def test_interrupt_before_there_is_a_plan_leaves_nothing(folder: Path) -> None:
    process = subprocess.Popen(
        [*MONET, "plan", "tiny.yaml", "--budget", "80%", "--no-cache", "--output", "never.plan.json"],
        cwd=folder,
        stderr=subprocess.PIPE,
        preexec_fn=default_interrupts,
    )
    assert process.stderr is not None
    seen = b""
    while b"measuring operators" not in seen:
        piece = os.read(process.stderr.fileno(), 4096)
        assert piece, seen
        seen += piece
    process.send_signal(signal.SIGINT)
    rest = process.communicate(timeout=60)[1]
    assert process.returncode == 130, rest
    assert b"Traceback" not in rest
    assert not (folder / "never.plan.json").exists()

"""``monet sweep --cluster``: a scheduler and two workers, each a process of its own on this machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from interrupts import default_interrupts
from made_up_profile import write_profile

from monet.cli.main import program

distributed = pytest.importorskip("distributed")

BUDGETS, AMOUNTS = "3500kB:5500kB:500kB", tuple(range(3_500_000, 5_500_001, 500_000))
VARIANTS = ("none", "monet", "pytorch", "sqrt-n")
CELLS = [(variant, amount) for variant in VARIANTS for amount in AMOUNTS]


@dataclass
class Cluster:
    """``workers``: by name."""

    address: str
    workers: dict[str, subprocess.Popen[bytes]]
    client: Any

    def start(self, name: str, **environment: str) -> None:
        command = [sys.executable, "-m", "dask", "worker", self.address, "--no-nanny", "--nthreads", "1"]
        command += ["--name", name, "--no-dashboard", "--host", "127.0.0.1"]
        self.workers[name] = subprocess.Popen(command, env={**os.environ, **environment}, stderr=subprocess.DEVNULL)

    def names(self) -> set[str]:
        return {str(worker["name"]) for worker in self.client.scheduler_info(n_workers=-1)["workers"].values()}

    def cells_at(self, name: str) -> set[str]:
        """Keys of the cells that a worker is to plan, as the scheduler sees it."""
        workers = self.client.scheduler_info(n_workers=-1)["workers"]
        waiting = self.client.processing()
        at = (address for address, worker in workers.items() if str(worker["name"]) == name)
        return {str(key) for address in at for key in waiting.get(address, ()) if "monet-cell" in str(key)}


def wait_until(true: Callable[[], object]) -> None:
    while not true():
        time.sleep(0.02)


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("scheduler")
    command = [sys.executable, "-m", "dask", "scheduler", "--port", "0", "--no-dashboard", "--host", "127.0.0.1"]
    told = folder / "at.json"
    command += ["--scheduler-file", str(told)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    wait_until(lambda: told.is_file() and told.stat().st_size > 0)  # it is written after it was made
    yield json.loads(told.read_text())["address"]
    process.kill()
    process.wait()


@pytest.fixture
def cluster(scheduler: str) -> Iterator[Cluster]:
    """Two workers; those that are left are ended."""
    with distributed.Client(scheduler, set_as_default=False) as client:
        made = Cluster(scheduler, {}, client)
        try:
            for name in ("one", "other"):
                made.start(name)
            wait_until(lambda: made.names() == {"one", "other"})
            yield made
        finally:
            for process in made.workers.values():
                process.kill()
                process.wait()
            wait_until(lambda: not made.names())


def arguments(folder: Path, address: str, *more: str) -> list[str]:
    profile = folder / "chain.json"
    if not profile.exists():
        write_profile(profile)
    return [
        *("sweep", "--profile", str(profile), "--budgets", BUDGETS, "--variants", ",".join(VARIANTS)),
        *("--output", str(folder / "out"), "--cluster", address, "--gap", "0", "--time-limit", "5", *more),
    ]


def run(folder: Path, address: str, *more: str) -> Result:
    return CliRunner().invoke(program, arguments(folder, address, *more))


def rows_of(folder: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((folder / "out" / "sweep.json").read_text())["rows"]
    return rows


def assert_complete(folder: Path) -> None:
    """Every cell is there once, with a plan or a reason."""
    rows = rows_of(folder)
    assert [(row["variant"], row["budget_bytes"]) for row in rows] == CELLS
    assert {row["status"] for row in rows} <= {"optimal", "heuristic", "infeasible"}


@pytest.mark.slow
def test_the_table_is_that_of_one_machine(cluster: Cluster, tmp_path: Path) -> None:
    done = run(tmp_path, cluster.address)
    assert done.exit_code == 0, done.output
    assert_complete(tmp_path)
    here = tmp_path / "here"
    here.mkdir()
    command = arguments(here, cluster.address, "--jobs", "1")
    at = command.index("--cluster")
    alone = CliRunner().invoke(program, command[:at] + command[at + 2 :])
    assert alone.exit_code == 0, alone.output
    for there, row in zip(rows_of(tmp_path), rows_of(here), strict=True):
        assert there["status"] == row["status"] and there["peak_bytes"] == row["peak_bytes"], there
        assert there["objective_s"] == pytest.approx(row["objective_s"])


@pytest.mark.slow
def test_a_worker_killed_in_mid_cell(cluster: Cluster, tmp_path: Path) -> None:
    """It is stopped first, so that the cell is certain to be under way when it dies."""
    sweep = subprocess.Popen([sys.executable, "-m", "monet", *arguments(tmp_path, cluster.address)])
    wait_until(lambda: cluster.cells_at("one"))
    cluster.workers["one"].send_signal(signal.SIGSTOP)
    # What it had sent has arrived once two looks are the same.
    before: set[str] = set()
    while not before or before != cluster.cells_at("one"):
        before = cluster.cells_at("one")
        time.sleep(0.2)
    cluster.workers["one"].kill()
    assert sweep.wait() == 0
    assert_complete(tmp_path)
    lost = {f"monet-cell-{row['variant']}-{row['budget_bytes']}" for row in rows_of(tmp_path)}
    assert before and {key.rpartition("-")[0] for key in before} <= lost
    files = [path.name.rpartition("-")[0] for path in (tmp_path / "out" / "cells").glob("*.json")]
    assert Counter(files)["step"] == 1 and all(count == 1 for count in Counter(files).values())
    assert len(files) == len(CELLS) + 1


@pytest.mark.slow
def test_interrupted_and_finished_here(cluster: Cluster, tmp_path: Path) -> None:
    """Ctrl-C cancels what is not planned; the same command without the cluster goes on."""
    command = [sys.executable, "-m", "monet", *arguments(tmp_path, cluster.address)]
    sweep = subprocess.Popen(command, preexec_fn=default_interrupts, stderr=subprocess.PIPE, text=True)
    cells = tmp_path / "out" / "cells"
    wait_until(lambda: cells.is_dir() and len(list(cells.glob("*.json"))) > 1)
    sweep.send_signal(signal.SIGINT)
    _, said = sweep.communicate()
    assert sweep.returncode == 130 and "the same command goes on from there" in said, said
    wait_until(lambda: not (cluster.cells_at("one") | cluster.cells_at("other")))
    kept = {path: path.stat().st_mtime_ns for path in cells.glob("*.json")}
    assert 1 < len(kept) <= len(CELLS)
    done = run(tmp_path, cluster.address, "--quiet")
    assert done.exit_code == 0, done.output
    assert_complete(tmp_path)
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    assert f"{len(CELLS)} cells, {len(CELLS) - len(kept) + 1} of them planned now" in done.output


@pytest.mark.slow  # the workers import torch, capture the model, and every plan is run
def test_a_model_is_planned_for_the_machine_that_asks(cluster: Cluster, tmp_path: Path) -> None:
    """Costs are measured once, here; plans come back as files that run here."""
    done = CliRunner().invoke(
        program,
        ["sweep", "tiny.yaml", "--budgets", "90%,100%", "--variants", "monet,pytorch", "--time-limit", "2", "--measure",
         "--cluster", cluster.address, "--output", str(tmp_path / "out")],
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    rows = rows_of(tmp_path)
    assert len(rows) == 4 and len(list((tmp_path / "out" / "plans").iterdir())) == sum(
        bool(r["peak_bytes"]) for r in rows
    )
    planned = [row for row in rows if row["peak_bytes"] is not None]
    assert planned and all(row["measured_allocator_peak_bytes"] == row["peak_bytes"] for row in planned)


def test_what_is_no_address(tmp_path: Path) -> None:
    done = run(tmp_path, "scheduler")
    assert (
        done.exit_code == 2 and "'scheduler' is no address of a scheduler: give one as tcp://HOST:8786" in done.output
    )


def test_nobody_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("monet.lab.sweep.cluster.ANSWER_S", 1)
    done = run(tmp_path, "tcp://127.0.0.1:1")
    assert done.exit_code == 1 and "no Dask scheduler answers at tcp://127.0.0.1:1" in done.output


def test_no_workers(scheduler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("monet.lab.sweep.cluster.ANSWER_S", 1)
    done = run(tmp_path, scheduler)
    assert done.exit_code == 1 and "has no workers" in done.output


def test_other_versions(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("monet.lab.sweep.cluster.versions_here", lambda: {"monet-planner": "0.0.1", "torch": "1.0"})
    done = run(tmp_path, cluster.address)
    assert done.exit_code == 1 and "and this is monet-planner 0.0.1" in done.output, done.output


def test_without_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    done = run(tmp_path, "tcp://127.0.0.1:8786")
    assert done.exit_code == 2 and "pip install distributed" in done.output


def test_what_does_not_go_together(tmp_path: Path) -> None:
    done = run(tmp_path, "tcp://127.0.0.1:8786", "--jobs", "2")
    assert done.exit_code == 2 and "--cluster has its own workers" in done.output
    done = run(tmp_path, "tcp://127.0.0.1:8786", "--offload", "disk,bandwidth=1GB/s")
    assert done.exit_code == 2 and "is a memory of one machine" in done.output

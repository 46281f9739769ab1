"""Two processes that train together: starts them, and collects what each of them returns."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from repository import ROOT

WORLD = 2


def shared_ranks(cases: list[str], factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """As ``run_ranks``, once in a run of the tests: the worker that gets there first starts the processes, and the
    others wait for what they find."""
    folder = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # of the folders of all workers
    kept = folder / f"ranks-{'-'.join(cases)}"
    with open(kept.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.exists():
            torch.save(run_ranks(cases, factory.mktemp("ranks")), kept)
    found: dict[str, list[Any]] = torch.load(kept, weights_only=False)
    return found


def run_ranks(cases: list[str], folder: Path) -> dict[str, list[Any]]:
    """What the functions of ``rank_cases.py`` with these names return, by rank. Raises ``AssertionError`` with what the
    processes said where one of them fails."""
    paths = [str(ROOT / "tests" / "support"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen(
            [sys.executable, str(ROOT / "tests" / "support" / "rank_cases.py"), str(rank), str(folder), *cases],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(WORLD)
    ]
    said = [process.communicate()[0] for process in started]
    for rank, process in enumerate(started):
        assert process.returncode == 0, f"rank {rank} ended with {process.returncode}:\n" + "\n".join(said)
    found = [torch.load(folder / f"rank{rank}", weights_only=False) for rank in range(WORLD)]
    return {case: [of_rank[case] for of_rank in found] for case in cases}

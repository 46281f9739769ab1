"""Writes a benchmark's result with what is needed to read it later: commit, machine, versions."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from monet.lab.experiments import provenance

RESULTS = Path(__file__).parent / "results"


def machine() -> dict[str, Any]:
    """As for a sweep, and the threads that torch uses."""
    import torch

    return {**provenance.machine(), "threads": torch.get_num_threads()}


def _commit() -> str:
    found = subprocess.run(["git", "describe", "--always", "--dirty=+"], capture_output=True, text=True, check=False)
    return found.stdout.strip()


COMMIT = _commit()
"""When the benchmark began, before it wrote results; ``+`` where the tree had changes."""


def known(name: str) -> dict[str, Any]:
    """The result that ``write`` has kept; empty where there is none."""
    path = RESULTS / f"{name}.json"
    result: dict[str, Any] = json.loads(path.read_text())["result"] if path.exists() else {}
    return result


def write(name: str, result: Any) -> Path:
    """``results/<name>.json``, with commit, machine and versions."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    content = {
        "benchmark": name,
        "commit": COMMIT,
        "machine": machine(),
        "versions": provenance.versions(),
        "result": result,
    }
    path.write_text(json.dumps(content, indent=2) + "\n")
    return path

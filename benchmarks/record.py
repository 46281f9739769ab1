"""Writes a benchmark's result with what is needed to read it later: commit, machine, versions."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def machine() -> dict[str, Any]:
    """The processor's name, cores, memory in bytes, and the threads that torch uses."""
    import torch

    cpu = next((line.split(":")[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")), "")
    memory = next((int(line.split()[1]) * 1024 for line in _lines("/proc/meminfo") if line.startswith("MemTotal")), 0)
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "memory_bytes": memory,
        "threads": torch.get_num_threads(),
        "system": platform.platform(),
    }


def write(name: str, result: Any) -> Path:
    """``results/<name>.json``; the commit carries ``+`` where the tree had changes."""
    commit = subprocess.run(["git", "describe", "--always", "--dirty=+"], capture_output=True, text=True, check=False)
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    content = {
        "benchmark": name,
        "commit": commit.stdout.strip(),
        "machine": machine(),
        "versions": {"python": platform.python_version(), **{p: version(p) for p in ("torch", "highspy", "numpy")}},
        "result": result,
    }
    path.write_text(json.dumps(content, indent=2) + "\n")
    return path


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []

"""The machine and the versions that a figure belongs to. Nothing here imports PyTorch."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("monet-planner", "torch", "highspy", "numpy", "scipy", "gurobipy")


def machine() -> dict[str, Any]:
    """``cpu`` (its name), ``cores``, ``memory_bytes`` and ``system``; empty or 0 where the system does not tell."""
    cpu = _first("/proc/cpuinfo", "model name") or platform.processor()
    memory = _first("/proc/meminfo", "MemTotal").split()
    return {
        "cpu": cpu,
        "cores": os.cpu_count() or 0,
        "memory_bytes": int(memory[0]) * 1024 if memory else 0,
        "system": platform.platform(),
    }


def versions() -> dict[str, str]:
    """Versions of Python and of those of ``PACKAGES`` that are installed."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _first(path: str, field: str) -> str:
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(field)), "")

"""A benchmark's job in a process of its own: one that crashes is a result, and its peak is its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def run_apart(script: str, job: Mapping[str, Any], folder: Path, limit_s: float) -> dict[str, Any]:
    """What ``script --job JOB --answer FILE`` writes to the file, or ``error`` and how its process ended."""
    answer = folder / "answer.json"
    answer.unlink(missing_ok=True)
    command = [sys.executable, script, "--job", json.dumps(job), "--answer", str(answer)]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        return {"error": f"stopped after {limit_s:g} s"}
    if answer.is_file():
        result: dict[str, Any] = json.loads(answer.read_text())
        return result
    return {"error": f"the process ended with {ended.returncode}", "stderr": ended.stderr[-600:]}

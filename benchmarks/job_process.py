"""A benchmark's job in a process of its own: one that crashes is a result, and its peak is its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def run_apart(
    script: str, job: Mapping[str, Any], folder: Path, limit_s: float, environment: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """What ``script --job JOB --answer FILE`` writes to the file, or ``error`` and how its process ended.

    ``environment``: variables that the process has besides.
    """
    answer = folder / "answer.json"
    answer.unlink(missing_ok=True)
    command = [sys.executable, script, "--job", json.dumps(job), "--answer", str(answer)]
    try:
        variables = {**os.environ, **(environment or {})}
        ended = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False, env=variables)
    except subprocess.TimeoutExpired:
        return {"error": f"stopped after {limit_s:g} s"}
    if answer.is_file():
        result: dict[str, Any] = json.loads(answer.read_text())
        return result
    return {"error": f"the process ended with {ended.returncode}", "stderr": ended.stderr[-600:]}

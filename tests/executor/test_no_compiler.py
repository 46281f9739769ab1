"""A machine with no compiler: said once, and everything still runs, on PyTorch's allocator."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from repository import ROOT

SCRIPT = """
import copy, logging, sys
logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
import torch
from small_models import Residual
import monet
from monet.native import allocator
assert not allocator.available()
torch.manual_seed(0)
model, x = Residual(16), torch.randn(8, 3, 32, 32)
full = monet.plan(model, (x,), {}, budget="10GB")
tight = monet.plan(model, (x,), {}, budget=full.peak_bytes * 97 // 100)
for plan in (full, tight):
    names = {step.implementation for step in plan.steps}
    assert not names & {"bits", "cells", "saved-statistics"}, names
    eager, planned = copy.deepcopy(model), monet.MonetModule(copy.deepcopy(model), plan)
    for module in (eager, planned):
        module(x).square().sum().backward()
    for p, q in zip(eager.parameters(), planned.parameters()):
        assert torch.allclose(p.grad, q.grad, rtol=1e-3, atol=1e-4)
    assert planned._step.runner.arena is None
print("ok", len(tight.steps) > len(full.steps) - 1)
"""


@pytest.mark.slow
def test_without_a_compiler(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "CXX": "/no/such/compiler",
        "MONET_CACHE": str(tmp_path),
        "PYTHONPATH": str(ROOT / "tests" / "support"),
    }
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.startswith("ok")
    assert done.stderr.count("no C++ compiler found") == 1, done.stderr
    assert "not the plan's" in done.stderr

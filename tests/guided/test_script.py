"""``monet run --profile-guided``: a script as it is."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from interrupts import default_interrupts

from monet.native.allocator import available

pytestmark = pytest.mark.skipif(not available(), reason="there is no C++ compiler")

SCRIPT = """
import sys, torch
from torch import nn
import helper

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.Adam(model.parameters())
for epoch in range(3):
    model.train()
    for number in range(int(sys.argv[1])):
        loss = model(torch.randn(32, 64)).square().mean()
        loss.backward()
        optimizer.step()
        if epoch == number == 0:  # an import that PyTorch leaves to its first step is not interrupted
            print('training', flush=True)
        optimizer.zero_grad()
    model.eval()
    with torch.no_grad():
        model(torch.randn(100 + epoch, 64))
print(sys.argv[1:], __name__, helper.NAME, f"{loss.item():.9f}")
if "fail" in sys.argv:
    raise OSError("the script's own")
sys.exit(3 if "three" in sys.argv else 0)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "train.py").write_text(SCRIPT)
    (tmp_path / "scripts" / "helper.py").write_text("NAME = 'beside it'\n")
    return tmp_path


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "monet", "run", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_a_script_prints_what_it_prints_without(folder: Path) -> None:
    plain = subprocess.run(
        [sys.executable, "scripts/train.py", "5", "--flag"], cwd=folder, capture_output=True, text=True, check=True
    )
    done = run(folder, "--profile-guided", "--html", "arena.html", "scripts/train.py", "5", "--flag")
    assert done.returncode == 0, done.stderr
    assert done.stdout == plain.stdout and "beside it" in done.stdout
    assert "15 steps, 1 of them only recorded" in done.stderr
    assert "<rect " in (folder / "arena.html").read_text()


@pytest.mark.slow
def test_a_compiled_forward_pass_and_a_script_without_an_optimizer(folder: Path) -> None:
    (folder / "compiled.py").write_text(
        "import torch\n"
        "model = torch.nn.Linear(4, 4)\n"
        "@torch.compile(backend='eager', fullgraph=True)\n"
        "def total(x): return model(x).sum()\n"
        "for _ in range(3): total(torch.ones(2, 4)).backward()\n"
        "print('done')\n"
    )
    done = run(folder, "--profile-guided", "compiled.py")
    assert done.returncode == 0 and done.stdout == "done\n", done.stderr
    assert "no torch.optim optimizer has stepped" in done.stderr


@pytest.mark.slow
def test_statuses_and_errors_are_the_scripts(folder: Path) -> None:
    assert run(folder, "--profile-guided", "scripts/train.py", "2", "three").returncode == 3
    failed = run(folder, "--profile-guided", "--quiet", "scripts/train.py", "2", "fail")
    assert failed.returncode == 1
    assert "the script's own" in failed.stderr and "train.py" in failed.stderr and "arena" not in failed.stderr


def test_wrong_usage(folder: Path) -> None:
    for arguments, said in (
        (("scripts/train.py", "2"), "--profile-guided"),
        (("--profile-guided", "scripts/none.py"), "none.py"),
        (("--profile-guided", "--limit", "6QB", "scripts/train.py", "2"), "6QB"),
        (("--profile-guided", "--html", "no/folder.html", "scripts/train.py", "2"), "folder"),
    ):
        done = run(folder, *arguments)
        assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr, done.stderr


@pytest.mark.slow
def test_a_limit_names_the_request(folder: Path) -> None:
    done = run(folder, "--profile-guided", "--limit", "50kB", "scripts/train.py", "2")
    assert done.returncode == 1
    assert "OutOfMemoryError" in done.stderr and "above the limit of" in done.stderr


def test_interrupted(folder: Path) -> None:
    command = [sys.executable, "-m", "monet", "run", "--profile-guided", "scripts/train.py", "100000000"]
    running = subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=default_interrupts
    )
    assert running.stdout is not None
    assert running.stdout.readline() == "training\n"
    running.send_signal(signal.SIGINT)
    _, told = running.communicate(timeout=60)
    assert running.returncode == 130 and "monet: interrupted" in told, told

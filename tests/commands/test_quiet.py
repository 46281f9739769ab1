"""``--quiet``: results on stdout, and nothing on stderr but errors, whatever the libraries below have to say."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from monet.base.silence import silence
from monet.cli.main import program
from monet.native.allocator import available
from monet.ops.measuring.busy_machine import OtherPrograms

MODULE = """
import logging, warnings
from torch import nn

def talk():
    logger = logging.getLogger("talkative")
    if not logger.handlers:
        logger.addHandler(logging.StreamHandler())
    logger.warning("a library's log")
    warnings.warn("a library's warning")

class Talkative(nn.Sequential):
    def forward(self, x):
        talk()
        return super().forward(x)

def make():
    talk()
    return Talkative(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8))
"""
QUICK = ("--time-limit", "1")
COMMANDS = {
    "plan": ("talkative.yaml", "--budget", "100%", "--output", "other.plan.json", *QUICK),
    "fit": ("talkative.yaml", "--memory", "1MB", "--no-batch", *QUICK),
    "profile": ("talkative.yaml",),
    "trace": ("talkative.yaml", "talkative.plan.json"),
    "show": ("talkative.plan.json", "--config", "talkative.yaml", "--html", "plan.html"),
    "compare": ("talkative.plan.json", "talkative.plan.json"),
}
IN_CHILDREN = {
    "plan": (*COMMANDS["plan"], "--measure"),
    "sweep": ("talkative.yaml", "--budgets", "100%", "--variants", "pytorch", "--measure", *QUICK),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "talkative_model.py").write_text(MODULE)
    (tmp_path / "talkative.yaml").write_text("model: talkative_model:make\ninputs: [{shape: [64, 16]}]\n")
    monkeypatch.setattr(OtherPrograms, "took_cores", lambda _: True)  # which is a warning
    return tmp_path


@pytest.mark.parametrize(
    ("command", "arguments"),
    [*COMMANDS.items(), *(pytest.param(*item, marks=pytest.mark.slow) for item in IN_CHILDREN.items())],
)
def test_nothing_but_results(
    command: str, arguments: tuple[str, ...], folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """In this process, and in those that it starts, whose stderr is the real one."""
    if "talkative.plan.json" in arguments:
        CliRunner().invoke(program, ["plan", "talkative.yaml", "--budget", "100%", *QUICK])
    capfd.readouterr()
    done = CliRunner().invoke(program, [command, *arguments, "--quiet"])
    assert done.exit_code == 0, done.output
    assert done.stdout and not done.stderr
    assert capfd.readouterr().err == ""


def test_otherwise_they_are_heard(folder: Path) -> None:
    heard = CliRunner().invoke(program, ["profile", "talkative.yaml", "-v", "--quiet"]).stderr
    assert "other programs kept" in heard


@pytest.mark.skipif(not available(), reason="there is no C++ compiler")
def test_a_script_of_somebody_else_is_heard(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import logging, warnings\nlogging.warning('its log')\nwarnings.warn('its warning')\n")
    command = [sys.executable, "-m", "monet", "run", "--profile-guided", "--quiet", str(script)]
    heard = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    assert "its log" in heard and "its warning" in heard and "monet" not in heard


def test_silence_ends() -> None:
    for wanted in (True, False):
        with silence(wanted):
            assert logging.getLogger("any").isEnabledFor(logging.WARNING) != wanted
            assert logging.getLogger("any").isEnabledFor(logging.ERROR)
        assert logging.getLogger("any").isEnabledFor(logging.WARNING)

"""``monet layout``: a file in, offsets out, and what is wrong with other files."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from layout_problems import check, endless_lifetimes

from monet.cli.main import program
from monet.planner.layout import Layout
from monet.planner.layout.arena import METHODS, Lifetime

LINES = ["id,lower,upper,size", "7,0,4,100", "3,2,6,50", "5,4,8,100"]

AT_THE_SEARCH = """
import sys
from monet.cli.main import program
from monet.planner.layout.exact_search import ExactSearch

ask = ExactSearch.ask

def say_once(*arguments):
    print("searching", flush=True)
    ExactSearch.ask = ask
    return ask(*arguments)

ExactSearch.ask = say_once
program(["layout", *sys.argv[1:]])
"""
"""The command; it says when the heuristics are done."""


def run(path: Path, *arguments: str) -> Result:
    return CliRunner().invoke(program, ["layout", str(path), *arguments])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "buffers.csv"
    path.write_text("\n".join(LINES) + "\n")
    return path


def test_help_explains_every_method() -> None:
    text = " ".join(CliRunner().invoke(program, ["layout", "--help"], terminal_width=500).stdout.split())
    assert all(f"{method} {about}" in text for method, about in METHODS.items())


def test_offsets_by_id(path: Path) -> None:
    out = path.with_name("out.json")
    result = run(path, "--json", str(out))
    assert result.exit_code == 0, result.output
    assert "3 buffers" in result.stdout and "(150 bytes), 0.00% above the bound of 150 bytes" in result.stdout
    found = json.loads(out.read_text())
    assert set(found) == {"offsets", "peak_bytes", "bound_bytes", "method", "seconds", "interrupted"}
    assert found["peak_bytes"] == found["bound_bytes"] == 150
    assert found["interrupted"] is False
    assert found["offsets"]["7"] == found["offsets"]["5"] and set(found["offsets"]) == {"3", "5", "7"}


def test_alignment(path: Path) -> None:
    result = run(path, "--alignment", "64")
    assert result.exit_code == 0 and "(192 bytes)" in result.stdout


def test_a_capacity_that_is_too_small_is_status_1(path: Path) -> None:
    assert run(path, "--capacity", "150").exit_code == 0
    result = run(path, "--capacity", "140")
    assert result.exit_code == 1 and "10 bytes more than the capacity" in result.stderr


def test_gaps_and_offsets(path: Path) -> None:
    path.write_text("id,lower,upper,size,offset,gaps\n0,0,9,10,,3-6\n1,3,6,10,,\n2,0,1,4,20,\n")
    result = run(path)
    assert result.exit_code == 0 and "(24 bytes), 0.00% above" in result.stdout


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["id,lower,upper", "1,2,3"], "has no column size; it needs id,lower,upper,size"),
        ([], "has no column id, lower, upper, size"),
        ([*LINES, "8,1,x,9"], ":5: upper is 'x', not a whole number"),
        ([*LINES, "8,1"], ":5: size is None, not a whole number"),
        (["id,lower,upper,size,gaps", "1,0,9,4,3"], ":2: gaps is '', not a whole number"),
    ],
)
def test_a_wrong_file_is_wrong_usage(path: Path, lines: list[str], message: str) -> None:
    path.write_text("\n".join(lines) + "\n")
    result = run(path)
    assert result.exit_code == 2 and message in result.stderr and str(path) in result.stderr


def test_wrong_lifetimes_are_invalid(path: Path) -> None:
    path.write_text("\n".join([*LINES, "7,0,1,8"]) + "\n")
    result = run(path)
    assert result.exit_code == 1 and "buffer id 7 occurs twice" in result.stderr


def test_no_file(tmp_path: Path) -> None:
    assert run(tmp_path / "none.csv").exit_code == 2
    assert run(tmp_path).exit_code == 2
    binary = tmp_path / "binary.csv"
    binary.write_bytes(bytes(range(256)))
    assert run(binary).exit_code == 2


def write(path: Path, lifetimes: list[Lifetime]) -> None:
    lines = [f"{life.id},{life.begin},{life.end},{life.bytes}" for life in lifetimes]
    path.write_text("\n".join([LINES[0], *lines]) + "\n")


@pytest.mark.parametrize("method", METHODS)
def test_every_method_from_the_command_line(path: Path, method: str) -> None:
    result = run(path, "--layout", method, "--solver", "highs")
    assert result.exit_code == 0 and "(150 bytes), 0.00% above" in result.stdout
    assert method in run(path, "--help").stdout
    assert result.stderr == ""


def test_unknown_methods_and_solvers(path: Path) -> None:
    result = run(path, "--layout", "best")
    assert result.exit_code == 2 and all(method in result.stderr for method in METHODS)
    result = run(path, "--layout", "program", "--solver", "NOTHING")
    assert result.exit_code == 1 and "no solver 'NOTHING' is installed" in result.stderr


def test_interrupted_before_there_is_a_layout(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("monet.planner.layout.layout", interrupted)
    out = path.with_name("out.json")
    result = run(path, "--json", str(out))
    assert result.exit_code == 130 and result.stderr.endswith("monet: interrupted\n")
    assert result.stdout == "" and not out.exists()


def read_all(terminal: int) -> str:
    """What a program that has ended wrote to its terminal; Linux ends it with an error."""
    found = b""
    with contextlib.suppress(OSError):
        while more := os.read(terminal, 1 << 16):
            found += more
    os.close(terminal)
    return found.decode()


@pytest.mark.parametrize("arguments", [(), ("--quiet",)])
def test_ctrl_c_keeps_the_best_layout_so_far(path: Path, arguments: tuple[str, ...]) -> None:
    """With stderr on a terminal: there is a progress line, and with --quiet there is none."""
    lifetimes = endless_lifetimes()
    write(path, lifetimes)
    out = path.with_name("out.json")
    terminal, stderr = pty.openpty()
    termios.tcsetwinsize(stderr, (25, 120))
    process = subprocess.Popen(
        [sys.executable, "-c", AT_THE_SEARCH, str(path), "--json", str(out), "--time-limit", "300", *arguments],
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        # A shell that starts the tests in the background has Ctrl-C ignored, and children would inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    os.close(stderr)
    assert process.stdout is not None
    assert process.stdout.readline() == "searching\n"
    time.sleep(0.5)  # or the terminal's line may not have been drawn
    process.send_signal(signal.SIGINT)
    stdout, _ = process.communicate(timeout=60)
    said = read_all(terminal)
    assert process.returncode == 130, said
    assert "monet: interrupted; this is the best layout so far" in said and "Traceback" not in said
    assert ("best" in said.split("monet:")[0] and "bound" in said) == (not arguments)
    found = json.loads(out.read_text())
    assert found["interrupted"] is True and f"({found['peak_bytes']} bytes)" in stdout
    offsets = tuple(found["offsets"][str(life.id)] for life in lifetimes)
    check(lifetimes, Layout(offsets, found["peak_bytes"], found["bound_bytes"], ""), 1)

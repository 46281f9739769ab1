"""Other programs' work is told from the kernel's counters, and only where it takes cores from the measured ones."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import pytest

from monet.ops.measuring import busy_machine
from monet.ops.measuring.busy_machine import busy_cores, warn_if_busy


def write(path: Path, *cores: tuple[int, int]) -> None:
    """(idle, busy) ticks a core."""
    lines = ["cpu 0 0 0 0 0 0 0 0 0 0"]
    lines += [f"cpu{k} {busy} 0 0 {idle - 1} 1 0 0 0 {busy} 0" for k, (idle, busy) in enumerate(cores)]
    path.write_text("\n".join([*lines, "intr 7"]) + "\n")


def test_ticks_of_busy_cores_are_counted(tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    write(stat, (100, 50), (100, 50), (100, 50))
    timer = threading.Timer(0.1, write, (stat, (110, 50), (105, 55), (100, 60)))
    timer.start()
    found = busy_cores(stat, 0.4)
    timer.join()
    assert found is not None
    assert found[0] == pytest.approx(1.5) and found[1] == 3


def test_a_system_that_does_not_tell(tmp_path: Path) -> None:
    assert busy_cores(tmp_path / "none", 0.0) is None


@pytest.mark.parametrize(
    ("busy", "cores", "threads", "said"),
    [(0.1, 2, 2, False), (1.0, 2, 2, True), (1.0, 2, 1, False), (1.9, 2, 1, True), (20.0, 64, 2, False)],
)
def test_a_warning_where_cores_are_missing(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    busy: float,
    cores: int,
    threads: int,
    said: bool,
) -> None:
    monkeypatch.setattr(busy_machine, "busy_cores", lambda: (busy, cores))
    with caplog.at_level(logging.WARNING):
        warn_if_busy(threads, Path("here.sqlite3"))
    assert (f"{busy:.1f} of {cores} cores busy" in caplog.text) == said == ("here.sqlite3 keeps them" in caplog.text)

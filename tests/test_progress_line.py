"""The progress line: its limit is the search's, however short, and a proof after a solve is shown from its start."""

from __future__ import annotations

import pytest

from monet.base.progress_line import ProgressLine


@pytest.mark.parametrize(("limit_s", "shown"), [(120.0, "/120 s"), (59.7, "/60 s"), (2.5, "/2.5 s"), (0.4, "/0.4 s"),
                                                (0.05, "/0.050 s")])  # fmt: skip
def test_the_limit_is_the_searchs(limit_s: float, shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressLine(True, limit_s) as line:
        line(1.5, None, None, limit_s * 2)
    said = capsys.readouterr().err
    assert shown in said and f"{shown[1:]}{shown}".replace(" s/", "/") in said  # never past it
    assert "best 1.500 s, bound none yet" in said


def test_a_limit_of_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressLine(True, 0.0, unit="bytes", task="ordering") as line:
        line(1500.0, None, None, 0.3)
    assert "best 1.500 kB" in capsys.readouterr().err


def test_a_clock_that_begins_again(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressLine(True, 60.0) as line:
        line(2.0, 1.0, 0.5, 50.0)
        line(2.0, 1.9, 0.05, 1.0)
    said = capsys.readouterr().err
    assert "50/60 s" in said and " 1/60 s" in said and "bound 1.900 s" in said

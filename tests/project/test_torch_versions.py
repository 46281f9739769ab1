"""The versions of PyTorch that monet names are the same everywhere, and another one is said once."""

from __future__ import annotations

import logging
import re
import tomllib

import pytest
import torch
from repository import ROOT
from torch import nn

from monet.base.torch_versions import NEWEST, OLDEST, say_if_untested, untested
from monet.capture import capture


def test_all_files_name_the_same_versions() -> None:
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    below = f"{NEWEST[0]}.{NEWEST[1] + 1}"
    assert f"torch>={OLDEST[0]}.{OLDEST[1]},<{below}" in wanted
    named = {
        name: (int(major), int(minor))
        for name, major, minor in re.findall(
            r"^(OLDEST|NEWEST) = torch==(\d+)\.(\d+)", (ROOT / "Makefile").read_text(), re.MULTILINE
        )
    }
    assert named == {"OLDEST": OLDEST, "NEWEST": NEWEST}
    page = (ROOT / "docs" / "install.md").read_text()
    assert f"PyTorch {OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}" in page


@pytest.mark.parametrize("version", ["2.11.0", "2.13.0+cpu", "2.15.0+cu132", "2.15.1"])
def test_tested_versions_say_nothing(version: str) -> None:
    assert untested(version) is None


@pytest.mark.parametrize("version", ["2.10.1", "2.16.0", "2.16.0a0+git1234", "3.0.0", "1.13.1", "unknown"])
def test_other_versions_are_said(version: str) -> None:
    sentence = untested(version)
    assert sentence is not None and version in sentence and "2.11 to 2.15" in sentence


def test_a_step_says_it_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(torch, "__version__", "2.16.0")
    say_if_untested.cache_clear()
    try:
        with caplog.at_level(logging.WARNING, "monet.base.torch_versions"):
            for _ in range(2):
                capture(nn.Linear(3, 3), (torch.randn(2, 3),))
        (said,) = [record.getMessage() for record in caplog.records]
        assert str(untested("2.16.0")) in said
    finally:
        say_if_untested.cache_clear()

"""Stages of a fit, replaced wherever they are used."""

from __future__ import annotations

from typing import Any

import pytest

from monet.pipeline import attempts, fitting


def in_both(monkeypatch: pytest.MonkeyPatch, stage: str, instead: Any) -> None:
    """Of the attempts in one order, and of the search through several."""
    for module in (attempts, fitting):
        monkeypatch.setattr(module, stage, instead)

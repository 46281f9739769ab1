"""Parameters of which some run in ``make slow`` alone: what they would find, a quick one nearly always finds, too."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def slow_but(quick: Iterable[Any], cases: Iterable[Any]) -> list[Any]:
    """The cases, those that are not ``quick`` marked as slow."""
    known = list(quick)
    return [case if case in known else _slow(case) for case in cases]


def _slow(case: Any) -> Any:
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow)

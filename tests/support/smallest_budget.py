"""The smallest budget, as somebody finds it who does what the errors say."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pytest

import monet

T = TypeVar("T")


def at_smallest_budget(plan: Callable[[int], T], refused_bytes: int = 1) -> T:
    """``plan`` of the budget that it names when it refuses ``refused_bytes``: that one must work."""
    with pytest.raises(monet.InfeasibleBudget) as caught:
        plan(refused_bytes)
    named = caught.value.smallest_bytes
    assert named is not None and named > refused_bytes
    return plan(named)

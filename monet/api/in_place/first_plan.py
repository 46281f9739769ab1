"""What rank 0 tells the other processes of its first training call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class FirstPlan:
    """What rank 0 says. ``plan``: the content of a plan's file; None: it has made none, since ``reason``. ``failed``:
    it raised that. ``geometry``: of the call that the plan is for, as ``ranks.portable`` gives it."""

    plan: str | None
    geometry: tuple[Any, ...] | None
    reason: str = ""
    failed: bool = False

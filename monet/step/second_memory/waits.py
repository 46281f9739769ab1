"""How long steps have waited for copies."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Waits:
    """How often, and for how many seconds, the steps so far have waited for copies."""

    count: int = 0
    seconds: float = 0.0

"""How a search tells how far it is."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[float | None, float | None, float | None, float], None]
"""(incumbent_s, bound_s, gap, elapsed_s); None while unknown. What it raises ends the solve."""

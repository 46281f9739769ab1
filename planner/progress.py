"""How a search tells how far it is."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[float | None, float | None, float | None, float], None]
"""(incumbent, bound, gap, elapsed_s), the first two in what is minimised, seconds or bytes; None while unknown. What
it raises ends the search."""

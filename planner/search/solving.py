"""How to solve: the settings that a person may give, made once where they are given and passed on whole."""

from __future__ import annotations

import math
from dataclasses import dataclass

from monet.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Solving:
    """``time_limit_s``: wall seconds of the search for a plan, the building of programs included; of a captured step,
    of order and layout, too (``monet.pipeline.fitting``).

    ``gap``: relative; a plan that is proven this close to the best ends the search. ``window``: recomputation is
    considered in so many stages before each tensor's last use, and right after the largest peaks; None chooses by size,
    and a window that spans all stages is the full program. ``solver``: ``HIGHS``, or a mixed-integer solver that CVXPY
    has installed. ``prove``: afterwards, spend up to ``time_limit_s`` once more to bound the full program. ``cores``:
    how many may be busy at once; None is all that this process may use. With 1, equal inputs give equal plans in any
    process, unless the time limit ends a part of the search; with more, two searches work on each other's plans, and
    which is found first depends on the clock. Raises ``ConfigError`` for other values.
    """

    time_limit_s: float = 120.0
    gap: float = 0.01
    window: int | None = None
    solver: str = "HIGHS"
    prove: bool = False
    cores: int | None = None

    def __post_init__(self) -> None:
        for name in ("time_limit_s", "gap"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
                raise ConfigError(f"{name} must be a finite number from 0 on, not {value!r}")
        for name in ("window", "cores"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise ConfigError(f"{name} must be a number from 1 on, or None, not {value!r}")
        if not isinstance(self.solver, str):
            raise ConfigError(f"solver must be the name of one, such as 'HIGHS', not {self.solver!r}")

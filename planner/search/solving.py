"""How to solve: the settings that a person may give, made once where they are given and passed on whole."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Solving:
    """``time_limit_s``: wall seconds of the search for a plan, the building of programs included; of a captured step,
    of order and layout, too (``monet.pipeline.fitting``).

    ``gap``: relative; a plan that is proven this close to the best ends the search. ``window``: recomputation is
    considered in so many stages before each tensor's last use, and right after the largest peaks; None chooses by size,
    and a window that spans all stages is the full program. ``solver``: ``HIGHS``, or a mixed-integer solver that CVXPY
    has installed. ``prove``: afterwards, spend up to ``time_limit_s`` once more to bound the full program. ``cores``:
    how many may be busy at once; None is all that this process may use.
    """

    time_limit_s: float = 120.0
    gap: float = 0.01
    window: int | None = None
    solver: str = "HIGHS"
    prove: bool = False
    cores: int | None = None

"""The planner's answer: what is kept, what is run again before which backward operator, and how."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a forward operator; ``intermediates`` are made right after it, in this order."""

    operator: str
    implementation: str
    intermediates: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Stage:
    """Recomputation in forward order, then one backward operator."""

    recompute: tuple[Run, ...]
    backward: str
    implementation: str


@dataclass(frozen=True, slots=True)
class Solution:
    """A feasible point of the 0-1 program and what was proven about it.

    ``status``: ``optimal`` (within the asked gap), ``time_limit``, ``interrupted``, ``good_enough`` (as good as the
    caller asked for, or proven that nothing is), ``smallest_known`` (none was found
    that fits by the program's count, but this one does in another order);
    ``heuristic``: made by a fixed policy, nothing was proven (``bound_s`` 0, ``bound_scope`` ``none``).
    ``bound_s``: no point of the program named by ``bound_scope`` (``full``, ``window N`` or ``window N + K stages``,
    where recomputation is offered in the windows and at K stages besides) is cheaper. ``peak_bytes``: exact peak by
    replay, fixed bytes included. ``build_s`` and ``solve_s`` are wall seconds. ``columns`` and ``rows``: size of the
    0-1 program, before the solver's presolve; 0 where there was none.
    """

    forward: tuple[Run, ...]
    stages: tuple[Stage, ...]
    objective_s: float
    bound_s: float
    bound_scope: str
    peak_bytes: int
    status: str
    build_s: float
    solve_s: float
    columns: int = 0
    rows: int = 0

    @property
    def gap(self) -> float:
        """(objective - bound) / objective, a fraction."""
        return (self.objective_s - self.bound_s) / self.objective_s if self.objective_s > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Runs:
    """What a plan runs, without what was proven about it."""

    forward: tuple[Run, ...]
    stages: tuple[Stage, ...]

    def solution(self) -> Solution:
        """As a solution of which nothing is known yet."""
        return Solution(self.forward, self.stages, 0.0, 0.0, "none", 0, "time_limit", 0.0, 0.0)

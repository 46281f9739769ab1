"""When a solve came within 10, 5, 2 and 1 % of its bound, as MONeT's Table 2 counts solver time."""

from __future__ import annotations

from monet.planner.solution import Solution

GAPS_PERCENT = (10, 5, 2, 1)


class GapTrace:
    """A planner's ``progress`` that notes the first second at which each gap is reached.

    Seconds count from the beginning of the planning, building the program included. Planning a model may
    solve more than once (the arena may need a little more than the program allowed): the last solve counts.
    """

    def __init__(self) -> None:
        self._reached_s: dict[int, float] = {}
        self._last_s: float | None = None

    def __call__(self, incumbent_s: float | None, bound_s: float | None, gap: float | None, elapsed_s: float) -> None:
        if self._last_s is not None and elapsed_s < self._last_s:
            self._reached_s.clear()
        self._last_s = elapsed_s
        if gap is not None:
            self._note(gap, elapsed_s)

    def reached_s(self, solution: Solution) -> dict[int, float]:
        """Gap in percent → seconds, for the gaps that were reached; none without a bound or a report of progress.

        ``solution``: what the traced planning returned. Its gap may be smaller than the last one reported.
        """
        if solution.bound_scope == "none" or solution.bound_s <= 0 or self._last_s is None:
            return {}
        self._note(solution.gap, solution.build_s + solution.solve_s)
        return dict(self._reached_s)

    def _note(self, gap: float, elapsed_s: float) -> None:
        for percent in GAPS_PERCENT:
            if gap <= percent / 100:
                self._reached_s.setdefault(percent, elapsed_s)

"""What a search does when: its strategies in turn, by the size of the problem, and what share of the time each gets.

The shares are of the time limit, and all that the search has are here. They were tuned on ``bench_curve.py`` and
``bench_deep.py`` of ``benchmarks/`` with limits of 10 to 60 s; ``bench_strategies.py`` there leaves out one strategy at
a time.
"""

from __future__ import annotations

from monet.planner.search.exact import FullProgram, Windows
from monet.planner.search.least_peak import Descent, LeastPeak, Thriftiest
from monet.planner.search.relaxation import BranchAndBound, Relaxation
from monet.planner.search.scope import LARGEST_WINDOWED, is_within
from monet.planner.search.smallest_moving import Extremes, Halving, SmallestWithoutMoves
from monet.planner.search.state import Policy, SearchState
from monet.planner.search.two_memories import AroundMoves, WithoutMoves
from monet.planner.search.walks import Filling, Walks

WINDOWED: Policy = (
    Relaxation(until=0.04, poor_until=0.2),
    Walks(share=0.25),
    Filling(share=0.15),
    Windows(small=0.08, first=0.3, alone=0.25, turn=0.6, presolves=2.0),
    FullProgram(first=0.6),
    BranchAndBound(),
)
"""Where the exact program with windows may be built: it finds the better plans, the checkpoint program the bounds."""

DEEP: Policy = (Relaxation(until=1.0), Walks(share=0.25), Filling(share=0.15), BranchAndBound())
"""Where it may not: thousands of operators."""


def _alone(state: SearchState) -> Policy:
    """Without a second memory."""
    return WINDOWED if is_within(state.index, state.windows, LARGEST_WINDOWED) else DEEP


AROUND = AroundMoves(given=0.35, given_alone=0.5, deciding=0.4, hidden=0.1, other=0.3)

MOVING: Policy = (
    Relaxation(until=0.3),
    WithoutMoves(share=0.2, by=_alone),
    Walks(share=0.25),
    BranchAndBound(share=0.2),
    AROUND,
)
"""With a second memory. The bound comes before plans are improved around their moves: its branch and bound finds some
to begin with, too."""


def fastest(state: SearchState) -> Policy:
    """For seconds under a limit of bytes."""
    return _alone(state) if state.incumbent.problem.second is None else MOVING


SMALLEST: Policy = (
    Thriftiest(share=0.25),
    Descent(until=0.6, step=0.12, by=_alone),
    LeastPeak(first=0.2, alone=0.8),
)

SMALLEST_MOVING: Policy = (
    Extremes(share=0.15),
    SmallestWithoutMoves(share=0.2, by=lambda state: SMALLEST),
    Halving(step=0.12, by=lambda state: (Relaxation(until=0.7), AROUND)),
)


def smallest(state: SearchState) -> Policy:
    """For bytes under a limit of seconds."""
    return SMALLEST if state.incumbent.problem.second is None else SMALLEST_MOVING

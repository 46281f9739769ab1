"""What must fit, and how far the search for it is."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from monet.errors import InfeasibleBudget
from monet.pipeline.known_plans import Placed
from monet.pipeline.lowering import Lowered
from monet.pipeline.meter import Meter
from monet.planner.ablation import MONET
from monet.planner.schedules import ABLATION, MOVE
from monet.planner.search import Solving
from monet.planner.solution import Runs

WORTH_SHARE = 0.005
"""Solving again pays where another order saves this share of the budget, and searching in another order where plans can
be faster by this share."""


@dataclass(frozen=True, slots=True)
class Shares:
    """What each part of a fit gets of the time, at most; for the search inside: ``planner/search/policy.py``.

    Of the time limit:

    - ``order``: the order of keeping everything;
    - ``smallest``: the smallest plans of all orders, solved, ordered and placed, where none fits;
    - ``least``: a solve or a placement that is needed and for which there is no time left;
    - ``left``: with less than this left and a plan in hand, nothing is solved again;
    - ``state``: which parameters and which of an optimiser's state are moved.

    Of the time that is left, ``each``: each of several orders; the rest is for the best plan's order.

    Of the time that an order has left:

    - ``solve``: its first solve; ``again``: one after an arena that did not fit; ``later``: one for another budget
      after an arena that did; the rest is for order and layout, and for the next try;
    - ``place``: order and layout.
    """

    order: float
    smallest: float
    least: float
    left: float
    state: float
    each: float
    solve: float
    again: float
    later: float
    place: float


SHARES = Shares(
    order=0.25, smallest=0.25, least=0.05, left=0.1, state=0.2,
    each=0.6,
    solve=0.5, again=0.5, later=0.7, place=0.4,
)  # fmt: skip
"""Tuned on ``bench_orders.py``, where RegNet wants more of ``each`` and GoogLeNet less."""


@dataclass(frozen=True, slots=True)
class Fit:
    """What must fit: a plan of ``variant`` in ``budget_bytes``; ``start``: a plan to begin with. ``remembers``: plans
    of earlier searches are read, and the one that is found is kept for later ones; with ``reuses`` what such a search
    found that was asked the same, and came within the gap, is the answer."""

    lowered: Lowered
    budget_bytes: int
    variant: str = MONET
    solving: Solving = field(default_factory=Solving)
    start: Runs | None = None
    remembers: bool = True
    reuses: bool = False

    def needed_bytes(self, placed: Placed) -> int:
        """Of a plan's arena and the fixed bytes."""
        return self.lowered.problem.fixed_bytes + placed[1].layout.arena_bytes

    def excess_bytes(self, placed: Placed) -> int:
        """By how much that is over the budget."""
        return self.needed_bytes(placed) - self.budget_bytes

    @property
    def kinds(self) -> str:
        """The part of MONeT whose implementations the variant offers."""
        return MONET if self.variant == MOVE else self.variant

    @property
    def has_orders(self) -> bool:
        """Whether other orders than the captured one are searched in. Copies of parameters and state are timed along
        that one, and baselines, with a second memory or without, are defined along it."""
        if self.variant == MOVE:
            return not self.lowered.carried
        return self.variant in ABLATION and self.lowered.problem.second is None


@dataclass(slots=True)
class FitState:
    """``best``: the fastest plan that fits so far. ``known``, ``parts``: of earlier searches, to begin with.
    ``interrupted``: whether Ctrl-C ended a solve. ``refused``: why no plan was found, with the order that this is
    about; None where plans were, and no arena."""

    fit: Fit
    meter: Meter
    known: Placed | None = None
    parts: Sequence[Placed] = ()
    begun: float = field(default_factory=time.monotonic)
    best: Placed | None = None
    refused: list[tuple[Lowered, InfeasibleBudget | None]] = field(default_factory=list)
    interrupted: bool = False

    def left_s(self) -> float:
        """Of the time limit, and never less than what a part that is needed gets."""
        limit_s = self.fit.solving.time_limit_s
        return max(SHARES.least * limit_s, limit_s - (time.monotonic() - self.begun))

    def has_time(self) -> bool:
        """For what is not needed."""
        return self.left_s() >= SHARES.left * self.fit.solving.time_limit_s

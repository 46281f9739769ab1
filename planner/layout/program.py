"""The integer program for location: Sekiyama, Imamichi, Imai and Raymond (2018), "Profile-guided memory optimization
for deep neural networks", and MODeL (Steiner, Elhoushi, Kahn and Hegarty, ICML 2023), equations 6 to 8.

Lifetimes are known here, so two buffers are alive at the same tick or they are not. Where they are, the two binaries of
MODeL's equation 6 sum to 1 and become one, ``below[i, j]``; where they are not, there is none. For each pair that is,
with H the height of a known layout:

    offset[i] + size[i] ≤ offset[j] + H · (1 − below[i, j])      equation 7a
    offset[j] + size[j] ≤ offset[i] + H · below[i, j]            equation 7b
    offset[i] + size[i] ≤ height                                 equation 8

In place of H each row has the least number that still allows every layout of height H. The height is minimised, and is
at least the largest load of a tick; neither paper has that bound. The column of an offset is a share of the range that
the buffer has; a buffer of given offset has no range and no column.

This is the reference: it finds the best layout and proves it, on some dozens of buffers. The relaxation is weak (all
``below`` at ½ cost nothing), so beyond that the bound seldom rises above the load.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from monet.errors import SolverError
from monet.planner.layout.heuristics import place_in_gaps
from monet.planner.layout.load import Integers
from monet.planner.layout.pieces import Pieces
from monet.planner.solvers.finder import solver as find_solver
from monet.planner.solvers.model import Limits, Model
from monet.planner.solvers.rows import Floats, Rows, Sum

GAP = 1e-6
MOST_PAIRS = 50_000
"""Each pair is a binary and two rows. With 29,000, HiGHS is still cutting at the root after a minute."""
NODES = 10_000
"""Where there is no time limit, so that the answer does not depend on the clock."""
LONGEST_S = 1e6
"""Eleven days, in place of no limit: solvers want a number."""
TOLERANCE = 1e-9
"""Asked of HiGHS: rows with a large coefficient turn an integer that is off by 1e-6 into many bytes."""
SLACK = {"HIGHS": 1e-6}
OTHER_SLACK = 1e-5
"""How far one row of a chain of buffers may be off, as a share of the height; of HiGHS alone we set the tolerance."""


@dataclass(frozen=True, slots=True)
class Located:
    """``offsets``: of a lower layout than the start, or None. ``bound``: no layout is lower; 0 where none is known.
    Both in the unit of the pieces."""

    offsets: Integers | None
    bound: int
    interrupted: bool


def locate(
    pieces: Pieces,
    start: Integers,
    *,
    least: int,
    deadline: float = float("inf"),
    solver: str = "HIGHS",
    tick: Callable[[int, int], None] | None = None,
) -> Located:
    """Offsets by the program, from the layout ``start``. A height of ``least``, a bound or a capacity, is low enough.

    ``deadline``: of ``time.monotonic()``; without one, ``NODES`` nodes. ``tick`` gets (best height, bound) meanwhile.

    Raises:
        SolverError: more than ``MOST_PAIRS`` pairs, or the solver is missing or fails.
    """
    solve = find_solver(solver)
    height = int((start + pieces.size).max())
    if height <= least:
        return Located(None, 0, False)
    program = LocationProgram(pieces, height, least, SLACK.get(solver.upper(), OTHER_SLACK))
    arrays = program.rows.arrays()
    model = Model(arrays, np.zeros(len(arrays.cost)), np.ones(len(arrays.cost)), program.point(start))
    # Heights are whole: a bound that is less than one below the best proves it.
    gap = max(GAP, 0.5 / (height - least + 1))
    endless = deadline == float("inf")
    seconds = LONGEST_S if endless else max(0.0, deadline - time.monotonic())
    limits = Limits(seconds, gap, nodes=NODES if endless else None, tolerance=TOLERANCE)

    def told(x: Floats | None, bound: float | None) -> None:
        assert tick is not None
        tick(height if x is None else program.height(x), program.bound(bound))

    answer = solve(model, limits, None if tick is None else told)
    offsets = None if answer.x is None else program.read(answer.x)
    if offsets is not None and int((offsets + pieces.size).max()) >= height:
        offsets = None
    best = height if offsets is None else int((offsets + pieces.size).max())
    return Located(offsets, min(best, program.bound(answer.bound)), answer.status == "interrupted")


class LocationProgram:
    """Columns and rows; units are those of the pieces.

    ``height``: of a known layout; higher ones are left out. ``least``: below ``height``; minimising ends there.
    ``slack``: how far a row may be off, as a share of ``height``.
    """

    def __init__(self, pieces: Pieces, height: int, least: int, slack: float = OTHER_SLACK) -> None:
        self.pieces, self.most, self.least, self.slack = pieces, height, least, slack
        fixed = pieces.fixed_at >= 0
        pairs = pieces.pairs()
        pairs = pairs[~(fixed[pairs[:, 0]] & fixed[pairs[:, 1]])]
        if len(pairs) > MOST_PAIRS:
            raise SolverError(
                f"the program for {len(pieces.size)} buffers has a binary for each of the {len(pairs)} pairs that are "
                f"alive at the same tick, more than the {MOST_PAIRS} that it is made for; take the method auto"
            )
        self.rows = Rows()
        self.low = np.where(fixed, pieces.fixed_at, 0)
        self.range = np.where(fixed, 0, height - pieces.size)
        self.top = self.rows.share()
        self.rows.costs[self.top] = float(height - least)
        self.offset = [self.rows.share() if width else None for width in self.range]
        for buffer in range(len(pieces.size)):
            self._under_height(buffer)
        self.below = {(int(i), int(j)): self._apart(int(i), int(j)) for i, j in pairs}

    def point(self, offsets: Integers) -> Floats:
        """A layout of the known height as a point."""
        x = np.zeros(len(self.rows.costs))
        tops = offsets + self.pieces.size
        x[self.top] = (max(int(tops.max()), self.least) - self.least) / (self.most - self.least)
        for buffer, column in enumerate(self.offset):
            if column is not None:
                x[column] = offsets[buffer] / self.range[buffer]
        for (i, j), column in self.below.items():
            x[column] = float(tops[i] <= offsets[j])
        return x

    def read(self, x: Floats) -> Integers:
        """A layout that is no higher than the point, in whole units.

        First fit in the order of the point's offsets: each buffer's place in the point is still free at its turn, since
        no buffer before it was raised. So rounding in ``x`` may cost height, but never makes an overlap.
        """
        shares = np.array([0.0 if column is None else x[column] for column in self.offset])
        order = np.argsort(self.low + shares * self.range, kind="stable")
        offsets = place_in_gaps(order, self.pieces, smallest_gap=False)
        assert offsets is not None, "there is no limit"
        return offsets

    def height(self, x: Floats) -> int:
        """Of a point; ``least`` where it is lower."""
        return self.least + round(float(self.rows.costs[self.top] * x[self.top]))

    def bound(self, cost: float | None) -> int:
        """The height below which there is no layout if no point costs less than ``cost``; 0 where that says nothing.

        Each buffer of a chain may be off by the slack, so all of them together by that many slacks.
        """
        slack = self.slack * self.most * len(self.pieces.size)
        if cost is None or not np.isfinite(cost) or cost <= slack:
            return 0
        return self.least + int(np.ceil(cost - slack))

    def _under_height(self, buffer: int) -> None:
        """Equation 8."""
        total = self._top(Sum(), buffer)
        total.add((self.top,), -float(self.most - self.least))
        self.rows.at_most(total, float(self.least))

    def _apart(self, i: int, j: int) -> int:
        """Equations 7a and 7b; returns the column that says that i is below j."""
        column = self.rows.column()
        for one, other, chosen in ((i, j, True), (j, i, False)):
            total = self._offset(self._top(Sum(), one), other, -1.0)
            # As large as the row can get: the highest top of one over the lowest offset of the other.
            most = float(self.low[one] + self.range[one] + self.pieces.size[one] - self.low[other])
            if chosen:
                total.add((column,), most)
                self.rows.at_most(total, most)
            else:
                total.add((column,), -most)
                self.rows.at_most(total, 0.0)
        return column

    def _offset(self, total: Sum, buffer: int, sign: float = 1.0) -> Sum:
        total.constant += sign * float(self.low[buffer])
        column = self.offset[buffer]
        return total if column is None else total.add((column,), sign * float(self.range[buffer]))

    def _top(self, total: Sum, buffer: int) -> Sum:
        total.constant += float(self.pieces.size[buffer])
        return self._offset(total, buffer)

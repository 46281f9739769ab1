"""What the channel to a second memory has time for: clocks, and rows for intervals of the step.

Copies of one direction come one after the other. Those that are issued at position a or later and waited for at
position b or earlier take no longer than what is between a and b (Hall's condition)::

    Σ_{issued ≥ a, waited for ≤ b} seconds · column  ≤  clock[b] + wait[b] − clock[a]

where clock[p] is the seconds of what runs before p, and of waiting.

All intervals together say that an order of copies exists in which each is in time, if a copy may be interrupted for a
more urgent one. A channel that interrupts none, and serves them as they are issued, is slower. Where k is waited for at
b, what is issued between a and k has been copied by then as well, though it be waited for ``later`` than b::

    Σ_{issued ≥ a, waited for ≤ b} seconds · column + Σ_{later} seconds · column
                                    ≤  clock[b] + wait[b] − clock[a] + (1 − column of k) · Σ_{later} seconds

Each row is true of every plan that the channel serves so. There are thousands; ``add_late_rows`` adds those that a
point breaks, ``add_channel_rows`` few to begin with. AutoTM (Hildebrand et al., ASPLOS 2020) has a row for each
operator and a barrier instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from monet.planner.program.moves import MoveOffers, Moves
from monet.planner.program.program import Program
from monet.planner.solvers.rows import Floats, Sum

FINE = 1000.0
"""Rows of seconds are in thousandths of the horizon: a solver's tolerance is then a billionth of it."""
LATE = 2e-6
"""Of the horizon: a copy that is less late than this is in time, as far as a solver's tolerance goes."""
FIRST_ROWS = 48
"""Rows of each direction to begin with, at most."""
CLOCKS = 16
"""Of each pass: presolve of a longer chain of equations takes longer than the solve."""
MOST_LATE = 24
"""Late copies of each direction that get a row after one point, the most late ones."""


@dataclass(frozen=True, slots=True)
class _Copy:
    """A column of a move: the copy of ``name`` that is issued at position ``issued``, after operators of that position
    in the forward pass and before them in the backward pass, and waited for at ``due``."""

    name: str
    issued: int
    due: int
    column: int
    seconds: float


class _Direction:
    """The writes, with forward operators as positions, or the reads, with stages."""

    def __init__(self, program: Program, moves: Moves, forward: bool) -> None:
        second, size = moves.second, moves.size
        self.moves, self.forward, self.costs = moves, forward, program.rows.costs
        self.times = moves.forward if forward else moves.stages
        if forward:
            found = [_Copy(k, p, e, column, second.write_s(size[k])) for k, p, e, column in moves.writes()]
        else:
            found = [_Copy(k, r, u, column, second.read_s(size[k])) for k, r, u, column in moves.reads()]
        # In the order in which the channel serves them.
        self.copies = sorted(found, key=lambda copy: (copy.issued, copy.due, copy.name))

    def issue(self, position: int) -> Sum:
        """When copies of ``position`` are issued, in thousandths of the horizon."""
        if not self.forward:
            return self.begin(position)
        # When the operator is over, and before what is waited for then.
        return self.begin(position + 1).add(self.times.waiting(position), -FINE)

    def due(self, position: int) -> Sum:
        """Until when copies are waited for at ``position``, in thousandths of the horizon."""
        if self.forward:
            return self.begin(position + 1)
        return self.begin(position).add(self.times.waiting(position), FINE)

    def begin(self, position: int) -> Sum:
        """When ``position`` begins: by the last clock before it, and what comes after that."""
        known = max((p for p in self.times.clock if p <= position), default=0)
        total = Sum().add((self.times.clock[known],), FINE) if known else Sum()
        for p in range(known, position):
            self.add_seconds(total, p)
        return total

    def add_seconds(self, total: Sum, position: int) -> None:
        """What ``position`` takes, waiting included."""
        for column in self.times.seconds[position]:
            total.add((column,), self.fine(self.costs[column]))
        total.add(self.times.waiting(position), FINE)

    def interval(self, a: int, b: int) -> Sum:
        """What the copies between a and b take beyond what there is, in thousandths of the horizon."""
        total = self.issue(a)
        for column, value in self.due(b).terms.items():
            total.add((column,), -value)
        for copy in self.copies:
            if copy.issued >= a and copy.due <= b:
                total.add((copy.column,), self.fine(copy.seconds))
        return total

    def fine(self, seconds: float) -> float:
        return FINE * seconds / self.moves.horizon_s


def add_channel_rows(program: Program, offers: MoveOffers) -> None:
    """Clocks, waiting, and the first rows; only where copies run beside the step."""
    moves = program.moves
    if moves is None or not moves.beside:
        return
    _set_seconds(program, moves)
    writes, reads = _Direction(program, moves, True), _Direction(program, moves, False)
    moves.horizon_s = _horizon_s(program, moves, (writes, reads)) if offers.most_s is None else offers.most_s
    _add_clocks(program, writes)
    _add_clocks(program, reads)
    last = len(moves.forward.seconds) - 1
    for a in _spread(sorted({copy.issued for copy in writes.copies})):
        _add(program, writes, a, last)
    for b in _spread(sorted({copy.due for copy in reads.copies})):
        _add(program, reads, 0, b)
    for forward, a, b in sorted(offers.intervals):
        _add(program, writes if forward else reads, a, b)


def _set_seconds(program: Program, moves: Moves) -> None:
    """Of each position, the columns whose costs are the seconds that it takes."""
    index = program.windows
    moves.forward.seconds = [
        [
            *(program.forward[i, q.name] for q in runs),
            *(column for v in index.intermediates[i] for column in program.kept(v.id) if column >= 0),
        ]
        for i, runs in enumerate(index.runs_forward)
    ]
    moves.stages.seconds = [[program.backward[t, q.name] for q in runs] for t, runs in enumerate(index.runs_backward)]
    for (_, _, t), column in program.again.items():
        moves.stages.seconds[t].append(column)
    for (_, t), column in program.make.items():
        moves.stages.seconds[t].append(column)


def _horizon_s(program: Program, moves: Moves, directions: Iterable[_Direction]) -> float:
    """No plan takes longer."""
    costs = program.rows.costs
    positions = (*moves.forward.seconds, *moves.stages.seconds)
    longest = sum(costs[column] for columns in positions for column in columns)
    return longest + sum(copy.seconds for direction in directions for copy in direction.copies)


def _add_clocks(program: Program, direction: _Direction) -> None:
    """clock[p] = clock[o] + Σ_{o ≤ n < p} (seconds of what runs at n + wait[n]) for the clocks o and p, one after the
    other."""
    rows, times, moves = program.rows, direction.times, direction.moves
    for p in sorted({copy.due for copy in direction.copies}):
        times.wait[p] = rows.share()
        rows.costs[times.wait[p]] = moves.horizon_s
    count = len(times.seconds)
    for n in range(1, CLOCKS + 1):
        p = n * count // CLOCKS
        if p not in (0, *times.clock):
            total = direction.begin(p)
            times.clock[p] = rows.share()
            rows.exactly(total.add((times.clock[p],), -FINE), 0.0)


def _spread(positions: Sequence[int]) -> Sequence[int]:
    """All of them, or ``FIRST_ROWS`` evenly from the first to the last."""
    if len(positions) <= FIRST_ROWS:
        return positions
    step = (len(positions) - 1) / (FIRST_ROWS - 1)
    return sorted({positions[round(n * step)] for n in range(FIRST_ROWS)})


def _add(program: Program, direction: _Direction, a: int, b: int) -> bool:
    """The row of an interval; whether it is new."""
    moves = direction.moves
    key = (direction.forward, a, b)
    if key in moves.intervals:
        return False
    moves.intervals.add(key)
    program.rows.at_most(direction.interval(a, b), 0.0)
    return True


def add_late_rows(program: Program, x: Floats) -> int:
    """Adds rows that a point breaks whose copies come late in a channel that serves them as they are issued; returns
    how many. The point's columns are those of the program, its integers about 0 or 1."""
    moves = program.moves
    if moves is None or not moves.beside:
        return 0
    return sum(_add_late(program, _Direction(program, moves, forward), x) for forward in (True, False))


def _add_late(program: Program, direction: _Direction, x: Floats) -> int:
    moves = direction.moves
    on = [copy for copy in direction.copies if x[copy.column] > 0.5]
    fine_s = moves.horizon_s / FINE
    issue_s = {copy.issued: direction.issue(copy.issued).at(x) * fine_s for copy in on}
    late: list[tuple[float, int, int]] = []  # by how much, the first copy of those without a pause, the copy
    free_s, first = 0.0, 0
    for n, copy in enumerate(on):
        if issue_s[copy.issued] >= free_s:
            free_s, first = issue_s[copy.issued], n
        free_s += copy.seconds
        over_s = free_s - direction.due(copy.due).at(x) * fine_s
        if over_s > LATE * moves.horizon_s:
            late.append((over_s, first, n))
    late.sort(reverse=True)
    return sum(_forbid(program, direction, on[first:], n - first, x) for _, first, n in late[:MOST_LATE])


def _forbid(program: Program, direction: _Direction, on: Sequence[_Copy], n: int, x: Floats) -> int:
    """Rows that are broken as copy n of ``on`` is late; the channel is busy from the first on."""
    late, b = on[n], on[n].due
    added = 0
    patient = [copy for copy in on[:n] if copy.due > b and copy.issued < late.issued]
    for a in {on[0].issued, *(copy.issued for copy in on[: n + 1] if patient and copy.issued > patient[-1].issued)}:
        total = direction.interval(a, b)
        if total.at(x) > FINE * LATE / 2:
            added += _add(program, direction, a, b)
    if added or not patient:
        return added
    return _add_served(program, direction, on[0].issued, late, patient)


def _add_served(program: Program, direction: _Direction, a: int, late: _Copy, patient: Sequence[_Copy]) -> int:
    """Where ``late`` is waited for at b, what is issued between a and it has been copied by then, too, be it waited for
    later; of that, ``patient``."""
    moves, b = direction.moves, late.due
    names = frozenset(copy.name for copy in patient)
    key = (direction.forward, a, late.column, names)
    if key in moves.served:
        return 0
    moves.served.add(key)
    total = direction.interval(a, b)
    for copy in direction.copies:
        if copy.name in names and a <= copy.issued < late.issued and copy.due > b:
            total.add((copy.column,), direction.fine(copy.seconds))
    most = sum(direction.fine(copy.seconds) for copy in patient)
    program.rows.at_most(total.add((late.column,), most), most)
    return 1


def set_clocks(program: Program, x: Floats) -> None:
    """Clocks and waiting of a point whose other columns are set: as short as the channel allows."""
    moves = program.moves
    if moves is None or not moves.beside:
        return
    costs = np.array(program.rows.costs)
    for forward in (True, False):
        direction = _Direction(program, moves, forward)
        times = direction.times
        taken = [float(costs[columns] @ x[columns]) for columns in times.seconds]
        for p, (now_s, waited_s) in enumerate(_served(direction, taken, x)):
            if p + 1 in times.clock:
                x[times.clock[p + 1]] = now_s / moves.horizon_s
            if p in times.wait:
                x[times.wait[p]] = waited_s / moves.horizon_s


def _served(direction: _Direction, taken: Sequence[float], x: Floats) -> Iterator[tuple[float, float]]:
    """Of each position: when the next begins, and how long it waits; ``taken``: its seconds."""
    issued: dict[int, list[_Copy]] = {}
    for copy in direction.copies:
        if x[copy.column] > 0.5:
            issued.setdefault(copy.issued, []).append(copy)
    due_s: dict[int, float] = {}
    now_s = free_s = 0.0
    for p, seconds in enumerate(taken):
        if direction.forward:
            now_s += seconds
        for copy in issued.get(p, ()):
            free_s = max(free_s, now_s) + copy.seconds
            due_s[copy.due] = max(due_s.get(copy.due, 0.0), free_s)
        waited_s = max(0.0, due_s.get(p, 0.0) - now_s)
        now_s += waited_s if direction.forward else waited_s + seconds
        yield now_s, waited_s

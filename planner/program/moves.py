"""Moves to a second memory as columns of the 0-1 program: which tensors, when their memory is free, when they are back.

====================  ======================================================================================
``out[k, e]``         k is written when it has been made, and its memory is free after forward operator e
``back[k, u, r]``     its return is issued at the beginning of stage r, and it can be read from stage u on
====================  ======================================================================================

A tensor on its way is in both memories::

    made              e                     r             u             last read
    |-----------------|   second memory     |-------------|----------------|
     writing                                 reading back    to be read

``construction/copies.py`` times the copies of plans; the program has a few times of each to choose from
(``MoveOffers``). Rows are in ``move_rows.py``, what the channel has time for in ``channel_rows.py``.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate

from monet.planner.problem import ASYNCHRONOUS, STATIC, SecondMemory
from monet.planner.program.windows import Windows
from monet.planner.solution import Runs
from monet.planner.solvers.rows import Presence, Rows

TIMES = (1.0, 1.5, 2.25, 3.4, 5.0, 7.5, 11.0)
"""In so many times a copy's own seconds it may be over: other copies come before it."""
FEW_TIMES = (1.0, 2.25, 5.0)
"""The same of a return for a stage whose recomputation may read the tensor, and whose backward operator does not."""


Interval = tuple[bool, int, int]
"""Whether it is of the forward pass, and its first and last position."""


@dataclass(frozen=True, slots=True)
class MoveOffers:
    """Which times of copies the program offers: ``every`` one there is, or few and those of ``plan``.

    ``most_s``: no plan that takes longer is wanted; None where none is known. ``intervals``: those that another program
    of the same problem had rows for (``Moves.intervals``).
    """

    plan: Runs | None = None
    most_s: float | None = None
    intervals: frozenset[Interval] = frozenset()
    every: bool = False


@dataclass(slots=True)
class Times:
    """Of the forward pass, with operators as positions, or of the backward pass, with stages. Both begin at 0.

    ``seconds``: of each position, the columns whose costs are the seconds that it takes. ``clock``: when some positions
    begin. ``wait``: waiting at the end of an operator, or at the beginning of a stage; no column where nothing is
    waited for.
    """

    seconds: list[list[int]] = field(default_factory=list)
    clock: dict[int, int] = field(default_factory=dict)
    wait: dict[int, int] = field(default_factory=dict)

    def waiting(self, position: int) -> Presence:
        """The column of waiting, if there is one."""
        return (self.wait[position],) if position in self.wait else ()


@dataclass(slots=True)
class Moves:
    """``out[k][e]`` and ``back[k][u][r]``: columns. The rest is there for copies beside operators only.

    ``forward``, ``stages``: the clocks of each pass. ``horizon_s``: what 1 of a clock or of waiting stands for.
    ``coming_share``: of stages, the bytes of what is on its way back, as a share of the budget.
    ``intervals``: those that have a row. ``served``: direction, first position, column of the late copy and names of
    those before it, of the rows of copies that are not interrupted.
    """

    second: SecondMemory
    size: dict[str, int]
    producer: dict[str, int]
    out: dict[str, dict[int, int]] = field(default_factory=dict)
    back: dict[str, dict[int, dict[int, int]]] = field(default_factory=dict)
    forward: Times = field(default_factory=Times)
    stages: Times = field(default_factory=Times)
    horizon_s: float = 0.0
    coming_share: dict[int, int] = field(default_factory=dict)
    intervals: set[Interval] = field(default_factory=set)
    served: set[tuple[bool, int, int, frozenset[str]]] = field(default_factory=set)

    @property
    def beside(self) -> bool:
        """Whether copies run beside operators."""
        return self.second.mode == ASYNCHRONOUS

    def moved(self, name: str) -> Presence:
        """``name`` is in the second memory after the forward pass."""
        return tuple(self.out.get(name, {}).values())

    def leaving(self, name: str, i: int) -> Presence:
        """``name``, which no forward operator from i on reads, is in memory during i until its copy is complete."""
        return tuple(column for e, column in self.out.get(name, {}).items() if e >= i)

    def returned(self, name: str, stage: int) -> Presence:
        """``name`` can be read from ``stage`` on, and not before."""
        return tuple(self.back.get(name, {}).get(stage, {}).values())

    def coming(self, name: str, stage: int) -> Presence:
        """``name`` has memory at ``stage``, and its return is waited for at a later one."""
        found = self.back.get(name, {}).items()
        return tuple(column for u, at in found if u > stage for r, column in at.items() if r <= stage)

    def writes(self) -> Iterator[tuple[str, int, int, int]]:
        """Of each column of ``out``: k, the operator that makes it, e, the column."""
        for name, columns in self.out.items():
            for e, column in columns.items():
                yield name, self.producer[name], e, column

    def reads(self) -> Iterator[tuple[str, int, int, int]]:
        """Of each column of ``back``: k, r, u, the column."""
        for name, stages in self.back.items():
            for u, columns in stages.items():
                for r, column in columns.items():
                    yield name, r, u, column


def moves_of(windows: Windows, rows: Rows, offers: MoveOffers) -> Moves | None:
    """The columns of all that may be moved and read back; None where nothing may be, or operators use the second memory
    in place."""
    second = windows.problem.second
    if second is None or second.mode == STATIC or not windows.movable:
        return None
    moves = Moves(second, windows.size, windows.producer)
    times = _Offered(windows, offers)
    for name in sorted(windows.movable, key=lambda n: (windows.producer[n], n)):
        stages = {u: times.issues(name, u) for u in times.returns(name)}
        if not stages:
            continue
        size = windows.size[name]
        if moves.beside:
            write_s = read_s = second.slowdown_s * size
        else:
            write_s, read_s = second.write_s(size), second.read_s(size)
        moves.out[name] = {e: rows.column(write_s) for e in times.releases(name)}
        moves.back[name] = {u: {r: rows.column(read_s) for r in issues} for u, issues in stages.items()}
    return moves if moves.out else None


class _Offered:
    """When copies may be issued and over, by the seconds of the fastest operators."""

    def __init__(self, windows: Windows, offers: MoveOffers) -> None:
        assert windows.problem.second is not None
        self.windows, self.every, self.second = windows, offers.every, windows.problem.second
        self.forward = [0.0, *accumulate(min(q.time_s for q in o.implementations) for o in windows.problem.forward)]
        self.stages = [0.0, *accumulate(min(q.time_s for q in o.implementations) for o in windows.problem.backward)]
        self.released: dict[str, int] = {}
        self.issued: dict[tuple[str, int], set[int]] = {}
        if offers.plan is not None:
            self._add(offers.plan)

    def _add(self, plan: Runs) -> None:
        self.released = {name: e for e, run in enumerate(plan.forward) for name in run.releases}
        for name, r, u in returns_of(plan):
            self.issued.setdefault((name, u), set()).add(r)

    def releases(self, name: str) -> list[int]:
        """Forward operators after which the memory of ``name`` may be free."""
        made, count = self.windows.producer[name], len(self.forward) - 1
        final = (self.windows.consumers.get(name) or (made,))[-1]
        if self.second.mode != ASYNCHRONOUS:
            return [final]
        if self.every:
            return list(range(final, count))
        seconds = self.second.write_s(self.windows.size[name])
        ends = (bisect_left(self.forward, self.forward[made + 1] + factor * seconds) - 1 for factor in TIMES)
        planned = (self.released[name],) if name in self.released else ()
        return sorted({final, *(min(max(e, final), count - 1) for e in ends), *planned})

    def returns(self, name: str) -> list[int]:
        """The stages from which on ``name`` may be there again: where it may be read by the backward operator, or by
        the recomputation of what that reads; where ``every`` one is offered, by any."""
        windows, readers = self.windows, self.windows.readers_again.get(name, ())
        uses = {*windows.uses.get(name, ()), *(u for known, u in self.issued if known == name)}
        for i in readers:
            again = windows.stages_again[i]
            uses.update(
                again if self.every else (u for k in windows.remade(i) for u in windows.uses.get(k, ()) if u in again)
            )
        return sorted(u for u in uses if windows.start[name] <= u <= windows.last[name])

    def issues(self, name: str, u: int) -> list[int]:
        """Stages at whose beginning the return of ``name`` for stage u may be issued."""
        if self.second.mode != ASYNCHRONOUS:
            return [u]
        if self.every:
            return list(range(u + 1))
        seconds = self.second.read_s(self.windows.size[name])
        factors = TIMES if name in self.windows.reads[u] else FEW_TIMES
        begins = (bisect_right(self.stages, self.stages[u] - factor * seconds) - 1 for factor in factors)
        return sorted({u, *(min(max(r, 0), u) for r in begins), *self.issued.get((name, u), ())})


def returns_of(runs: Runs) -> Iterable[tuple[str, int, int]]:
    """Of each return of a plan: what, the stage that issues it, the stage from which on it can be read."""
    issued: dict[str, int] = {}
    for t, stage in enumerate(runs.stages):
        issued.update(dict.fromkeys(stage.issues, t))
        for name in stage.returns:
            yield name, issued[name], t

"""The state of a walk: which tensors are in memory, and what it costs to do without each."""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Iterable, Set
from dataclasses import dataclass, field
from itertools import accumulate

from monet.planner.construction.reruns import NEVER, rerun_seconds, stage_seconds
from monet.planner.program.index import Index

AHEAD = (0.5, 1.0)
"""Parts of what stages will hold later that walks leave free from the beginning."""


def aheads(index: Index) -> list[tuple[int, ...]]:
    """What walks leave free at each stage, to be tried in turn until one fits: nothing, then parts of what the backward
    pass holds later and not yet.

    That is gradients, where they have places in the arena. A walk that evicts only what does not fit at the moment
    keeps in their place what it cannot make again later, when there is no room for recomputation any more. It finds the
    faster plans where it fits.
    """
    held = reversed(index.problem.backward)
    lasting = list(accumulate((operator.live_before_bytes for operator in held), min))[::-1]
    later = [lasting[-1] - held_bytes for held_bytes in lasting]
    return [(), *(tuple(int(part * size) for size in later) for part in AHEAD if max(later, default=0) > 0)]


@dataclass(slots=True)
class Changes:
    """What a trial did: what came into memory (True) or went, one after the other; the most bytes meanwhile; and
    whether it was thrifty."""

    names: list[tuple[bool, str]]
    peak_bytes: int
    thrifty: bool


class _Without:
    """A set but for one name, without a copy of it."""

    __slots__ = ("_name", "_of")

    def __init__(self, of: Set[str], name: str) -> None:
        self._of, self._name = of, name

    def __contains__(self, name: object) -> bool:
        return name != self._name and name in self._of


@dataclass(slots=True)
class Walk:
    """Memory while the plan is being made.

    A choice is tried on the walk itself, and undone: between ``begin`` and ``undo``. To copy what is present for each
    trial would take the square of the number of operators.

    ``present``: tensors in memory, ``present_bytes`` of them. ``peak_bytes``: the most so far, fixed bytes included.
    ``thrifty``: drops all that it may at every moment, and prefers the least peak to the least time.
    ``chosen``: never dropped while needed; its intermediates are made in the forward pass. ``deadline_s``: on
    ``time.monotonic``; a walk that drops everything runs a chain of n operators n²/2 times, and unrolled networks
    are long chains. ``ahead``: for each stage, bytes to leave free if that can be, for what only later stages hold
    (``aheads``); none where it is empty. ``away``: what the second memory holds from the forward pass on, and is read
    back when it is needed. ``score``: seconds lost per byte by doing without a tensor, as last computed.
    """

    index: Index
    budget_bytes: int
    thrifty: bool
    chosen: frozenset[str] = frozenset()
    deadline_s: float = math.inf
    ahead: tuple[int, ...] = ()
    away: frozenset[str] = frozenset()
    present: set[str] = field(default_factory=set)
    present_bytes: int = 0
    peak_bytes: int = 0
    score: dict[str, float] = field(default_factory=dict)
    _journal: list[tuple[bool, str]] = field(default_factory=list)

    def begin(self, thrifty: bool) -> tuple[int, int, bool]:
        """Begins a trial, with a peak of its own; what ``undo`` takes."""
        before = len(self._journal), self.peak_bytes, self.thrifty
        self.peak_bytes, self.thrifty = 0, self.thrifty or thrifty
        return before

    def undo(self, before: tuple[int, int, bool]) -> Changes:
        """The walk is as it was before a trial; what that did."""
        count, peak_bytes, thrifty = before
        changes = Changes(self._journal[count:], self.peak_bytes, self.thrifty)
        del self._journal[count:]
        for taken, name in reversed(changes.names):
            self._set(name, not taken)
        self.peak_bytes, self.thrifty = peak_bytes, thrifty
        return changes

    def _set(self, name: str, present: bool) -> None:
        if present:
            self.present.add(name)
            self.present_bytes += self.index.size[name]
        else:
            self.present.remove(name)
            self.present_bytes -= self.index.size[name]

    @property
    def available(self) -> set[str]:
        """What is in memory or can be read back."""
        return self.present | self.away if self.away else self.present

    def is_late(self) -> bool:
        """Whether the deadline is over: nothing fits any more."""
        return time.monotonic() > self.deadline_s

    def adopt(self, changes: Changes) -> None:
        """Goes on from a trial."""
        for taken, name in changes.names:
            self._set(name, taken)
        self._journal += changes.names
        self.peak_bytes = max(self.peak_bytes, changes.peak_bytes)

    def take(self, names: Iterable[str]) -> None:
        """``names`` are in memory from here on."""
        for name in names:
            if name not in self.present:
                self._set(name, True)
                self._journal.append((True, name))

    def drop(self, names: Iterable[str]) -> None:
        """``names`` are not in memory any more."""
        for name in names:
            if name in self.present:
                self._set(name, False)
                self._journal.append((False, name))

    def make_room(self, extra_bytes: int, locked: Set[str], stage: int) -> float:
        """Drops tensors, but for ``locked``, until ``extra_bytes`` fit besides what is present; the seconds lost,
        ``NEVER`` where they never do, or the deadline is over."""
        lost_s = 0.0
        if self.is_late():
            return NEVER
        if self.thrifty:
            self.drop([n for n in self.present if n not in locked and self.droppable(n, stage)])
            if self.present_bytes + extra_bytes > self.budget_bytes:
                return NEVER
        else:
            free_bytes = self.ahead[stage] if stage < len(self.ahead) else 0
            if self.present_bytes + extra_bytes + free_bytes > self.budget_bytes:
                lost_s = self._evict(extra_bytes, free_bytes, locked, stage)
        self.peak_bytes = max(self.peak_bytes, self.present_bytes + extra_bytes)
        return lost_s

    def _evict(self, extra_bytes: int, free_bytes: int, locked: Set[str], stage: int) -> float:
        """Drops by seconds per byte until ``extra_bytes`` fit, and ``free_bytes`` besides if they can, looking again at
        a score before using it. As ``make_room``."""
        kept = locked | self.index.pinned | self.chosen
        heap = [(self.score.get(n, 0.0), n) for n in self.present if n not in kept]
        heapq.heapify(heap)
        lost_s = 0.0
        while self.present_bytes + extra_bytes + free_bytes > self.budget_bytes:
            if not heap:
                return lost_s if self.present_bytes + extra_bytes <= self.budget_bytes else NEVER
            _, name = heapq.heappop(heap)
            cost = self.worth(name, stage)
            score = cost / max(self.index.size[name], 1)
            self.score[name] = score
            if score == NEVER:
                continue
            if heap and score > heap[0][0]:
                heapq.heappush(heap, (score, name))
                continue
            self.drop((name,))
            lost_s += cost
        return lost_s

    def droppable(self, name: str, stage: int) -> bool:
        """Whether the thrifty walk may drop ``name``: nothing needs it, or it can be made again."""
        if name in self.index.pinned or name in self.chosen:
            return False
        if not self.index.needed(name, stage) or name in self.away:
            return True
        again = self.index.runs_again[self.index.producer[name]]
        return bool(again) and name not in again[0].recompute_reads

    def without(self, name: str, stage: int) -> float:
        """Seconds lost by an in-place run that destroys ``name``."""
        if name in self.away:
            return NEVER  # its copy may be under way
        if self.thrifty:
            return 0.0 if self.droppable(name, stage) else NEVER
        return self.worth(name, stage)

    def worth(self, name: str, stage: int) -> float:
        """Seconds that the first later stage which misses ``name`` takes longer without it."""
        second, available = self.index.problem.second, self.available
        if name in self.away and second is not None:
            return second.read_s(self.index.size[name]) if self.index.needed(name, stage) else 0.0
        for use in self.index.uses.get(name, ()):
            if use < stage:
                continue
            without = stage_seconds(self.index, _Without(available, name), use)
            extra = without - stage_seconds(self.index, available, use) if without < NEVER else NEVER
            if extra > 0:
                return extra
        return self._worth_as_input(name, stage)

    def _worth_as_input(self, name: str, stage: int) -> float:
        """The same where only recomputations of its readers still read ``name``."""
        index = self.index
        if index.last.get(name, -1) < stage:
            return 0.0
        readers = [c for c in index.readers_again.get(name, ()) if any(index.needed(n, stage) for n in index.remade(c))]
        available = self.available
        needed = any(n not in available for c in readers for n in index.problem.forward[c].outputs)
        if not needed:
            return 0.0 if index.runs_again[index.producer[name]] else NEVER
        last = index.last[name]
        with_it = rerun_seconds(index, available, [name], last)
        without = rerun_seconds(index, _Without(available, name), [name], last)
        return without - with_it

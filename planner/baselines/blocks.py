"""Blocks that repeat in the forward pass (a transformer's layers), found by structure and not by names.

    operators   e  a b c  a b c  a b c  h        period 3
    blocks         [---]  [---]  [---]           each reads of the one before what that reads of its own predecessor

An operator is one period after its like if both have the same signature (sizes, implementations, workspaces) and each
input is one period after its like's, or not made in the blocks: what the first one begins with, a mask that all share.
The longest stretch of such operators, over all periods, is the first repetition; others are looked for in what is left
(an encoder and a decoder).

Periods to try are distances between equal words of 1, 2, 4, ... signatures: inside a stretch, a word as long as a
block comes again after one period and not before. A word's class is the pair of its halves' classes (Karp, Miller and
Rosenberg 1972), so all is n log n for n operators, and a number of array operations that does not depend on n for
each period tried.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from monet.planner.problem import ForwardImplementation, ForwardOperator, Problem

PERIODS_TRIED = 16
"""Of the distances between equal words of one length, the most frequent ones."""

_Integers: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Repetition:
    """``count`` blocks, 2 or more, of ``period`` operators each; ``first``: position of the first block's first one."""

    first: int
    period: int
    count: int

    @property
    def end(self) -> int:
        """The position after the last block."""
        return self.first + self.period * self.count


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Positions ``first`` to ``end``, without the latter: each from the second period on is one after its like."""

    first: int
    end: int
    period: int

    @property
    def length(self) -> int:
        return self.end - self.first


def repeated_blocks(problem: Problem) -> tuple[Repetition, ...]:
    """The blocks of ``problem`` in forward order; none where nothing repeats.

    Blocks begin where the fewest bytes stay if only what crosses a block's border is kept: between two layers, not
    inside them. What repeats within less than one block of the longest repetition is left out: it is part of a block
    that is not repeated as a whole (query, key and value of a first layer).
    """
    if len(problem.forward) < 2:
        return ()
    links = _links(problem)
    borders = _Borders(problem)
    apart = list(_apart(_stretches(links), len(problem.forward)))
    whole = [stretch for stretch in apart if stretch.length >= apart[0].period]
    return tuple(sorted(map(borders.blocks, whole), key=lambda found: found.first))


def crossing_bytes(problem: Problem) -> list[int]:
    """Bytes made before each position and read by a forward operator there or later; 0 at the end, its last item."""
    return _crossing(_sizes(problem), _final(problem), problem, 0, len(problem.forward))


def _crossing(size: Mapping[str, int], final: Mapping[str, int], problem: Problem, first: int, end: int) -> list[int]:
    """The same for positions ``first`` to ``end``, both included, of what is made there."""
    change = [0] * (end - first + 2)
    for i, operator in enumerate(problem.forward[first:end], first):
        for name in operator.outputs:
            if final.get(name, -1) > i:
                change[i + 1 - first] += size[name]
                change[min(final[name], end) + 1 - first] -= size[name]
    return [*accumulate(change[:-1])]


def _sizes(problem: Problem) -> dict[str, int]:
    return {tensor.id: tensor.bytes for tensor in problem.tensors}


def _final(problem: Problem) -> dict[str, int]:
    """The last forward operator that reads each tensor which one does."""
    return {name: i for i, operator in enumerate(problem.forward) for name in operator.inputs}


class _Borders:
    """Where the blocks of a stretch begin."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._size, self._final = _sizes(problem), _final(problem)

    def blocks(self, stretch: _Stretch) -> Repetition:
        """Begun where the fewest bytes of what the stretch makes stay: at borders, and outside of blocks."""
        first, period, length = stretch.first, stretch.period, stretch.length
        crossing = _crossing(self._size, self._final, self._problem, first, stretch.end)
        operators = self._problem.forward[first : stretch.end]
        made = [0, *accumulate(sum(self._size[name] for name in operator.outputs) for operator in operators)]

        def stays(begin: int) -> int:
            end = begin + (length - begin) // period * period
            return sum(crossing[begin : end + 1 : period]) + made[begin] + made[length] - made[end]

        begin = min(range(min(period, length - 2 * period + 1)), key=stays)
        return Repetition(first + begin, period, (length - begin) // period)


@dataclass(frozen=True, slots=True)
class _Links:
    """Signatures as numbers, and the inputs of all operators one after another.

    ``begins[i]``: where the inputs of operator i begin; ``counts[i]``: how many it has. ``producer`` and ``slot``
    of each input: the operator that makes it, and as which of its outputs.
    """

    signature: _Integers
    begins: _Integers
    counts: _Integers
    producer: _Integers
    slot: _Integers


def _links(problem: Problem) -> _Links:
    numbers: dict[Any, int] = {}
    tensors = {tensor.id: tensor for tensor in problem.tensors}
    signature = [
        numbers.setdefault(_signature(o, [(tensors[n].bytes, tensors[n].pinned) for n in o.outputs]), len(numbers))
        for o in problem.forward
    ]
    made = {n: (i, slot) for i, operator in enumerate(problem.forward) for slot, n in enumerate(operator.outputs)}
    inputs = [made[n] for operator in problem.forward for n in operator.inputs]
    producer, slot = np.array(inputs, np.int64).reshape(-1, 2).T
    counts = np.array([len(operator.inputs) for operator in problem.forward], np.int64)
    return _Links(np.array(signature, np.int64), np.cumsum(counts) - counts, counts, producer, slot)


def _signature(operator: ForwardOperator, outputs: Sequence[tuple[int, bool]]) -> tuple[Any, ...]:
    """What an operator has in common with its likes: no names of its own, and no times, which are measured."""
    place = {name: place for place, name in enumerate((*operator.inputs, *operator.outputs))}

    def offered(q: ForwardImplementation) -> tuple[Any, ...]:
        overwritten = place.get(q.overwrites) if q.overwrites is not None else None
        again = tuple(place.get(name) for name in q.recompute_reads)
        return q.name, q.workspace_bytes, q.recompute_workspace_bytes, q.aliased_bytes, overwritten, again

    implementations = tuple(map(offered, operator.implementations))
    return operator.kind, operator.recomputable, len(operator.inputs), tuple(outputs), implementations


def _stretches(links: _Links) -> Iterator[_Stretch]:
    """Every stretch of 2 periods or more, for each period to try."""
    for period in sorted(_periods(links.signature)):
        before = _first_allowed(links, period)
        alike = np.concatenate(([False], before < len(links.signature), [False]))
        edges = np.flatnonzero(alike[1:] != alike[:-1])
        for begin, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
            yield from _within(before, begin, end, period)


def _periods(signature: _Integers) -> set[int]:
    found: set[int] = set()
    word, length = signature, 1
    while len(word) > 1:
        order = np.argsort(word, kind="stable")
        same = word[order[1:]] == word[order[:-1]]
        frequent = np.bincount((order[1:] - order[:-1])[same])
        top = np.argsort(-frequent, kind="stable")[:PERIODS_TRIED]
        found |= {int(period) for period in top if frequent[period] > 0}
        pairs = word[:-length] * (len(signature) + 1) + word[length:]
        word = np.unique(pairs, return_inverse=True)[1].reshape(-1)
        length *= 2
    return found


def _first_allowed(links: _Links, period: int) -> _Integers:
    """For each operator but those of the first period: the first position where blocks may begin, if it and its like
    are one period apart in them; the number of operators where they are not alike at all.

    That is 0 where all inputs are one period apart. Of other pairs of inputs the earlier operator's must be made before
    the blocks, and the later one's before the second block: what the first block begins with, and what is shared.
    """
    count = len(links.signature)
    allowed = np.where(links.signature[period:] == links.signature[:-period], 0, count)
    earlier = np.flatnonzero(allowed == 0)
    counts = links.counts[earlier]
    total = int(counts.sum())
    owner = np.repeat(earlier, counts)
    place = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
    old, new = links.begins[owner] + place, links.begins[owner + period] + place
    apart = links.producer[new] - links.producer[old]
    like = (links.slot[new] == links.slot[old]) & (apart == period)
    outside = np.maximum(links.producer[old], links.producer[new] - period) + 1
    np.maximum.at(allowed, owner, np.where(like, 0, outside))
    return allowed


def _within(allowed: _Integers, begin: int, end: int, period: int) -> Iterator[_Stretch]:
    """The stretches whose operators before the last period are among ``begin`` to ``end``, without the latter.

    One pass: where an operator forbids blocks to begin at ``first``, the stretch from there ends with it, and the
    next one begins as soon as it may. Operators seen before forbid nothing that begins later.
    """
    first = begin
    for i in (np.flatnonzero(allowed[begin:end] > begin) + begin).tolist():
        if allowed[i] > first:
            if i - first >= period:
                yield _Stretch(first, i + period, period)
            first = int(allowed[i])
    if end - first >= period:
        yield _Stretch(first, end + period, period)


def _apart(stretches: Iterator[_Stretch], count: int) -> Iterator[_Stretch]:
    """The longest stretch, then the longest in what is left, and so on."""

    def place(stretch: _Stretch) -> tuple[int, int, int]:
        """By how many operators are after their likes; of several, the shorter period."""
        return stretch.period - stretch.length, stretch.period, stretch.first

    waiting = {place(stretch): stretch for stretch in stretches}
    order = [*waiting]
    heapq.heapify(order)
    free = np.ones(count, bool)
    while order:
        stretch = waiting[heapq.heappop(order)]
        inside = np.concatenate(([False], free[stretch.first : stretch.end], [False]))
        if inside[1:-1].all():
            free[stretch.first : stretch.end] = False
            yield stretch
            continue
        edges = np.flatnonzero(inside[1:] != inside[:-1]) + stretch.first
        for first, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
            part = _Stretch(first, end, stretch.period)
            if part.length >= 2 * part.period and waiting.setdefault(place(part), part) is part:
                heapq.heappush(order, place(part))

"""The least peak of a small graph, exactly: minimax shortest path over the sets of nodes that have run.

What is in memory after a set of nodes has run does not depend on their order, so an order is a path through sets, and
its peak the largest need on the way. Sets are taken in the order of the peak that reaches them, which is at least the
bound that is known already and what is still to come needs at least (``order_ahead``).

What fits under that peak and leaves no more than was there is taken at once, without an alternative: with more nodes
run, it could only free more (what is alive is submodular in the set), so taking it later is never better. That goes
for one node, and for a node with others that wait for it alone, such as a weight's gradient and what updates
the weight, if no part of them that may run by itself leaves as little: were it run elsewhere, the rest might not free
what it frees here.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import operator
from collections.abc import Callable
from dataclasses import dataclass, replace

from monet.planner.order.graph import OrderGraph
from monet.planner.order.heuristics import Order
from monet.planner.order.lookahead import Ahead

GROUPS = 64
"""Sets that are gone through to find a group that is free."""
MOST_AHEAD = 2_500
"""Nodes of a graph that is looked ahead in: a row of as many numbers for each storage."""


@dataclass(frozen=True, slots=True)
class Searched:
    """``order``: of the working nodes, or None where none was found. ``bound_bytes``: no order has a smaller peak."""

    order: Order | None
    bound_bytes: int


def search(
    graph: OrderGraph,
    below_bytes: int,
    states: int,
    stop: Callable[[], bool] = lambda: False,
    bound_bytes: int = 0,
) -> Searched:
    """An order of least peak, if that is less than ``below_bytes`` and at most ``states`` sets need to be reached
    before ``stop()``. ``bound_bytes``: it is known, or enough, that no order has a smaller peak.

    Without an order, ``bound_bytes`` says why: it is ``below_bytes`` where there is none, less where the states
    or the time ran out.
    """
    sets = _Sets(graph)
    roots = [k for k, before in enumerate(sets.before) if not before]
    begin, first = sets.settle(_Reached(0, 0, bound_bytes, 0, roots))
    best = {begin.state: begin.peak}
    came = {begin.state: (-1, first)}
    # (peak on the way, −nodes run, the node taken last: program order among equals, a number that is never equal)
    number = itertools.count()
    heap = [(begin.peak, 0, 0, next(number), begin)]
    while heap:
        peak, _, _, _, reached = heapq.heappop(heap)
        state = reached.state
        if peak > best[state]:
            continue
        if peak >= below_bytes:
            break
        if state == sets.all:
            return Searched([graph.working[k] for k in _walk(came, state)], peak)
        if len(best) > states or stop():
            return Searched(None, peak)
        for k in reached.ready:
            if max(peak, reached.live + sets.needs[k]) >= below_bytes:
                continue
            then, taken = sets.settle(sets.after_node(reached, k))
            if then.peak < best.get(then.state, below_bytes):
                best[then.state] = then.peak
                came[then.state] = (state, [k, *taken])
                heapq.heappush(heap, (then.peak, -state.bit_count(), k, next(number), then))
    return Searched(None, below_bytes)


def _walk(came: dict[int, tuple[int, list[int]]], state: int) -> list[int]:
    found: list[int] = []
    while state != -1:
        state, taken = came[state]
        found[:0] = taken
    return found


@dataclass(frozen=True, slots=True)
class _Reached:
    """A set of nodes that have run, bytes alive, the least peak that an order through it can have, what is alive of the
    storages that ``Ahead`` knows, and the nodes that may run next."""

    state: int
    live: int
    peak: int
    alive: int
    ready: list[int]


class _Sets:
    """Sets of nodes as bits; node k is the k-th of ``graph.working``."""

    def __init__(self, graph: OrderGraph) -> None:
        place = {n: k for k, n in enumerate(graph.working)}
        self.all = (1 << len(place)) - 1
        self.before = [sum(1 << place[m] for m in graph.predecessors[n] if m in place) for n in graph.working]
        self.after = [[place[m] for m in graph.successors[n] if m in place] for n in graph.working]
        self.needs: list[int] = []
        self._made: list[int] = []
        self._uses: list[list[tuple[int, int]]] = []
        self.ahead = Ahead(graph) if len(place) <= MOST_AHEAD else None
        self._frees: list[list[tuple[int, int]]] = []
        self._makes: list[int] = []
        users = {name: sum(1 << place[m] for m in nodes) for name, nodes in graph.consumers.items()}
        for n in graph.working:
            node = graph.nodes[n]
            made = sum(graph.bytes[name] for name in node.makes)
            unused = sum(graph.bytes[x] for x in node.makes if not users[x] and x not in graph.outputs)
            self.needs.append(made + node.workspace_bytes)
            self._made.append(made - unused)
            freed = [name for name in graph.counted[n] if name not in node.makes and name not in graph.outputs]
            self._uses.append([(users[name], graph.bytes[name]) for name in freed])
            bits = [(users[name], 1 << self.ahead.bit[name]) for name in freed if self.ahead and name in self.ahead.bit]
            self._frees.append(bits)
            kept = [name for name in node.makes if self.ahead and name in self.ahead.bit]
            self._makes.append(sum(1 << self.ahead.bit[name] for name in kept) if self.ahead else 0)
        # Of every node, the nodes on which it depends whether it may run and what it frees; itself among them.
        self.relevant = [
            functools.reduce(operator.or_, (mask for mask, _ in uses), before | (1 << k))
            for k, (before, uses) in enumerate(zip(self.before, self._uses, strict=True))
        ]
        self._groups: dict[int, list[tuple[int, int, tuple[int, list[int]]]]] = {}

    def released(self, k: int, state: int, ready: list[int]) -> list[int]:
        """``ready`` once k has run after ``state``."""
        missing = ~(state | (1 << k))
        return [m for m in ready if m != k] + [m for m in self.after[k] if self.before[m] & missing == 0]

    def change(self, k: int, state: int) -> int:
        """Bytes that running k after ``state`` adds to what is alive; negative when it frees more."""
        then = state | (1 << k)
        return self._made[k] - sum(size for users, size in self._uses[k] if users & ~then == 0)

    def after_node(self, reached: _Reached, k: int) -> _Reached:
        """Once k has run after ``reached``."""
        state = reached.state | (1 << k)
        alive = reached.alive | self._makes[k]
        for users, bit in self._frees[k]:
            if users & ~state == 0:
                alive &= ~bit
        return _Reached(
            state,
            reached.live + self.change(k, reached.state),
            max(reached.peak, reached.live + self.needs[k]),
            alive,
            self.released(k, reached.state, reached.ready),
        )

    def settle(self, reached: _Reached) -> tuple[_Reached, list[int]]:
        """Once nothing is left that costs nothing to take, and the nodes taken."""
        taken: list[int] = []
        while True:
            free = self._free(reached.state, reached.live, reached.peak, reached.ready)
            for k in free:
                reached = self.after_node(reached, k)
            taken += free
            if free or self.ahead is None:
                if not free:
                    return reached, taken
                continue
            least = self.ahead.least(reached.state, reached.alive)
            if least <= reached.peak:
                return reached, taken
            reached = replace(reached, peak=least)

    def _free(self, state: int, live: int, peak: int, ready: list[int]) -> list[int]:
        """Nodes to take now, in order; none where every choice has its price."""
        costly = []
        for k in ready:
            if live + self.needs[k] > peak:
                continue
            if self.change(k, state) <= 0:
                return [k]
            costly.append(k)
        for k in costly:
            needs, order = self._group(k, state)
            if order and live + needs <= peak:
                return order
        return []

    def _group(self, first: int, state: int) -> tuple[int, list[int]]:
        """What ``_find_group`` says, which for most sets it has said before: it looks at little of a set."""
        known = self._groups.setdefault(first, [])
        for looked_at, seen, found in known:
            if state & looked_at == seen:
                return found
        looked_at, found = self._find_group(first, state)
        known.append((looked_at, state & looked_at, found))
        return found

    def _find_group(self, first: int, state: int) -> tuple[int, tuple[int, list[int]]]:
        """``first`` and the fewest that wait for it alone, so that all together free what they make: bytes beyond what
        is alive that they need on the way, and their order, with the least such need. No nodes, where there are none.

        All sets of that many or fewer are gone through: a smaller one that frees as much would have to be taken by
        itself. Also returned: the nodes of ``state`` that decided about it.
        """
        looked_at = self.relevant[first]
        # Set → (bytes beyond what is alive, most of them on the way, its order); sets of one size at a time.
        level = {state | (1 << first): (self.change(first, state), self.needs[first], [first])}
        seen = 0
        while level and seen <= GROUPS:
            wider: dict[int, tuple[int, int, list[int]]] = {}
            for run, (more, top, order) in level.items():
                seen += 1
                for k in {m for n in order for m in self.after[n]}:
                    looked_at |= self.relevant[k]
                    if run >> k & 1 or self.before[k] & ~run:
                        continue
                    then, highest = run | (1 << k), max(top, more + self.needs[k])
                    known = wider.get(then)
                    if known is None or highest < known[1]:
                        wider[then] = (more + self.change(k, run), highest, [*order, k])
            enough = [entry[1:] for entry in wider.values() if entry[0] <= 0]
            if enough:
                return looked_at, min(enough)
            level = wider
        return looked_at, (0, [])

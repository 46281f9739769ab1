"""The least peak of a small graph, exactly: a minimax shortest path over the sets of nodes that have run.

Write m(S) for the bytes in memory after the nodes of S have run. They do not depend on the order of S.

1. **An order is a path through sets.** Its peak is the largest need on the path, and of all paths to a set only one of
   least peak matters. Sets are expanded in the order of the least peak that an order through them can have: the largest
   of what the path needs, the bound that is known already, and what some node still to come needs at least
   (``lookahead.py``). So when the set of all nodes is expanded, no order has a smaller peak.

2. **A free node is taken at once**, and no alternative to it is tried. Node k is free after S if it fits under the peak
   of S and m(S+k) ≤ m(S). Whatever order goes on from S, k may be moved to its front::

       k later     S ───a───▶ S+a ───b───▶ S+a+b ═══k═══▶ S+a+b+k ───▶ ...
                   ║ k        │ k          │ k            ║
       k first    S+k ──a──▶ S+k+a ──b──▶ S+k+a+b ════════╝

   The more nodes have run, the more k frees (m is submodular): m(T+k) − m(T) ≤ m(S+k) − m(S) ≤ 0 for every T in the
   upper row. So each set of the lower row has no more in memory than the set above it, and no node needs more there.

3. **A free group is taken at once, too.** A group G is a node that is not free, with nodes that wait for nothing else,
   such as the gradient of a weight and what updates the weight. It is free if it fits under the peak of S and
   m(S+G) ≤ m(S), and no smaller group of the same node has that: m(S+P) > m(S) for every part P of G that can run by
   itself. Where an order has run the part P of G (or nothing of G) by the time of T, the rest of G adds nothing either:
   m(T+G) − m(T) ≤ m(S+G) − m(S+P) ≤ 0. So the drawing holds with G in the place of k.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from monet.planner.order.graph import OrderGraph
from monet.planner.order.heuristics import Order
from monet.planner.order.lookahead import Ahead

MOST_GROUPS = 64
"""Groups of one node that are looked at to find a free one; an update has a handful of nodes."""
MOST_AHEAD = 2_500
"""Nodes of a graph that is looked ahead in: each storage takes a row of that many numbers."""


@dataclass(frozen=True, slots=True)
class SearchResult:
    """``order``: of the working nodes, or None where there is none. ``bound_bytes``: no order has a smaller peak."""

    order: Order | None
    bound_bytes: int


def search_orders(
    graph: OrderGraph,
    below_bytes: int,
    states: int,
    stop: Callable[[], bool] = lambda: False,
    bound_bytes: int = 0,
) -> SearchResult:
    """An order of least peak, if that is less than ``below_bytes`` and at most ``states`` sets need to be reached
    before ``stop()``. ``bound_bytes``: no order has a smaller peak, or a peak of that much is small enough.

    Without an order, ``bound_bytes`` of the result says why: it is ``below_bytes`` where there is none, less where the
    states or the time ran out.
    """
    sets = _Sets(graph)
    start, taken = sets.take_free(sets.start(bound_bytes))
    peaks = {start.done: start.peak}
    steps = {start.done: _Step(-1, taken)}
    # (peak on the way, −nodes run, the node taken last: captured order among equals, a number that is never equal)
    number = itertools.count()
    heap = [(start.peak, 0, 0, next(number), start)]
    while heap:
        peak, _, _, _, state = heapq.heappop(heap)
        if peak > peaks[state.done]:
            continue
        if peak >= below_bytes:
            break
        if state.done == sets.all:
            return SearchResult([graph.working[k] for k in _nodes_taken(steps, state.done)], peak)
        if len(peaks) > states or stop():
            return SearchResult(None, peak)
        for k in state.ready:
            if max(peak, state.live + sets.nodes[k].needs) >= below_bytes:
                continue
            then, taken = sets.take_free(sets.run(state, k))
            if then.peak < peaks.get(then.done, below_bytes):
                peaks[then.done] = then.peak
                steps[then.done] = _Step(state.done, [k, *taken])
                heapq.heappush(heap, (then.peak, -state.done.bit_count(), k, next(number), then))
    return SearchResult(None, below_bytes)


class _Step(NamedTuple):
    """How a set was reached: from the set ``before`` (−1: from none), by running ``taken``."""

    before: int
    taken: list[int]


def _nodes_taken(steps: Mapping[int, _Step], done: int) -> list[int]:
    """All nodes on the path to ``done``, in order."""
    nodes: list[int] = []
    while done != -1:
        done, taken = steps[done]
        nodes[:0] = taken
    return nodes


class Use(NamedTuple):
    """A storage that a node uses, and that is freed once all its users have run.

    ``users``: a set of nodes. ``early``: its bit in ``Ahead``, 0 where it has none.
    """

    users: int
    bytes: int
    early: int


@dataclass(frozen=True, slots=True)
class NodeBits:
    """What the search knows of one node. Sets of nodes are bits: node k, the k-th of ``graph.working``, is 1 << k.

    ``before``: the nodes that it waits for; ``after``: the nodes that wait for it, among others. ``needs``: bytes that
    it adds while it runs, ``leaves`` those of them that stay if it frees nothing. ``uses``: what it may free.
    ``early``: the storages it makes that can be made too early, by their bits in ``Ahead``. ``decides``: the nodes on
    which it depends whether the node may run and what it frees; the node among them.
    """

    bit: int
    before: int
    after: tuple[int, ...]
    needs: int
    leaves: int
    uses: tuple[Use, ...]
    early: int
    decides: int

    def change(self, done: int) -> int:
        """Bytes that running it after ``done`` adds to what is in memory; negative where it frees more."""
        missing = ~(done | self.bit)
        change = self.leaves
        for users, size, _ in self.uses:
            if users & missing == 0:
                change -= size
        return change


def _node_bits(graph: OrderGraph, early: Mapping[int, int]) -> tuple[NodeBits, ...]:
    """Of each working node. ``early``: ``Ahead.bit``, the number of the bit of each storage that has one."""
    place = {n: k for k, n in enumerate(graph.working)}
    users = {name: sum(1 << place[m] for m in nodes) for name, nodes in graph.consumers.items()}
    bit_of = {name: 1 << number for name, number in early.items()}
    nodes = []
    for k, n in enumerate(graph.working):
        node = graph.nodes[n]
        before = decides = sum(1 << place[m] for m in graph.predecessors[n] if m in place)
        uses = []
        for name in graph.counted[n]:
            if name not in node.makes and name not in graph.outputs:
                uses.append(Use(users[name], graph.bytes[name], bit_of.get(name, 0)))
                decides |= users[name]
        made = sum(graph.bytes[name] for name in node.makes)
        unused = sum(graph.bytes[name] for name in node.makes if not users[name] and name not in graph.outputs)
        nodes.append(
            NodeBits(
                bit=1 << k,
                before=before,
                after=tuple(place[m] for m in graph.successors[n] if m in place),
                needs=made + node.workspace_bytes,
                leaves=made - unused,
                uses=tuple(uses),
                early=sum(bit_of.get(name, 0) for name in node.makes),
                decides=decides | (1 << k),
            )
        )
    return tuple(nodes)


@dataclass(frozen=True, slots=True)
class State:
    """A set of nodes that have run, ``done``, and what follows from it and from the path to it, in bytes.

    ``live``: in memory. ``peak``: the least that an order through here can have. ``early``: the storages in memory that
    ``Ahead`` has bits for. ``ready``: the nodes that may run next.
    """

    done: int
    live: int
    peak: int
    early: int
    ready: list[int]


@dataclass(frozen=True, slots=True)
class Group:
    """Nodes that run one after the other, as ``order`` says. ``change``: bytes that all of them add to what is in
    memory, as ``NodeBits.change``; ``needs``: the most of them on the way, as ``NodeBits.needs``."""

    order: list[int]
    change: int
    needs: int


@dataclass(frozen=True, slots=True)
class _GroupAt:
    """The free group of a node, or None, after every set whose nodes of ``decides`` are ``ran``."""

    decides: int
    ran: int
    group: Group | None


class _Sets:
    """The sets of nodes of one graph, and the ways from one to the next."""

    def __init__(self, graph: OrderGraph) -> None:
        self.ahead = Ahead(graph) if len(graph.working) <= MOST_AHEAD else None
        self.nodes = _node_bits(graph, self.ahead.bit if self.ahead else {})
        self.all = (1 << len(self.nodes)) - 1
        self._groups: dict[int, list[_GroupAt]] = {}

    def start(self, bound_bytes: int) -> State:
        """Before any node has run."""
        return State(0, 0, bound_bytes, 0, [k for k, node in enumerate(self.nodes) if not node.before])

    def run(self, state: State, k: int) -> State:
        """Once node k has run after ``state``."""
        node = self.nodes[k]
        done = state.done | node.bit
        missing = ~done
        live, early = state.live + node.leaves, state.early | node.early
        for users, size, bit in node.uses:
            if users & missing == 0:
                live -= size
                early &= ~bit
        ready = [m for m in state.ready if m != k] + [m for m in node.after if self.nodes[m].before & missing == 0]
        return State(done, live, max(state.peak, state.live + node.needs), early, ready)

    def take_free(self, state: State) -> tuple[State, list[int]]:
        """Once nothing free is left, and the nodes taken. The peak is raised to what lies ahead needs: more may be free
        under it."""
        taken: list[int] = []
        while True:
            while free := self._free_nodes(state):
                for k in free:
                    state = self.run(state, k)
                taken += free
            least = self.ahead.least(state.done, state.early) if self.ahead else 0
            if least <= state.peak:
                return state, taken
            state = replace(state, peak=least)

    def _free_nodes(self, state: State) -> list[int]:
        """One free node, or a free group in its order; none where every choice has its price."""
        room = state.peak - state.live
        costly = []
        for k in state.ready:
            node = self.nodes[k]
            if node.needs > room:
                continue
            if node.change(state.done) <= 0:
                return [k]
            costly.append(k)
        for k in costly:
            group = self._group(k, state.done)
            if group is not None and group.needs <= room:
                return group.order
        return []

    def _group(self, first: int, done: int) -> Group | None:
        """``_find_group``, cached by the few nodes of ``done`` that decide about it."""
        known = self._groups.setdefault(first, [])
        for at in known:
            if done & at.decides == at.ran:
                return at.group
        known.append(self._find_group(first, done))
        return known[-1].group

    def _find_group(self, first: int, done: int) -> _GroupAt:
        """The smallest group of ``first`` and nodes that wait for it alone that adds nothing to what is in memory; of
        several the one that needs least on the way.

        Goes through all groups of two nodes, then of three, and so on, until there is one or ``MOST_GROUPS`` have been
        looked at. (``first`` alone is costly, else it would have been taken.)
        """
        nodes = self.nodes
        decides = nodes[first].decides
        # Groups of one size, by the set of all that has run after them.
        groups = {done | nodes[first].bit: Group([first], nodes[first].change(done), nodes[first].needs)}
        looked_at = 0
        while groups and looked_at <= MOST_GROUPS:
            larger: dict[int, Group] = {}
            for ran, group in groups.items():
                looked_at += 1
                for k in {m for n in group.order for m in nodes[n].after}:
                    node = nodes[k]
                    decides |= node.decides
                    if ran & node.bit or node.before & ~ran:
                        continue
                    then, needs = ran | node.bit, max(group.needs, group.change + node.needs)
                    if then not in larger or needs < larger[then].needs:
                        larger[then] = Group([*group.order, k], group.change + node.change(ran), needs)
            free = [group for group in larger.values() if group.change <= 0]
            if free:
                return _GroupAt(decides, done & decides, min(free, key=lambda group: (group.needs, group.order)))
            groups = larger
        return _GroupAt(decides, done & decides, None)

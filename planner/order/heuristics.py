"""Orders in linear or almost linear time: one list scheduler, and what it takes next.

Every order is a list of the working nodes (no views). Sources: least peak memory first is the greedy of PyTorch's
inductor (``torch/_inductor/memory.py``); ``lescea`` takes what leaves the least in memory, after LESCEA as described by
ROAM (Shu et al., 2023, arXiv:2310.19295), which also describes the delayed update.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence

from monet.planner.order.graph import OrderGraph

Order = list[int]


def program_order(graph: OrderGraph) -> Order:
    """As it was written."""
    return list(graph.working)


def least_peak_first(graph: OrderGraph) -> Order:
    """Whatever does not raise the peak so far, what frees most first; when all do, what raises it least."""
    return _Greedy(graph).run(lambda greedy: greedy.room_then_least())


def lescea(graph: OrderGraph) -> Order:
    """What leaves the least in memory."""
    return _Greedy(graph).run(lambda greedy: greedy.least_change())


def breadth_first(graph: OrderGraph) -> Order:
    """First ready, first run."""
    return _scheduled(graph, lambda n, done: done)


def depth_first(graph: OrderGraph) -> Order:
    """Last ready, first run: one branch to its end before the next begins."""
    return _scheduled(graph, lambda n, done: -done)


def updates_early(graph: OrderGraph) -> Order:
    """Program order, but what only serves an update of the graph's inputs runs as soon as it can."""
    updates = update_nodes(graph)
    return _scheduled(graph, lambda n, done: -1 if n in updates else n)


def updates_delayed(graph: OrderGraph) -> Order:
    """ROAM's delayed update: updates wait until what they need in addition no longer raises the peak.

    The order without them sets the peak; an update runs as soon as it can at that peak, and at the end otherwise.
    """
    return delayed(graph, update_nodes(graph), graph.working)


def delayed(graph: OrderGraph, side: frozenset[int], order: Sequence[int]) -> Order:
    """``order``, with each node of ``side`` as soon as it does not raise the peak so far, and at the end otherwise.

    No other node needs one of ``side``; ``order`` may leave these out.
    """
    rank = {n: k for k, n in enumerate(order)}
    return _Greedy(graph).run(lambda greedy: greedy.side_or_next(side, rank))


def update_nodes(graph: OrderGraph) -> frozenset[int]:
    """Nodes that only overwrite the graph's inputs, and those that serve such nodes only.

    A node that makes something as well is none (batch norm and its running statistics, dropout and the generator).

    What makes a gradient serves an update only, too. It is told by what it reads: something of the forward or the
    backward pass. So is an update's own node that reads a gradient beside which its maker makes something else.
    """
    updates = frozenset(
        n
        for n in graph.working
        if (node := graph.nodes[n]).overwrites and not node.makes and graph.inputs.issuperset(node.overwrites)
    )
    serving = set(updates)
    for n in reversed(graph.working):
        after = [m for m in graph.successors[n] if not graph.nodes[m].view]
        if after and not graph.outputs.intersection(graph.nodes[n].makes) and serving.issuperset(after):
            serving.add(n)

    def within(n: int) -> bool:
        return all(name in graph.inputs or graph.producer[name] in serving for name in graph.nodes[n].reads)

    return updates | {n for n in serving if within(n)}


def _scheduled(graph: OrderGraph, key: Callable[[int, int], int]) -> Order:
    """The ready node of the smallest key, program order among equals. ``key``: of a node, and of how many had run
    when it became ready."""
    waiting = _waiting(graph)
    ready = [(key(n, 0), n) for n, count in waiting.items() if count == 0]
    heapq.heapify(ready)
    found: Order = []
    while ready:
        n = heapq.heappop(ready)[1]
        found.append(n)
        for m in _released(graph, n, waiting):
            heapq.heappush(ready, (key(m, len(found)), m))
    return found


def _waiting(graph: OrderGraph) -> dict[int, int]:
    """How many working nodes each working node waits for."""
    working = set(graph.working)
    return {n: sum(m in working for m in graph.predecessors[n]) for n in graph.working}


def _released(graph: OrderGraph, n: int, waiting: dict[int, int]) -> list[int]:
    found = []
    for m in graph.successors[n]:
        if m in waiting:
            waiting[m] -= 1
            if waiting[m] == 0:
                found.append(m)
    return found


class _Greedy:
    """Ready nodes by what they need while they run and by what they leave, as counts of uses fall."""

    def __init__(self, graph: OrderGraph) -> None:
        self.graph = graph
        self.waiting = _waiting(graph)
        self.left = {name: len(nodes) for name, nodes in graph.consumers.items()}
        self.needs = {
            n: sum(graph.bytes[name] for name in graph.nodes[n].makes) + graph.nodes[n].workspace_bytes
            for n in graph.working
        }
        self.change = {n: self._change_of(n) for n in graph.working}
        self.ready: set[int] = set()
        # Entries are never removed: one whose node has run, or whose change is no longer so, is skipped.
        self.by_change: list[tuple[int, int]] = []
        self.by_need: list[tuple[int, int]] = []
        self.live = self.peak = 0
        for n, count in self.waiting.items():
            if count == 0:
                self._enter(n)

    def run(self, choose: Callable[[_Greedy], int]) -> Order:
        found = []
        while self.ready:
            n = choose(self)
            self._take(n)
            found.append(n)
        return found

    def room_then_least(self) -> int:
        """The least change among those that fit under the peak so far; else the least need."""
        room = self.peak - self.live
        skipped, found = [], None
        while self.by_change:
            entry = heapq.heappop(self.by_change)
            if not self._current(entry):
                continue
            skipped.append(entry)
            if self.needs[entry[1]] <= room:
                found = entry[1]
                break
        for entry in skipped:
            heapq.heappush(self.by_change, entry)
        return found if found is not None else self._least_need()

    def least_change(self) -> int:
        while not self._current(self.by_change[0]):
            heapq.heappop(self.by_change)
        return self.by_change[0][1]

    def side_or_next(self, side: frozenset[int], rank: Mapping[int, int]) -> int:
        """One of ``side`` that fits under the peak so far, else the next by ``rank``, else the first of ``side``."""
        room = self.peak - self.live
        fitting = [n for n in self.ready if n in side and (self.needs[n] <= room or self.change[n] < 0)]
        if fitting:
            return min(fitting, key=lambda n: (self.change[n], n))
        return min(self.ready, key=lambda n: (n in side, rank.get(n, n)))

    def _least_need(self) -> int:
        while True:
            need, n = self.by_need[0]
            if n in self.ready:
                # Of equal needs, what frees most.
                ties = []
                while self.by_need and self.by_need[0][0] == need:
                    entry = heapq.heappop(self.by_need)
                    if entry[1] in self.ready:
                        ties.append(entry)
                for entry in ties:
                    heapq.heappush(self.by_need, entry)
                return min(ties, key=lambda entry: (self.change[entry[1]], entry[1]))[1]
            heapq.heappop(self.by_need)

    def _current(self, entry: tuple[int, int]) -> bool:
        return entry[1] in self.ready and self.change[entry[1]] == entry[0]

    def _enter(self, n: int) -> None:
        self.ready.add(n)
        heapq.heappush(self.by_change, (self.change[n], n))
        heapq.heappush(self.by_need, (self.needs[n], n))

    def _change_of(self, n: int) -> int:
        """Bytes that running ``n`` now would add: what it makes less what it is the last to use."""
        graph, node = self.graph, self.graph.nodes[n]
        change = 0
        for name in graph.counted[n]:
            made = name in node.makes
            if made:
                change += graph.bytes[name]
            if self.left[name] == (0 if made else 1) and name not in graph.outputs:
                change -= graph.bytes[name]
        return change

    def _take(self, n: int) -> None:
        graph, node = self.graph, self.graph.nodes[n]
        self.ready.discard(n)
        self.peak = max(self.peak, self.live + self.needs[n])
        self.live += self.change[n]
        for name in graph.counted[n]:
            if name in node.makes:
                continue
            self.left[name] -= 1
            if self.left[name] == 1 and name not in graph.outputs:
                # Its last user will free it.
                for m in graph.consumers[name]:
                    if m in self.ready or self.waiting[m] > 0:
                        self.change[m] -= graph.bytes[name]
                        if m in self.ready:
                            heapq.heappush(self.by_change, (self.change[m], m))
        for m in _released(graph, n, self.waiting):
            self._enter(m)


ORDERS: Mapping[str, Callable[[OrderGraph], Order]] = {
    "program": program_order,
    "lpmf": least_peak_first,
    "depth-first": depth_first,
    "breadth-first": breadth_first,
    "lescea": lescea,
    "early-update": updates_early,
    "delayed-update": updates_delayed,
}
"""By the names that ``--order`` takes."""

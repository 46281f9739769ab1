"""Orders in linear or almost linear time: one list scheduler, and what it takes next.

Every order is a list of the working nodes (no views). Sources: ``least_peak_first`` is the greedy of PyTorch's inductor
(``torch/_inductor/memory.py``); ``lescea`` is LESCEA as ROAM describes it (Shu et al., 2023, arXiv:2310.19295), and
``updates_delayed`` is ROAM's own.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from monet.planner.order.graph import OrderGraph

Order = list[int]


def captured_order(graph: OrderGraph) -> Order:
    """As the graph was captured, or written down."""
    return list(graph.working)


def least_peak_first(graph: OrderGraph) -> Order:
    """The node that frees most of those that do not raise the peak so far; where all do, the one that needs least."""
    return _Greedy(graph).run(lambda greedy: greedy.room_then_least())


def lescea(graph: OrderGraph) -> Order:
    """The node that leaves the least in memory."""
    return _Greedy(graph).run(lambda greedy: greedy.least_change())


def breadth_first(graph: OrderGraph) -> Order:
    """First ready, first run."""
    return _scheduled(graph, lambda n, done: done)


def depth_first(graph: OrderGraph) -> Order:
    """Last ready, first run: one branch to its end before the next begins."""
    return _scheduled(graph, lambda n, done: -done)


def updates_early(graph: OrderGraph) -> Order:
    """The captured order, but what only serves an update of the graph's inputs runs as soon as it can."""
    updates = update_nodes(graph)
    return _scheduled(graph, lambda n, done: -1 if n in updates else n)


def updates_delayed(graph: OrderGraph) -> Order:
    """ROAM's delayed update: each update waits until it can run without raising the peak so far, or to the end."""
    return delayed(graph, update_nodes(graph), graph.working)


def delayed(graph: OrderGraph, side: frozenset[int], order: Sequence[int]) -> Order:
    """``order``, with each node of ``side`` as soon as it does not raise the peak so far, and at the end otherwise.

    No other node needs one of ``side``; ``order`` may leave ``side`` out.
    """
    rank = {n: k for k, n in enumerate(order)}
    return _Greedy(graph).run(lambda greedy: greedy.side_or_next(side, rank))


def update_nodes(graph: OrderGraph) -> frozenset[int]:
    """Nodes that only overwrite the graph's inputs, and nodes that serve only such nodes.

    A node that also makes something is no update (batch norm and its running statistics, dropout and the generator).

    A node that makes a gradient also serves only an update. The two are told apart by their reads: an update's own
    nodes read the graph's inputs, gradients and each other; a gradient's node reads a value of the forward or backward
    pass. (Exception: where a gradient's maker makes something else as well, a node of the update that reads the
    gradient, and overwrites nothing, is taken for one of the backward pass.)
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
    """Always the ready node of the smallest key, of equals the first captured. ``key``: of a node, and of how many
    nodes had run when it became ready."""
    waiting = _waiting(graph)
    ready = [(key(n, 0), n) for n, count in waiting.items() if count == 0]
    heapq.heapify(ready)
    order: Order = []
    while ready:
        n = heapq.heappop(ready)[1]
        order.append(n)
        for m in _released(graph, n, waiting):
            heapq.heappush(ready, (key(m, len(order)), m))
    return order


def _waiting(graph: OrderGraph) -> dict[int, int]:
    """How many working nodes each working node waits for."""
    working = set(graph.working)
    return {n: sum(m in working for m in graph.predecessors[n]) for n in graph.working}


def _released(graph: OrderGraph, n: int, waiting: dict[int, int]) -> list[int]:
    """Nodes that n is the last to be waited for; counts it in ``waiting``."""
    ready = []
    for m in graph.successors[n]:
        if m in waiting:
            waiting[m] -= 1
            if waiting[m] == 0:
                ready.append(m)
    return ready


class _Greedy:
    """Ready nodes, sorted by the bytes that they need while they run and by those that they add for good.

    What a node adds falls as others run: of what it uses, it becomes the last user.
    """

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
        # Heaps from which nothing is removed: an entry whose node has run, or whose change is out of date, is skipped.
        self.by_change: list[tuple[int, int]] = []
        self.by_need: list[tuple[int, int]] = []
        self.live = self.peak = 0
        for n, count in self.waiting.items():
            if count == 0:
                self._enter(n)

    def run(self, choose: Callable[[_Greedy], int]) -> Order:
        order = []
        while self.ready:
            n = choose(self)
            self._take(n)
            order.append(n)
        return order

    def room_then_least(self) -> int:
        """The least change among those that fit under the peak so far; else the least need."""
        room = self.peak - self.live
        popped, fitting = [], None
        while self.by_change:
            entry = heapq.heappop(self.by_change)
            if not self._current(entry):
                continue
            popped.append(entry)
            if self.needs[entry[1]] <= room:
                fitting = entry[1]
                break
        for entry in popped:
            heapq.heappush(self.by_change, entry)
        return fitting if fitting is not None else self._least_need()

    def least_change(self) -> int:
        """The node that adds least, or frees most."""
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
        """The node that needs least while it runs, of equals the one that frees most."""
        while True:
            need, n = self.by_need[0]
            if n in self.ready:
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


@dataclass(frozen=True, slots=True)
class Heuristic:
    """``make``: an order of the working nodes, in linear or almost linear time. ``about``: a line for the help."""

    make: Callable[[OrderGraph], Order]
    about: str


ORDERS: Mapping[str, Heuristic] = {
    "captured": Heuristic(captured_order, "as captured: the order of the file"),
    "lpmf": Heuristic(least_peak_first, "least peak memory first, the greedy of PyTorch's inductor"),
    "depth-first": Heuristic(depth_first, "last ready, first run"),
    "breadth-first": Heuristic(breadth_first, "first ready, first run"),
    "lescea": Heuristic(lescea, "what leaves the least in memory, after LESCEA"),
    "early-update": Heuristic(updates_early, "the order of the file, with weight updates as soon as they can run"),
    "delayed-update": Heuristic(updates_delayed, "ROAM's: weight updates wait until they no longer raise the peak"),
}
"""By the names that ``--order`` takes."""

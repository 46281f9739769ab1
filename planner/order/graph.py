"""A graph of operators that may run in any order that respects what they read, make and overwrite.

Memory is counted in *storages*: views and in-place operators are other names of a storage, never copies. What
the graph is given (parameters, optimiser state, the batch) is there before and after, and is not counted.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from monet.errors import MonetError


class InvalidGraph(MonetError, ValueError):
    """A graph reads what nothing makes, makes a storage twice, or has no size for one; or an order breaks it."""


@dataclass(frozen=True, slots=True)
class Node:
    """One operator. ``reads``, ``makes`` and ``overwrites`` are storages; a node may read what it overwrites.

    ``workspace_bytes`` are in use while it runs and at no other time. A ``view`` that neither makes nor overwrites
    anything costs nothing, and is placed as soon as what it reads is there.
    """

    name: str
    reads: tuple[int, ...]
    makes: tuple[int, ...]
    overwrites: tuple[int, ...] = ()
    workspace_bytes: int = 0
    view: bool = False


@dataclass(frozen=True)
class OrderGraph:
    """``nodes`` in the captured order, which is one valid order. ``bytes``: of every storage that a node makes.

    ``inputs``: storages that are there from the start. ``outputs``: made storages that are still needed at the end.
    """

    nodes: tuple[Node, ...]
    bytes: Mapping[int, int]
    inputs: frozenset[int]
    outputs: frozenset[int]

    def __post_init__(self) -> None:
        made: set[int] = set(self.inputs)
        for node in self.nodes:
            for name in (*node.reads, *node.overwrites):
                if name not in made:
                    raise InvalidGraph(f"{node.name} uses storage {name} before anything makes it")
            for name in node.makes:
                if name in made:
                    raise InvalidGraph(f"{node.name} makes storage {name}, which is there already")
                if self.bytes.get(name, -1) < 0:
                    raise InvalidGraph(f"storage {name}, made by {node.name}, has no size")
                made.add(name)
        if missing := self.outputs - made:
            raise InvalidGraph(f"nothing makes the outputs {sorted(missing)}")

    @cached_property
    def working(self) -> tuple[int, ...]:
        """Nodes other than views, in the captured order."""
        return tuple(n for n, node in enumerate(self.nodes) if not node.view or node.makes or node.overwrites)

    @cached_property
    def counted(self) -> tuple[tuple[int, ...], ...]:
        """For every node, the storages besides the graph's inputs that must be in memory while it runs."""
        counted = []
        for node in self.nodes:
            names = dict.fromkeys((*node.reads, *node.overwrites, *node.makes))
            counted.append(tuple(name for name in names if name not in self.inputs))
        return tuple(counted)

    @cached_property
    def predecessors(self) -> tuple[tuple[int, ...], ...]:
        """For every node, the nodes that must run before it: those that made or last overwrote what it uses, and those
        that read the old contents of what it overwrites. A view must only come after what it reads: nodes that
        overwrite what a view reads need not wait for the view."""
        writer: dict[int, int] = {}
        readers: dict[int, list[int]] = {}
        predecessors = []
        for n, node in enumerate(self.nodes):
            before = {writer[name] for name in (*node.reads, *node.overwrites) if name in writer}
            for name in node.overwrites:
                before.update(readers.get(name, ()))
            for name in (*node.overwrites, *node.makes):
                writer[name], readers[name] = n, []
            if not node.view:
                for name in node.reads:
                    if name not in node.overwrites:
                        readers.setdefault(name, []).append(n)
            before.discard(n)
            predecessors.append(tuple(sorted(before)))
        return tuple(predecessors)

    @cached_property
    def successors(self) -> tuple[tuple[int, ...], ...]:
        after: list[list[int]] = [[] for _ in self.nodes]
        for n, before in enumerate(self.predecessors):
            for m in before:
                after[m].append(n)
        return tuple(map(tuple, after))

    @cached_property
    def consumers(self) -> Mapping[int, tuple[int, ...]]:
        """Of every storage that a node makes: the working nodes that use it, without its maker."""
        users: dict[int, list[int]] = {name: [] for n in self.working for name in self.nodes[n].makes}
        for n in self.working:
            for name in self.counted[n]:
                if name not in self.nodes[n].makes:
                    users[name].append(n)
        return {name: tuple(nodes) for name, nodes in users.items()}

    @cached_property
    def producer(self) -> Mapping[int, int]:
        """Of every storage that a node makes: its maker."""
        return {name: n for n in self.working for name in self.nodes[n].makes}


def memory_along(graph: OrderGraph, order: Iterable[int]) -> list[int]:
    """Bytes in memory while each node of ``order`` runs: what is alive, what it makes, and its workspace.

    ``order`` may leave views out. Raises ``InvalidGraph`` if it is no order of all other nodes.
    """
    left = {name: len(nodes) for name, nodes in graph.consumers.items()}
    done = [False] * len(graph.nodes)
    live, along = 0, []
    for n in order:
        node = graph.nodes[n]
        if done[n]:
            raise InvalidGraph(f"{node.name} runs twice")
        for m in graph.predecessors[n]:
            if not done[m] and not graph.nodes[m].view:
                raise InvalidGraph(f"{node.name} runs before {graph.nodes[m].name}, which it needs")
        done[n] = True
        if node.view and not node.makes and not node.overwrites:
            along.append(live)
            continue
        live += sum(graph.bytes[name] for name in node.makes)
        along.append(live + node.workspace_bytes)
        for name in graph.counted[n]:
            if name not in node.makes:
                left[name] -= 1
            if left[name] == 0 and name not in graph.outputs:
                live -= graph.bytes[name]
    if missing := [graph.nodes[n].name for n in graph.working if not done[n]]:
        raise InvalidGraph(f"{len(missing)} nodes never run, {missing[0]} first")
    return along


def peak_bytes(graph: OrderGraph, order: Iterable[int]) -> int:
    """The most of ``memory_along``."""
    return max(memory_along(graph, order), default=0)


def with_views(graph: OrderGraph, order: Sequence[int]) -> tuple[int, ...]:
    """``order``, of the working nodes, with every view as soon as what it reads is there."""
    working = set(graph.working)
    waiting = {n: len(graph.predecessors[n]) for n in range(len(graph.nodes)) if n not in working}
    complete: list[int] = []

    def append_with_views(ready: list[int]) -> None:
        """Appends the nodes of ``ready``, and the views that may follow them."""
        while ready:  # a heap: of views of one storage, one may be a view of the other
            n = heapq.heappop(ready)
            complete.append(n)
            for m in graph.successors[n]:
                if m in waiting:
                    waiting[m] -= 1
                    if waiting[m] == 0:
                        heapq.heappush(ready, m)

    append_with_views([n for n, count in waiting.items() if count == 0])
    for n in order:
        append_with_views([n])
    return tuple(complete)

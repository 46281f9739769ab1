"""Min-cut bound: the least bytes that can be in memory while an operator runs, over all sets that may run before it.

The set S of the nodes that have run before operator v has all predecessors of its nodes and all ancestors of v, but
neither v nor a descendant of v. The least bytes alive over all such S are a minimum cut, with S on the source's side::

    source ──size──▶ storage            made by an ancestor of v
    maker  ──size──▶ storage ──∞──▶ user           cut where the maker has run and some user has not
                     storage ──∞──▶ sink           an output, or used by v or after it
    node   ──∞──▶ each node that must run before it

Every order runs v after one such set, so no order needs less than the largest of these cuts. The forced-live bound
(``forced_live.py``) counts only the storages that are alive for every S, so it is never more.

The bytes that a known order has at v are those of one S. So an operator that some known order runs at no more than the
bound so far cannot raise the bound, and gets no cut.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_flow

from monet.planner.order.ancestry import MOST_NODES, Ancestry
from monet.planner.order.forced_live import forced_live
from monet.planner.order.graph import OrderGraph, memory_along
from monet.planner.order.heuristics import Order

Flags = npt.NDArray[np.bool_]

MOST_CAPACITY = 1 << 29
"""Of all finite arcs together. The flow algorithm counts in 32 bits, and adds capacities of two arcs."""


def min_cut(graph: OrderGraph, orders: Sequence[Order], stop: Callable[[], bool] = lambda: False) -> int:
    """Bytes that no order of ``graph`` can stay below; at least the forced-live bound.

    ``orders``: known ones, whose bytes rule operators out. Operators get their cuts in falling order of their
    forced-live bound, until ``stop()``. Sizes are divided by their greatest common divisor, and rounded down to a
    larger unit where their sum still exceeds 2²⁹: the cut is then up to one unit a storage too small, never too large.
    A graph of more than ``MOST_NODES`` nodes gets no cuts.
    """
    forced = forced_live(graph)
    bound = int(forced.max(initial=0))
    if len(graph.working) > MOST_NODES:
        return bound
    most = np.full(len(graph.working), np.iinfo(np.int64).max)
    place = {n: k for k, n in enumerate(graph.working)}
    for order in orders:
        along = np.array(memory_along(graph, order), np.int64)
        at = np.array([place[n] for n in order], np.int64)
        most[at] = np.minimum(most[at], along)
    cuts: _Cuts | None = None
    for k in np.argsort(-forced, kind="stable"):
        if most[k] <= bound:
            continue
        if stop():
            break
        if cuts is None:
            cuts = _Cuts(graph)
        bound = max(bound, int(forced[k]) + cuts.more_than_forced(int(k)))
    return bound


class _Cuts:
    """One flow network an operator, over what is neither before nor after it."""

    def __init__(self, graph: OrderGraph) -> None:
        self.graph = graph
        self.ancestry = Ancestry(graph)
        self.place = self.ancestry.place
        self.before = [[self.place[m] for m in graph.predecessors[n] if m in self.place] for n in graph.working]
        self.storages = [
            (
                graph.bytes[name],
                self.place[maker],
                [self.place[m] for m in graph.consumers[name]],
                name in graph.outputs,
            )
            for name, maker in graph.producer.items()
            if graph.bytes[name] > 0
        ]

    def more_than_forced(self, k: int) -> int:
        """The cut at the ``k``-th working node, less what is forced to be alive there."""
        earlier = self.ancestry.where(self.ancestry.ancestors[k])
        free = ~earlier & ~self.ancestry.where(self.ancestry.descendants[k])
        earlier[k] = False
        if not free.any():
            return 0
        return _Network(free, earlier).cut(self.storages, self.before)


class _Network:
    """Nodes: 0 the source, 1 the sink, then what is free and the storages that depend on it."""

    def __init__(self, free: Flags, earlier: Flags) -> None:
        self.free, self.earlier = free, earlier
        self.node = {int(k): 2 + i for i, k in enumerate(np.flatnonzero(free))}
        self.count = 2 + len(self.node)
        self.finite: list[tuple[int, int, int]] = []
        self.endless: list[tuple[int, int]] = []

    def cut(self, storages: Sequence[tuple[int, int, list[int], bool]], before: Sequence[list[int]]) -> int:
        for size, maker, users, output in storages:
            self._storage(size, maker, users, output)
        if not self.finite:
            return 0
        for k, at in self.node.items():
            self.endless += [(at, self.node[m]) for m in before[k] if self.free[m]]
        sizes = [size for _, _, size in self.finite]
        unit = int(np.gcd.reduce(sizes))
        unit *= -(-sum(sizes) // (unit * MOST_CAPACITY))
        scaled = [size // unit for size in sizes]
        endless = sum(scaled) + 1
        rows = [a for a, _, _ in self.finite] + [a for a, _ in self.endless]
        columns = [b for _, b, _ in self.finite] + [b for _, b in self.endless]
        capacity = np.array([*scaled, *(endless for _ in self.endless)], np.int32)
        network = csr_array((capacity, (rows, columns)), shape=(self.count, self.count), dtype=np.int32)
        # The flow algorithm's own index type.
        network.indices, network.indptr = network.indices.astype(np.int32), network.indptr.astype(np.int32)
        return int(maximum_flow(network, 0, 1).flow_value) * unit

    def _storage(self, size: int, maker: int, users: list[int], output: bool) -> None:
        if not self.free[maker] and not self.earlier[maker]:
            return  # made after the operator, or by it: never alive before, or forced
        kept = output or any(not self.earlier[m] and not self.free[m] for m in users)
        deciding = [self.node[m] for m in users if self.free[m]]
        if self.earlier[maker] and (kept or not deciding):
            return  # forced to be alive, or forced to be gone
        at, self.count = self.count, self.count + 1
        self.finite.append((self.node[maker] if self.free[maker] else 0, at, size))
        if kept:
            self.endless.append((at, 1))
        self.endless += [(at, m) for m in deciding]

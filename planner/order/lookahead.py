"""What an operator that is still to come needs at least, given what has been made so far.

The forced-live bound (``forced_live.py``) knows nothing of what has run: it counts a storage at v only if v or an
ancestor of v makes it, and v or a descendant of v uses it. A storage that has been made is in memory at v without the
first condition. So a storage that was made too early, such as an activation that is computed again long before its
gradient, raises the bound of every operator in between at once.
"""

from __future__ import annotations

import numpy as np

from monet.planner.order.ancestry import Ancestry
from monet.planner.order.forced_live import forced_live
from monet.planner.order.graph import OrderGraph


class Ahead:
    """Nodes are places in ``graph.working``; sets of nodes and of storages are bits of integers."""

    def __init__(self, graph: OrderGraph) -> None:
        ancestry = Ancestry(graph)
        self.count = ancestry.count
        self.width = -(-self.count // 8)
        self._forced = forced_live(graph)
        self.bit: dict[int, int] = {}
        """Of every storage that can be made too early, its bit."""
        rows: list[np.typing.NDArray[np.int64]] = []
        for name, maker in graph.producer.items():
            size = graph.bytes[name]
            if size == 0:
                continue
            if name in graph.outputs:
                needed = np.ones(self.count, np.bool_)
            else:
                users = [ancestry.ancestors[ancestry.place[m]] for m in graph.consumers[name]]
                if not users:
                    continue
                needed = ancestry.where(np.bitwise_or.reduce(users, axis=0))
            early = needed & ~ancestry.where(ancestry.descendants[ancestry.place[maker]])
            if early.any():
                self.bit[name] = len(rows)
                rows.append(np.where(early, size, 0))
        self._early = np.array(rows, np.int64).reshape(len(rows), self.count)
        self._bytes = -(-len(rows) // 8)

    def least(self, done: int, alive: int) -> int:
        """Bytes that some node outside ``done`` needs in every order that continues ``done``; 0 after the last node.

        ``alive``: storages in memory after ``done``, by their bits.
        """
        ran = np.unpackbits(
            np.frombuffer(done.to_bytes(self.width, "little"), np.uint8), count=self.count, bitorder="little"
        )
        load = self._forced
        if alive:
            there = np.frombuffer(alive.to_bytes(self._bytes, "little"), np.uint8)
            rows = np.flatnonzero(np.unpackbits(there, bitorder="little"))
            load = load + self._early[rows].sum(axis=0)
        return int(np.where(ran, 0, load).max(initial=0))

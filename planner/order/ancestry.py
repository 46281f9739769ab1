"""Ancestors and descendants of the nodes of a graph."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from monet.planner.order.graph import OrderGraph

Bits = npt.NDArray[np.uint8]

MOST_NODES = 20_000
"""Working nodes of a graph whose ancestry is looked at: its rows grow by the square, to 100 MB there and 1 GB at 64,000
nodes."""


class Ancestry:
    """Ancestors and descendants of the working nodes, each row including the node itself.

    Rows and bits are places in ``graph.working``, in little bit order.
    """

    def __init__(self, graph: OrderGraph) -> None:
        self.place = {n: k for k, n in enumerate(graph.working)}
        self.count = len(graph.working)
        width = -(-self.count // 8)
        self.ancestors: Bits = np.zeros((self.count, width), np.uint8)
        self.descendants: Bits = np.zeros((self.count, width), np.uint8)
        for rows, order in ((self.ancestors, range(self.count)), (self.descendants, reversed(range(self.count)))):
            neighbours = graph.predecessors if rows is self.ancestors else graph.successors
            for k in order:
                row = rows[k]
                row[k >> 3] |= 1 << (k & 7)
                for m in neighbours[graph.working[k]]:
                    if m in self.place:
                        row |= rows[self.place[m]]

    def where(self, bits: Bits) -> npt.NDArray[np.bool_]:
        """One flag a working node."""
        return np.unpackbits(bits, count=self.count, bitorder="little").astype(np.bool_)

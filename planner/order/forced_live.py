"""Forced-live bound: bytes that are in memory while an operator runs, in every order.

While operator v runs, a storage is in memory in every order if v or an ancestor of v makes it, and v or a descendant
of v uses it; an output if v or an ancestor makes it. Ancestors are rows of bits (``Ancestry``): of 10,000 nodes they
take 12 MB, and descendants as much, in well under a second. Of more than ``MOST_NODES`` nodes only what an operator
uses itself is counted.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from monet.planner.order.ancestry import MOST_NODES, Ancestry
from monet.planner.order.graph import OrderGraph


def forced_live(graph: OrderGraph) -> npt.NDArray[np.int64]:
    """For every working node a bound on ``memory_along`` while it runs, whatever the order, in bytes."""
    load = np.array([graph.nodes[n].workspace_bytes for n in graph.working], np.int64)
    if len(graph.working) > MOST_NODES:
        return load + np.array([sum(graph.bytes[name] for name in graph.counted[n]) for n in graph.working], np.int64)
    ancestry = Ancestry(graph)
    place = ancestry.place
    for name, n in graph.producer.items():
        after = ancestry.descendants[place[n]]
        if name in graph.outputs:
            forced = after
        else:
            users = [ancestry.ancestors[place[m]] for m in graph.consumers[name]]
            users.append(ancestry.ancestors[place[n]])
            forced = after & np.bitwise_or.reduce(users, axis=0)
        load[ancestry.where(forced)] += graph.bytes[name]
    return load

"""From an order to the lifetimes of its buffers: what ``layout`` takes."""

from __future__ import annotations

from collections.abc import Sequence

from monet.planner.layout.arena import Lifetime
from monet.planner.order.graph import OrderGraph


def order_lifetimes(graph: OrderGraph, order: Sequence[int]) -> tuple[Lifetime, ...]:
    """When each storage that a node makes is in use, in ticks that are places in ``order``.

    A storage lives from the node that makes it to the last node that uses it, an output to the end, a workspace while
    its node runs. The id of a storage is its name, that of a workspace a number above all names. Storages without
    bytes are left out. The largest load of a tick is ``peak_bytes(graph, order)``.

    ``order``: valid for ``graph`` (``memory_along`` tells); views may be left out.
    """
    at = {n: tick for tick, n in enumerate(order)}
    lifetimes = []
    for name, maker in graph.producer.items():
        last = max((at[n] for n in graph.consumers[name]), default=at[maker])
        end = len(order) if name in graph.outputs else last + 1
        if graph.bytes[name]:
            lifetimes.append(Lifetime(name, graph.bytes[name], at[maker], end))
    first = max((*graph.bytes, *graph.inputs), default=-1) + 1
    for n in graph.working:
        if size := graph.nodes[n].workspace_bytes:
            lifetimes.append(Lifetime(first + n, size, at[n], at[n] + 1))
    return tuple(lifetimes)

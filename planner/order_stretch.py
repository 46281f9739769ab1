"""Improve an order around its peak: the nodes of a stretch are put in their best order, all others stay.

Around a peak that every order must have there is nothing to gain, so this is only tried while the peak is above the
bound, and the stretch grows until its search gets too large.
"""

from __future__ import annotations

import time

from monet.planner.order_graph import Node, OrderGraph, memory_along, peak_bytes
from monet.planner.order_search import search
from monet.planner.orders import Order

FIRST_NODES, MOST_NODES = 8, 256
STATES = 20_000


def improve(graph: OrderGraph, order: Order, bound_bytes: int, deadline: float) -> Order:
    """``order`` or one with a smaller peak; stops at ``bound_bytes`` or when ``time.monotonic()`` is ``deadline``."""
    nodes = FIRST_NODES
    while nodes <= 2 * MOST_NODES and time.monotonic() < deadline:
        along = memory_along(graph, order)
        peak = max(along, default=0)
        if peak <= bound_bytes:
            break
        better = None
        at = along.index(peak)
        for share in (0.5, 0.25, 0.75):
            begin = max(0, at - round(nodes * share))
            better = _reordered(graph, order, begin, min(len(order), begin + nodes), peak)
            if better is not None:
                break
        if better is None:
            nodes *= 2
        else:
            order = better
    return order


def _reordered(graph: OrderGraph, order: Order, begin: int, end: int, peak: int) -> Order | None:
    """``order`` with [begin, end) in the order of its least peak, if that makes the peak there smaller."""
    part, base = stretch(graph, order, begin, end)
    found = search(part, peak - base, STATES)
    if found.order is None:
        return None
    inside = [order[begin + k - 1] for k in found.order if k > 0]
    tried = [*order[:begin], *inside, *order[end:]]
    return tried if peak_bytes(graph, tried) <= peak else None


def stretch(graph: OrderGraph, order: Order, begin: int, end: int) -> tuple[OrderGraph, int]:
    """The nodes order[begin:end] as a graph of their own, after one node that makes what they find; and the bytes
    that are alive all through without being used there."""
    inside = set(order[begin:end])
    earlier, later = set(order[:begin]), set(order[end:])
    found: dict[int, None] = {}
    base = 0
    outputs = set()
    for name, maker in graph.producer.items():
        users = graph.consumers[name]
        needed_later = name in graph.outputs or any(m in later for m in users)
        used_here = maker in inside or any(m in inside for m in users)
        if maker in earlier:
            if used_here:
                found[name] = None
            elif needed_later:
                base += graph.bytes[name]
        if used_here and needed_later:
            outputs.add(name)
    nodes = (Node("what is there", (), tuple(found)), *(graph.nodes[n] for n in order[begin:end]))
    return OrderGraph(nodes, graph.bytes, graph.inputs, frozenset(outputs)), base

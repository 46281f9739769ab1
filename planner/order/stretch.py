"""Improve an order around its peak: the nodes of a stretch are put in their best order, all others stay.

A peak that every order has cannot be lowered, so this is tried only while the peak is above the bound. The stretch
grows until its search gets too large.
"""

from __future__ import annotations

from dataclasses import replace

from monet.planner.order.exact_search import search_orders
from monet.planner.order.graph import Node, OrderGraph, memory_along
from monet.planner.order.heuristics import Order
from monet.planner.order.order_search import OrderSearch

FIRST_NODES, MOST_NODES = 8, 256
"""Of a stretch: its length is doubled whenever none of that length helps."""
STRETCHES = " + exact stretches"


def reorder_stretches(search: OrderSearch, states: int) -> None:
    """Reorders around the peak of ``search``'s best order as long as that helps and it is open; each exact search
    reaches at most ``states`` sets."""
    nodes = FIRST_NODES
    order, method = search.best.order, search.best.method + STRETCHES
    tried: set[tuple[int, int]] = set()
    while nodes <= 2 * MOST_NODES and search.open:
        at = memory_along(search.graph, order).index(search.best.peak_bytes)
        better = None
        for share in (0.5, 0.25, 0.75):
            begin = max(0, at - round(nodes * share))
            end = min(len(order), begin + nodes)
            if (begin, end) in tried:
                continue
            tried.add((begin, end))
            better = reordered(search, order, begin, end, states)
            if better is not None or search.stop():
                break
        if better is None:
            nodes *= 2
        else:
            # The order may have the same peak at another place, too: it is better then, but not yet the search's best.
            order = better
            tried.clear()
            search.offer(order, method)


def reordered(search: OrderSearch, order: Order, begin: int, end: int, states: int) -> Order | None:
    """``order`` with [begin, end) in the order of its own least peak, if that is below the peak of ``search``'s
    best."""
    part, base = stretch(search.graph, order, begin, end)
    result = search_orders(part, search.best.peak_bytes - base, states, search.stop, max(0, search.bound_bytes - base))
    return None if result.order is None else spliced(order, begin, end, result.order)


def spliced(order: Order, begin: int, end: int, inside: Order) -> Order:
    """``order`` with its nodes [begin, end) ordered as ``inside`` orders the graph that ``stretch`` made of them."""
    return [*order[:begin], *(order[begin + k - 1] for k in inside if k > 0), *order[end:]]


def stretch(graph: OrderGraph, order: Order, begin: int, end: int) -> tuple[OrderGraph, int]:
    """The nodes order[begin:end] as a graph of their own, and the bytes that are in memory all through without being
    used there.

    Node 0 of the graph makes what earlier nodes have made and these use; node k is order[begin + k - 1], and reads
    something of node 0, if only the storage ``mark`` of no bytes, so that node 0 comes first. The peak of any order of
    the graph, plus the bytes, is the peak that the whole order then has in this stretch.
    """
    inside = set(order[begin:end])
    earlier, later = set(order[:begin]), set(order[end:])
    there: dict[int, None] = {}
    base = 0
    outputs = set()
    for name, maker in graph.producer.items():
        users = graph.consumers[name]
        needed_later = name in graph.outputs or any(m in later for m in users)
        used_here = maker in inside or any(m in inside for m in users)
        if maker in earlier:
            if used_here:
                there[name] = None
            elif needed_later:
                base += graph.bytes[name]
        if used_here and needed_later:
            outputs.add(name)
    mark = max((*graph.bytes, *graph.inputs), default=0) + 1
    nodes = [Node("what is there", (), (*there, mark))]
    for n in order[begin:end]:
        node = graph.nodes[n]
        nodes.append(node if there.keys() & {*node.reads} else replace(node, reads=(*node.reads, mark)))
    return OrderGraph(tuple(nodes), {**graph.bytes, mark: 0}, graph.inputs, frozenset(outputs)), base

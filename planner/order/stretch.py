"""Improve an order around its peak: the nodes of a stretch are put in their best order, all others stay.

Around a peak that every order must have there is nothing to gain, so this is only tried while the peak is above the
bound, and the stretch grows until its search gets too large.
"""

from __future__ import annotations

from dataclasses import replace

from monet.planner.order.exact_search import search_orders
from monet.planner.order.graph import Node, OrderGraph, memory_along
from monet.planner.order.heuristics import Order
from monet.planner.order.race import Race

FIRST_NODES, MOST_NODES = 8, 256
STRETCHES = " + exact stretches"


def improve(race: Race, states: int) -> None:
    """Reorders around the peak of ``race``'s best order as long as that helps and the race is open; each search
    reaches at most ``states`` sets."""
    nodes = FIRST_NODES
    order, method = race.best.order, race.best.method + STRETCHES
    tried: set[tuple[int, int]] = set()
    while nodes <= 2 * MOST_NODES and race.open:
        at = memory_along(race.graph, order).index(race.best.peak_bytes)
        better = None
        for share in (0.5, 0.25, 0.75):
            begin = max(0, at - round(nodes * share))
            end = min(len(order), begin + nodes)
            if (begin, end) in tried:
                continue
            tried.add((begin, end))
            better = reordered(race, order, begin, end, states)
            if better is not None or race.stop():
                break
        if better is None:
            nodes *= 2
        else:
            # The same peak may be elsewhere, too: then the order is better, but not yet the race's best.
            order = better
            tried.clear()
            race.offer(order, method)


def reordered(race: Race, order: Order, begin: int, end: int, states: int) -> Order | None:
    """``order`` with [begin, end) in the order of its own least peak, if that is below the peak of ``race``'s best."""
    part, base = stretch(race.graph, order, begin, end)
    found = search_orders(part, race.best.peak_bytes - base, states, race.stop, max(0, race.bound_bytes - base))
    return None if found.order is None else spliced(order, begin, end, found.order)


def spliced(order: Order, begin: int, end: int, inside: Order) -> Order:
    """``order`` with [begin, end) as ``inside``, which is an order of what ``stretch`` made of it."""
    return [*order[:begin], *(order[begin + k - 1] for k in inside if k > 0), *order[end:]]


def stretch(graph: OrderGraph, order: Order, begin: int, end: int) -> tuple[OrderGraph, int]:
    """The nodes order[begin:end] as a graph of their own, after one node that makes what they find; and the bytes
    that are alive all through without being used there.

    Node k of the graph is order[begin + k - 1]. All of them read something of node 0, if only a storage of no bytes:
    none can run before what is there is there. Any order of the part continues what is before it, so its peak
    and the bytes are the peak that the whole order has there.
    """
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
    mark = max((*graph.bytes, *graph.inputs), default=0) + 1
    nodes = [Node("what is there", (), (*found, mark))]
    for n in order[begin:end]:
        node = graph.nodes[n]
        nodes.append(node if found.keys() & {*node.reads} else replace(node, reads=(*node.reads, mark)))
    return OrderGraph(tuple(nodes), {**graph.bytes, mark: 0}, graph.inputs, frozenset(outputs)), base

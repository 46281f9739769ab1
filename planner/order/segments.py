"""Segments that every order runs one after the other, and the tree of them: the divisions of ROAM.

ROAM (Shu et al., 2023, arXiv:2310.19295) calls an operator memory-insensitive if each other one is its ancestor or its
descendant, and orders the segments between two such operators on their own. Here a segment ends wherever each operator
that is left is a descendant of each that has run: beside every memory-insensitive operator, and also where several
operators join into several others. Every order passes these places with the same storages in memory. So the order of
a segment changes nothing in another one, and the least peak of the whole is the largest of the segments' least peaks;
the largest of their bounds is a bound on the whole.

A training step as a whole has few such places: updates and gradients of weights may run at any time after what they
read. ROAM takes updates out, and divides what is large into a tree of subgraphs. The published text leaves open how
that tree pairs forward with backward operators. Pairing decides where tensors lie, not when operators run, so the tree
here is another one. It keeps ROAM's two ideas, to delay what nothing waits for and to divide the rest::

    graph ─┬─ side: what nothing else waits for; first the updates, then all that the longest way through
           │  the graph (the ancestors of the node that has most) does not need
           └─ trunk: the rest, divided into segments, and again in the same way

A trunk has its own order and bound. The bound holds for the graph, too, since an order needs no more without the side
than with it. A side operator runs as soon as it does not raise the peak so far, and at the end otherwise; then each
segment of the trunk is ordered exactly, together with the side operators that run in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from monet.planner.order.ancestry import MOST_NODES, Ancestry
from monet.planner.order.graph import OrderGraph, memory_along
from monet.planner.order.heuristics import Order, delayed, update_nodes
from monet.planner.order.order_search import OrderSearch
from monet.planner.order.pool import Piece, order_piece, order_pieces
from monet.planner.order.stretch import reordered, stretch
from monet.planner.order.whole import FEW_STATES, MANY_STATES, search_whole, start

SEGMENTS = "segments"
TREE = "subgraph tree"


def cuts(graph: OrderGraph) -> list[int]:
    """The ends of segments, as places in ``graph.working`` and in every other order: each node after such a place is a
    descendant of each node before it. The first is 0, the last the number of nodes.

    That is so where each *sink* of the nodes before, which none of them waits for, comes directly before each *source*
    of the nodes after, which waits for none of them: on a way from a sink to a source there can be no other node. Every
    order has the same cuts, so the pairs are counted along one, in linear time.
    """
    place = {n: k for k, n in enumerate(graph.working)}
    before = [[place[m] for m in graph.predecessors[n] if m in place] for n in graph.working]
    after = [[place[m] for m in graph.successors[n] if m in place] for n in graph.working]
    waiting = [len(each) for each in before]
    sinks: set[int] = set()
    sources = {k for k, count in enumerate(waiting) if count == 0}
    pairs, found = 0, [0]  # pairs: of a sink and a source that comes directly after it
    for k in range(len(place) - 1):
        sources.remove(k)
        ended = sinks.intersection(before[k])
        pairs -= len(ended) + sum(m in sources for u in ended for m in after[u])
        sinks -= ended
        sinks.add(k)
        for m in after[k]:
            waiting[m] -= 1
            if waiting[m] == 0:
                sources.add(m)
                pairs += sum(u in sinks for u in before[m])
        if pairs == len(sinks) * len(sources):
            found.append(k + 1)
    return [*found, len(place)]


def climb(search: OrderSearch, workers: int = 1) -> None:
    """Segments with little search, then the tree, then with all the search there is, until ``search`` is not open."""
    if search.open:
        divide(search, FEW_STATES)
    if search.open:
        grow(search, workers)
    if search.open:
        divide(search, MANY_STATES, workers)


def divide(search: OrderSearch, states: int, workers: int = 1) -> None:
    """Orders each segment on its own, where the best order's peak there is above the bound; exactly, unless the
    search of one runs out of ``states`` sets or of time.

    ``workers``: processes for what is hard; the rest is done in this one. The result does not depend on their number.
    """
    places = cuts(search.graph)
    if len(places) == 2:
        search_whole(search, states)
        return
    order = list(search.best.order)
    hard = []
    # The segment of the largest peak first: it raises the bound most, and others may then stay as they are.
    for peak, begin, end in _by_peak(memory_along(search.graph, order), places):
        if peak > search.bound_bytes and end - begin > 1 and search.open:
            part, base = stretch(search.graph, order, begin, end)
            piece = Piece(part, base, begin, tuple(order[begin:end]))
            answer = order_piece(search.part(part), search.bound_bytes - base, min(states, FEW_STATES))
            search.prove(base + answer.bound_bytes)
            order[begin:end] = piece.named(answer.order)
            if not answer.proven:
                hard.append((piece, answer.peak_bytes))
    search.offer(order, SEGMENTS)
    if states > FEW_STATES and search.open:
        hard = [(piece, peak) for piece, peak in hard if piece.base_bytes + peak > search.bound_bytes]
        answers = order_pieces(search, [piece for piece, _ in hard], states, workers)
        for (piece, peak), better in zip(hard, answers, strict=True):
            if better is not None:
                search.prove(piece.base_bytes + better.bound_bytes)
                if better.peak_bytes < peak:
                    order[piece.begin : piece.begin + len(piece.nodes)] = piece.named(better.order)
        search.offer(order, SEGMENTS)


def grow(search: OrderSearch, workers: int = 1) -> None:
    """One level of the tree: the trunk's own order and bound, then the side operators."""
    graph = search.graph
    side = side_nodes(graph)
    if not side:
        return
    names = [n for n in graph.working if n not in side]
    trunk = search.part(without(graph, side))
    start(trunk)
    climb(trunk, workers)
    search.prove(trunk.bound_bytes)
    order = delayed(graph, side, [names[k] for k in trunk.best.order])
    search.offer(order, TREE)
    if search.open:
        _with_side(search, order, [names[trunk.best.order[k]] for k in cuts(trunk.graph)[:-1]])


def side_nodes(graph: OrderGraph) -> frozenset[int]:
    """Working nodes that nothing else waits for: the updates, where there are any; else all nodes but the one with the
    most ancestors and these ancestors, which are no nodes where that one needs all others."""
    updates = update_nodes(graph)
    side: set[int] = set()
    for n in reversed(graph.working):
        if n in updates and all(m in side for m in graph.successors[n] if not graph.nodes[m].view):
            side.add(n)
    if side and len(side) < len(graph.working):
        return frozenset(side)
    if len(graph.working) > MOST_NODES:
        return frozenset()
    ancestry = Ancestry(graph)
    longest = max(map(ancestry.where, ancestry.ancestors), key=lambda row: int(row.sum()), default=np.ones(0, np.bool_))
    return frozenset(n for n, within in zip(graph.working, longest, strict=True) if not within)


def without(graph: OrderGraph, side: frozenset[int]) -> OrderGraph:
    """``graph`` without views and without ``side``, from which the rest needs nothing. In every order of ``graph`` the
    rest needs at least what it needs here, where storages that only ``side`` still reads are gone."""
    nodes = tuple(graph.nodes[n] for n in graph.working if n not in side)
    made = {name for node in nodes for name in node.makes}
    return OrderGraph(nodes, graph.bytes, graph.inputs, graph.outputs & made)


def _with_side(search: OrderSearch, order: Order, firsts: Sequence[int]) -> None:
    """Orders each segment of the trunk with the side operators that run in it, the largest peak first, until one peak
    cannot be lowered. ``firsts``: the first nodes of the segments."""
    at = {n: k for k, n in enumerate(order)}
    places = [0, *(at[n] for n in firsts[1:]), len(order)]
    for peak, begin, end in _by_peak(memory_along(search.graph, order), places):
        if peak < search.best.peak_bytes or not search.open:
            break
        better = reordered(search, order, begin, end, MANY_STATES)
        if better is None:
            break
        order = better
    search.offer(order, TREE)


def _by_peak(along: Sequence[int], places: Sequence[int]) -> list[tuple[int, int, int]]:
    """(peak, begin, end) of the segments, largest peak first."""
    spans = [(max(along[a:b]), a, b) for a, b in pairwise(places) if b > a]
    return sorted(spans, key=lambda span: (-span[0], span[1]))

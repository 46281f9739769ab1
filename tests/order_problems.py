"""Small random graphs to order, and their least peak by trying every order."""

from __future__ import annotations

import random
from collections.abc import Iterator

from hypothesis import strategies as st

from monet.planner.order_graph import Node, OrderGraph


def random_graph(rng: random.Random, count: int) -> OrderGraph:
    """``count`` nodes of every kind: several results, none, views, in-place on inputs and on results, workspaces."""
    inputs = list(range(rng.randint(0, 2)))
    known = list(inputs)
    sizes: dict[int, int] = {}
    nodes = []
    for n in range(count):
        reads = tuple(rng.sample(known, min(len(known), rng.randint(0, 3))))
        kind = rng.random()
        if reads and kind < 0.15:
            nodes.append(Node(f"view{n}", reads[:1], (), view=True))
            continue
        overwrites = reads[:1] if reads and kind < 0.35 else ()
        makes = tuple(range(10 + 10 * n, 10 + 10 * n + rng.choice((1, 1, 1, 2)))) if not overwrites else ()
        for name in makes:
            sizes[name] = rng.randint(0, 9)
        known += makes
        nodes.append(Node(f"n{n}", reads, makes, overwrites, rng.choice((0, 0, 0, rng.randint(1, 8)))))
    outputs = frozenset(name for name in sizes if rng.random() < 0.15)
    return OrderGraph(tuple(nodes), sizes, frozenset(inputs), outputs)


def graphs(most: int = 7) -> st.SearchStrategy[OrderGraph]:
    return st.builds(
        lambda seed, count: random_graph(random.Random(seed), count), st.integers(0, 10**9), st.integers(1, most)
    )


def every_order(graph: OrderGraph) -> Iterator[list[int]]:
    """Orders of the working nodes that respect what the program says, found from the nodes themselves.

    Two nodes keep their program order if one uses what the other makes or overwrites; nothing of ``OrderGraph`` but
    its nodes is used.
    """
    working = [n for n, node in enumerate(graph.nodes) if not node.view]

    def conflict(a: int, b: int) -> bool:
        one, two = graph.nodes[a], graph.nodes[b]
        writes, touches = {*one.makes, *one.overwrites}, {*two.makes, *two.overwrites}
        return bool(writes & {*two.reads, *touches}) or bool({*one.reads} & touches)

    def extend(order: list[int], left: list[int]) -> Iterator[list[int]]:
        if not left:
            yield order
        for n in left:
            if not any(m < n and conflict(m, n) for m in left):
                yield from extend([*order, n], [m for m in left if m != n])

    return extend([], working)


def peak(graph: OrderGraph, order: list[int]) -> int:
    """The most bytes while a node of ``order`` runs, from first and last uses. Views use nothing."""
    order = [n for n in order if not graph.nodes[n].view]
    at = {n: t for t, n in enumerate(order)}
    spans = []
    for n in order:
        for name in graph.nodes[n].makes:
            users = [at[m] for m in order if name in (*graph.nodes[m].reads, *graph.nodes[m].overwrites)]
            last = len(order) - 1 if name in graph.outputs else max([at[n], *users])
            spans.append((at[n], last, graph.bytes[name]))
    return max(
        (
            sum(size for first, last, size in spans if first <= t <= last) + graph.nodes[n].workspace_bytes
            for t, n in enumerate(order)
        ),
        default=0,
    )


def least_peak(graph: OrderGraph) -> int:
    """By trying every order."""
    return min(peak(graph, order) for order in every_order(graph))

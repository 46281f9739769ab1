"""Small random graphs to order, their least peak by trying every order, and a graph as the command reads it."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from monet.planner.order.graph import Node, OrderGraph

options = settings(deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
MOST_ORDERS = 2000
"""Of a graph whose orders are all tried."""


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

    Two nodes keep their captured order if one uses what the other makes or overwrites; nothing of ``OrderGraph`` but
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


def joined_graph(rng: random.Random, segments: int, width: int) -> OrderGraph:
    """``segments`` random graphs of up to ``width`` nodes one after the other, and between two of them one node, or two
    beside each other, that wait for all before and that all after wait for. Storages of earlier segments are read
    by later ones, so some stay in memory all through a segment that does not read them."""
    nodes: list[Node] = []
    sizes: dict[int, int] = {}
    entry: list[int] = []
    old: list[int] = []

    def add(kind: str, reads: set[int], overwrites: tuple[int, ...] = ()) -> int:
        name = len(sizes)
        sizes[name] = rng.randint(0, 9)
        workspace = rng.choice((0, 0, rng.randint(1, 6)))
        nodes.append(Node(f"{kind}{name}", tuple(sorted(reads)), (name,), overwrites, workspace))
        return name

    for _ in range(segments):
        inside: list[int] = []
        for _ in range(rng.randint(1, width)):
            reads = {*entry, *_some(rng, inside, 2), *_some(rng, old, 1)}
            inside.append(add("node", reads, tuple(_some(rng, inside, 1)) if rng.random() < 0.3 else ()))
        entry = [add("cut", set(inside)) for _ in range(rng.choice((1, 1, 2)))]
        old += inside
    return OrderGraph(tuple(nodes), sizes, frozenset(), frozenset(_some(rng, list(sizes), 2)))


def _some(rng: random.Random, names: list[int], most: int) -> list[int]:
    return rng.sample(names, min(len(names), rng.randint(0, most)))


def with_recomputation(rng: random.Random, length: int) -> OrderGraph:
    """A chain of ``length`` layers forward and backward, of which some activations are not kept but made again.

    Of each layer the backward pass makes the gradient of its input and, of some, one of its weights, which is an
    output or updates the weight in place. A layer that runs again makes a storage of its own, from the nearest
    activation that was kept or has been made again; the backward pass reads that copy. Copies may run at any time.
    """
    nodes: list[Node] = []
    sizes: dict[int, int] = {}
    weights = list(range(10_000, 10_000 + length))

    def add(name: str, reads: tuple[int, ...], overwrites: tuple[int, ...] = ()) -> int:
        storage = len(sizes)
        if not overwrites:
            sizes[storage] = rng.randint(1, 9)
        makes = () if overwrites else (storage,)
        nodes.append(Node(name, reads, makes, overwrites, rng.choice((0, 0, rng.randint(1, 6)))))
        return storage

    kept = [0]
    sizes[0] = rng.randint(1, 9)
    nodes.append(Node("batch", (), (0,)))
    for k in range(length):
        kept.append(add(f"forward{k}", (kept[-1], weights[k])))
    there = {k: storage for k, storage in enumerate(kept) if k in (0, length) or rng.random() < 0.5}
    gradient = kept[-1]
    outputs = set()
    for k in reversed(range(length)):
        if k not in there:
            first = max(j for j in there if j < k)
            for j in range(first, k):
                there[j + 1] = add(f"again{j}", (there[j], weights[j]))
        if rng.random() < 0.6:
            made = add(f"weight{k}", (gradient, there[k]))
            if rng.random() < 0.5:
                add(f"update{k}", (made, weights[k]), (weights[k],))
            else:
                outputs.add(made)
        gradient = add(f"backward{k}", (gradient, there[k], weights[k]))
    return OrderGraph(tuple(nodes), sizes, frozenset(weights), frozenset(outputs))


def training_step(rng: random.Random, layers: int) -> OrderGraph:
    """A chain, its backward chain, and beside it the gradient of each weight with two to four nodes that update it."""
    nodes: list[Node] = []
    sizes: dict[int, int] = {}

    def make(name: str, reads: tuple[int, ...]) -> int:
        storage = 100 + len(nodes)
        sizes[storage] = rng.randint(1, 9)
        nodes.append(Node(name, reads, (storage,), (), rng.choice((0, 0, rng.randint(1, 6)))))
        return storage

    states = [(3 * n, 3 * n + 1, 3 * n + 2) for n in range(layers)]
    outputs: list[int] = []
    for n, (weight, _, _) in enumerate(states):
        outputs.append(make(f"layer{n}", (weight, *outputs[-1:])))
    gradient = make("loss", tuple(outputs[-1:]))
    for n, (weight, average, square) in reversed(list(enumerate(states))):
        of_weight = make(f"weight gradient{n}", (gradient, *outputs[n - 1 : n]))
        gradient = make(f"gradient{n}", (gradient, outputs[n], weight))
        nodes.append(Node(f"average{n}", (of_weight,), (), (average,)))
        nodes.append(Node(f"square{n}", (of_weight,), (), (square,)))
        if rng.random() < 0.5:
            root = make(f"root{n}", (square,))
            nodes.append(Node(f"update{n}", (average, root), (), (weight,)))
    return OrderGraph(tuple(nodes), sizes, frozenset(name for state in states for name in state), frozenset())


def least_peak_by_sets(graph: OrderGraph) -> int:
    """The least peak, by going through all sets of nodes that may have run; what is alive is counted anew for each."""
    place = {n: k for k, n in enumerate(graph.working)}
    before = [{place[m] for m in graph.predecessors[n] if m in place} for n in graph.working]

    def alive(done: frozenset[int]) -> int:
        ran = {graph.working[k] for k in done}
        return sum(
            size
            for name, size in graph.bytes.items()
            if graph.producer[name] in ran and (name in graph.outputs or not ran.issuperset(graph.consumers[name]))
        )

    level = {frozenset[int](): 0}
    for _ in graph.working:
        wider: dict[frozenset[int], int] = {}
        for done, top in level.items():
            now = alive(done)
            for k, n in enumerate(graph.working):
                if k not in done and before[k] <= done:
                    needs = sum(graph.bytes[name] for name in graph.nodes[n].makes) + graph.nodes[n].workspace_bytes
                    then = done | {k}
                    wider[then] = min(max(top, now + needs), wider.get(then, 1 << 60))
        level = wider
    return level[frozenset(range(len(graph.working)))]


def few_orders(graph: OrderGraph) -> bool:
    return sum(1 for _ in zip(every_order(graph), range(MOST_ORDERS + 1), strict=False)) <= MOST_ORDERS


def joined() -> st.SearchStrategy[OrderGraph]:
    made = st.builds(
        lambda seed, count: joined_graph(random.Random(seed), count, 3), st.integers(0, 10**9), st.integers(2, 3)
    )
    return made.filter(few_orders)


def recomputed() -> st.SearchStrategy[OrderGraph]:
    made = st.builds(
        lambda seed, n: with_recomputation(random.Random(seed), n), st.integers(0, 10**9), st.integers(2, 4)
    )
    return made.filter(few_orders)


def worst(graph: OrderGraph) -> list[int]:
    """The order of the largest peak."""
    return max(every_order(graph), key=lambda order: peak(graph, order))


def document(graph: OrderGraph) -> str:
    """The JSON that ``monet order`` reads."""
    ops = [
        {"name": n.name, "ins": n.reads, "new": n.makes, "mut": n.overwrites, "workspace": n.workspace_bytes}
        for n in graph.nodes
    ]
    return json.dumps(
        {"ops": ops, "size": graph.bytes, "inputs": sorted(graph.inputs), "outputs": sorted(graph.outputs)}
    )

"""Orders and their certificates, against every order there is on small graphs, and on traced training steps."""

from __future__ import annotations

import itertools
import random
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from order_problems import (
    every_order,
    graphs,
    least_peak,
    least_peak_by_sets,
    options,
    peak,
    random_graph,
    training_step,
)
from repository import INSTANCES

from monet.errors import ConfigError, SolverError
from monet.planner.order import METHODS, Ordered, best_order
from monet.planner.order.document import load_graph
from monet.planner.order.exact_search import search_orders
from monet.planner.order.forced_live import forced_live
from monet.planner.order.graph import InvalidGraph, Node, OrderGraph, memory_along, peak_bytes, with_views
from monet.planner.order.heuristics import ORDERS, captured_order, update_nodes
from monet.planner.order.lookahead import Ahead
from monet.planner.order.order_search import OrderSearch
from monet.planner.order.program import solve_order
from monet.planner.order.stretch import reorder_stretches

GRAPHS = INSTANCES / "order"


def check(graph: OrderGraph, found: Ordered) -> None:
    """A valid order of all nodes whose peak is as said, by other means than the planner's."""
    assert sorted(found.order) == list(range(len(graph.nodes)))
    made = set(graph.inputs)
    for n in found.order:
        assert made.issuperset((*graph.nodes[n].reads, *graph.nodes[n].overwrites))
        made.update(graph.nodes[n].makes)
    assert found.peak_bytes == peak(graph, list(found.order))
    assert found.bound_bytes <= found.peak_bytes


@settings(options, max_examples=300)
@given(graph=graphs())
def test_the_best_order_is_the_best_of_all(graph: OrderGraph) -> None:
    found = best_order(graph)
    check(graph, found)
    assert found.peak_bytes == found.bound_bytes == least_peak(graph)


@settings(options, max_examples=200)
@given(graph=graphs())
def test_the_forced_live_bound_holds_at_every_node_in_every_order(graph: OrderGraph) -> None:
    bounds = dict(zip(graph.working, forced_live(graph), strict=True))
    for order in every_order(graph):
        for n, bytes_ in zip(order, memory_along(graph, order), strict=True):
            assert bounds[n] <= bytes_


@settings(options, max_examples=100)
@given(graph=graphs())
def test_bounds_hold_and_orders_are_orders_where_a_graph_is_too_large_for_its_ancestry(graph: OrderGraph) -> None:
    with pytest.MonkeyPatch.context() as patched:
        for module in ("forced_live", "min_cut", "segments"):
            patched.setattr(f"monet.planner.order.{module}.MOST_NODES", 1)
        bounds = dict(zip(graph.working, forced_live(graph), strict=True))
        for order in every_order(graph):
            assert all(bounds[n] <= b for n, b in zip(order, memory_along(graph, order), strict=True))
        found = best_order(graph)
        check(graph, found)
        assert found.bound_bytes <= least_peak(graph) <= found.peak_bytes


@settings(options, max_examples=200)
@given(graph=graphs(most=10), method=st.sampled_from(list(ORDERS)))
def test_every_linear_order_is_valid(graph: OrderGraph, method: str) -> None:
    order = ORDERS[method].make(graph)
    assert sorted(order) == sorted(graph.working)
    assert peak_bytes(graph, order) == peak(graph, order)
    check(graph, best_order(graph, method=method))


@settings(options, max_examples=100)
@given(graph=graphs(most=8), extra=st.integers(-3, 3))
def test_the_exact_search_answers_exactly(graph: OrderGraph, extra: int) -> None:
    least = least_peak(graph)
    found = search_orders(graph, least + extra, states=10**6)
    if extra > 0:
        assert found.order is not None and found.bound_bytes == least == peak(graph, found.order)
    else:
        assert found.order is None and found.bound_bytes == least + extra


@given(graphs(), st.integers(0, 10**9))
def test_what_lies_ahead_is_needed_in_every_order(graph: OrderGraph, seed: int) -> None:
    """From each prefix of a random order on, that order needs at least what was foretold there."""
    rng = random.Random(seed)
    order = rng.choice(list(itertools.islice(every_order(graph), 50)))
    ahead, place = Ahead(graph), {n: k for k, n in enumerate(graph.working)}
    assert ahead.least(0, 0) == int(forced_live(graph).max(initial=0))
    along = memory_along(graph, order)
    for count in range(len(order) + 1):
        ran = set(order[:count])
        alive = sum(
            1 << bit
            for name, bit in ahead.bit.items()
            if graph.producer[name] in ran and (name in graph.outputs or not ran.issuperset(graph.consumers[name]))
        )
        least = ahead.least(sum(1 << place[n] for n in ran), alive)
        assert least <= max(along[count:], default=0)
        assert count < len(order) or least == 0


def test_a_storage_that_is_made_too_early_shows_at_once() -> None:
    """``early`` is used by the last node only, and whatever makes it at the start keeps it through the large one."""
    nodes = (
        Node("early", (0,), (1,)),
        Node("large", (0,), (2,), workspace_bytes=50),
        Node("last", (1, 2), (3,)),
    )
    graph = OrderGraph(nodes, {1: 10, 2: 1, 3: 1}, frozenset({0}), frozenset())
    ahead = Ahead(graph)
    assert ahead.least(0, 0) == 51
    assert ahead.least(0b001, 1 << ahead.bit[1]) == 61


@given(st.integers(0, 10**9), st.integers(1, 3), st.integers(0, 40))
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_groups_that_are_taken_at_once_lose_nothing(seed: int, layers: int, bound: int) -> None:
    """Weight gradients with what updates the weights; ``bound`` is how far below the least peak the search begins."""
    graph = training_step(random.Random(seed), layers)
    least = least_peak_by_sets(graph)
    found = search_orders(graph, least + 1, 10**6, bound_bytes=max(0, least - bound))
    assert found.order is not None and found.bound_bytes == least
    assert peak(graph, list(found.order)) <= least
    assert search_orders(graph, least, 10**6, bound_bytes=max(0, least - bound)).order is None


@settings(options, max_examples=100)
@given(graph=graphs(most=8), states=st.integers(1, 8))
def test_a_search_that_gives_up_still_bounds(graph: OrderGraph, states: int) -> None:
    least = least_peak(graph)
    found = search_orders(graph, least + 1, states)
    assert found.bound_bytes <= least
    assert found.order is None or peak(graph, found.order) == least


@settings(options, max_examples=40)
@given(graph=graphs(most=6), multi=st.booleans())
def test_the_integer_program_finds_the_least_peak(graph: OrderGraph, multi: bool) -> None:
    least = least_peak(graph)
    worst = max(every_order(graph), key=lambda order: peak(graph, order))
    found = solve_order(graph, worst, multi=multi, deadline=time.monotonic() + 60)
    assert peak(graph, found.order) == least
    assert least - 1e-3 * least - 1 <= found.bound_bytes <= least


def test_a_program_that_is_too_large_is_refused() -> None:
    independent = tuple(Node(f"n{k}", (), (k,)) for k in range(500))
    graph = OrderGraph(independent, {k: 1 for k in range(500)}, frozenset(), frozenset())
    with pytest.raises(SolverError, match=r"500 operators has 250000 places .* use the default order"):
        best_order(graph, method="model-ss")


@settings(options, max_examples=15)
@given(seed=st.integers(0, 10**9))
def test_stretches_only_get_better(seed: int) -> None:
    graph = random_graph(random.Random(seed), 30)
    search = OrderSearch(graph, 60)
    before = search.offer(captured_order(graph), "captured")
    search.prove(int(forced_live(graph).max(initial=0)))
    reorder_stretches(search, 100)
    assert search.bound_bytes <= peak(graph, search.best.order) == search.best.peak_bytes <= before


def test_views_follow_what_they_read() -> None:
    graph = OrderGraph(
        (
            Node("make", (), (1,)),
            Node("view", (1,), (), view=True),
            Node("view of it", (1,), (), view=True),
            Node("other", (), (2,)),
            Node("use", (1, 2), (3,)),
        ),
        {1: 8, 2: 4, 3: 2},
        frozenset(),
        frozenset({3}),
    )
    assert with_views(graph, [3, 0, 4]) == (3, 0, 1, 2, 4)
    assert peak_bytes(graph, [3, 0, 4]) == 14


def test_what_is_overwritten_waits_for_its_readers() -> None:
    graph = OrderGraph(
        (Node("make", (), (1,)), Node("read", (1,), (2,)), Node("add_", (1,), (), (1,)), Node("after", (1,), (3,))),
        {1: 1, 2: 1, 3: 1},
        frozenset(),
        frozenset({2, 3}),
    )
    assert list(every_order(graph)) == [[0, 1, 2, 3]]
    with pytest.raises(InvalidGraph, match=r"add_ runs before read"):
        peak_bytes(graph, [0, 2, 1, 3])
    with pytest.raises(InvalidGraph, match="1 nodes never run, after first"):
        peak_bytes(graph, [0, 1, 2])
    with pytest.raises(InvalidGraph, match="make runs twice"):
        peak_bytes(graph, [0, 0, 1, 2, 3])


def test_updates_are_told_from_gradients() -> None:
    """weight 0, state 1, batch 2: a gradient belongs to the backward pass, what only serves the update to that."""
    graph = OrderGraph(
        (
            Node("forward", (0, 2), (10,)),
            Node("gradient", (10, 2), (11,)),
            Node("decay", (0,), (12,)),
            Node("state", (1, 11), (), (1,)),
            Node("step", (1, 12), (13,)),
            Node("update", (0, 13), (), (0,)),
        ),
        {10: 4, 11: 4, 12: 4, 13: 4},
        frozenset({0, 1, 2}),
        frozenset({10}),
    )
    assert {graph.nodes[n].name for n in update_nodes(graph)} == {"decay", "state", "step", "update"}


@pytest.mark.parametrize(
    ("nodes", "sizes", "outputs", "message"),
    [
        ((Node("a", (7,), ()),), {}, set(), "a uses storage 7 before anything makes it"),
        ((Node("a", (), (1,)), Node("b", (), (1,))), {1: 4}, set(), "b makes storage 1, which is there already"),
        ((Node("a", (), (1,)),), {}, set(), "storage 1, made by a, has no size"),
        ((Node("a", (), (1,)),), {1: 4}, {2}, r"nothing makes the outputs \[2\]"),
    ],
)
def test_what_is_no_graph_is_refused(
    nodes: tuple[Node, ...], sizes: dict[int, int], outputs: set[int], message: str
) -> None:
    with pytest.raises(InvalidGraph, match=message):
        OrderGraph(nodes, sizes, frozenset(), frozenset(outputs))


def test_an_unknown_method_lists_the_known() -> None:
    with pytest.raises(ConfigError, match="choose one of auto, captured, lpmf"):
        best_order(OrderGraph((), {}, frozenset(), frozenset()), method="luck")


def test_nothing_to_order() -> None:
    for method in METHODS:
        found = best_order(OrderGraph((), {}, frozenset(), frozenset()), method=method)
        assert found.order == () and found.peak_bytes == found.bound_bytes == 0


@pytest.mark.parametrize("name", ["resnet50_b1", "resnet50_b32", "gpt2xl_b1"])
def test_training_steps_are_ordered_at_the_bound(name: str) -> None:
    path = GRAPHS / f"{name}.json"
    if not path.is_file():
        pytest.skip(f"{path} is not there; MONET_INSTANCES names the folder that holds order/")
    graph = load_graph(path)
    found = best_order(graph)
    assert found.peak_bytes == found.bound_bytes == peak_bytes(graph, found.order)
    assert found.peak_bytes < peak_bytes(graph, captured_order(graph))

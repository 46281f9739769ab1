"""The min-cut bound: against every order on small graphs, and on sizes that the flow cannot count in bytes."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from order_problems import every_order, graphs, joined, least_peak, options, recomputed

from monet.planner.order.forced_live import forced_live
from monet.planner.order.graph import Node, OrderGraph, memory_along
from monet.planner.order.min_cut import MOST_CAPACITY, min_cut


@settings(options, max_examples=200)
@given(graph=graphs() | joined() | recomputed(), known=st.booleans())
def test_the_min_cut_is_the_least_that_any_order_has_at_a_node(graph: OrderGraph, known: bool) -> None:
    orders = list(every_order(graph))
    least = {n: sys.maxsize for n in graph.working}
    for order in orders:
        for n, bytes_ in zip(order, memory_along(graph, order), strict=True):
            least[n] = min(least[n], bytes_)
    bound = min_cut(graph, orders[:1] if known else [])
    assert bound == max(least.values(), default=0)
    assert int(forced_live(graph).max(initial=0)) <= bound <= least_peak(graph)


SIDE_BRANCH = (
    Node("make", (), (0, 1)),
    Node("halve", (0,), (2,)),
    Node("heavy", (1,), (3,), workspace_bytes=10),
    Node("end", (2, 3), (4,)),
)
"""While ``heavy`` runs either storage 0 or what ``halve`` makes of it is there: neither in every order, one in each."""


def test_the_min_cut_sees_what_is_there_in_one_form_or_another() -> None:
    graph = OrderGraph(SIDE_BRANCH, {0: 8, 1: 1, 2: 4, 3: 1, 4: 1}, frozenset(), frozenset({4}))
    assert forced_live(graph).max() == 12  # heavy: 1, 3 and its workspace; halve: 0 and 2
    assert min_cut(graph, []) == 16 == least_peak(graph)  # heavy: and 2, or 0, which is more


@pytest.mark.parametrize("unit", [1, 4, 1 << 20, 1 << 40])
def test_large_sizes_are_cut_exactly_where_they_have_a_common_unit(unit: int) -> None:
    sizes = {name: size * unit for name, size in {0: 8, 1: 1, 2: 4, 3: 1, 4: 1}.items()}
    graph = OrderGraph(SIDE_BRANCH, sizes, frozenset(), frozenset({4}))
    assert min_cut(graph, []) == max(13 * unit, 6 * unit + 10)


def test_sizes_that_are_too_large_for_the_flow_are_rounded_down() -> None:
    sizes = {0: 8 * MOST_CAPACITY + 1, 1: 1, 2: 4 * MOST_CAPACITY + 1, 3: 1, 4: 1}
    make, halve, light, end = SIDE_BRANCH
    nodes = (make, halve, replace(light, workspace_bytes=100 * MOST_CAPACITY), end)
    heavy = OrderGraph(nodes, sizes, frozenset(), frozenset({4}))
    least = least_peak(heavy)
    assert least - 100 <= min_cut(heavy, []) <= least == 104 * MOST_CAPACITY + 3

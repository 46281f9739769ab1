"""Lifetimes of an order's buffers: what is alive at each tick is what the order needs there."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layout_problems import max_load
from order_problems import graphs, peak

from monet.planner.layout import Lifetime
from monet.planner.layout.order_lifetimes import order_lifetimes
from monet.planner.order.graph import Node, OrderGraph, memory_along, peak_bytes, with_views
from monet.planner.order.heuristics import ORDERS

options = settings(deadline=None, derandomize=True, database=None)


@settings(options, max_examples=200)
@given(graph=graphs(most=10), method=st.sampled_from(list(ORDERS)))
def test_the_load_at_every_tick_is_the_memory_there(graph: OrderGraph, method: str) -> None:
    order = ORDERS[method].make(graph)
    lifetimes = order_lifetimes(graph, order)
    alive = [sum(life.bytes for life in lifetimes if life.begin <= tick < life.end) for tick in range(len(order))]
    assert alive == memory_along(graph, order)
    assert len({life.id for life in lifetimes}) == len(lifetimes)


@settings(options, max_examples=100)
@given(graph=graphs(most=10))
def test_views_in_the_order_change_ticks_but_not_the_peak(graph: OrderGraph) -> None:
    order = with_views(graph, ORDERS["lpmf"].make(graph))
    lifetimes = order_lifetimes(graph, order)
    begin, end, size = (np.array([getattr(x, name) for x in lifetimes], np.int64) for name in ("begin", "end", "bytes"))
    assert max_load(begin, end, size) == peak_bytes(graph, order) == peak(graph, list(order))


@pytest.mark.parametrize("views", [False, True])
def test_by_hand(views: bool) -> None:
    """make 5 → view of 5 → use 5 with 3 bytes of workspace, make 6 (an output) and 7 (without bytes)."""
    nodes = (Node("make", (), (5,)), Node("view", (5,), (), view=True), Node("use", (5,), (6, 7), workspace_bytes=3))
    graph = OrderGraph(nodes, {5: 10, 6: 20, 7: 0}, frozenset({40}), frozenset({6}))
    order, tick = ((0, 1, 2), 2) if views else ((0, 2), 1)
    assert order_lifetimes(graph, order) == (
        Lifetime(5, 10, 0, tick + 1),
        Lifetime(6, 20, tick, tick + 1),
        Lifetime(43, 3, tick, tick + 1),
    )

"""Segments and their tree, stretches, and every method, against every order on small graphs; and interrupts."""

from __future__ import annotations

import multiprocessing
import random
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from order_problems import (
    every_order,
    graphs,
    joined,
    joined_graph,
    least_peak,
    options,
    peak,
    recomputed,
    with_recomputation,
    worst,
)

from monet.planner.order import METHODS, best_order
from monet.planner.order.forced_live import forced_live
from monet.planner.order.graph import OrderGraph, memory_along
from monet.planner.order.heuristics import captured_order
from monet.planner.order.order_search import OrderSearch
from monet.planner.order.pool import Piece, order_pieces
from monet.planner.order.segments import cuts, divide, grow, side_nodes, without
from monet.planner.order.stretch import stretch


@settings(options, max_examples=150)
@given(graph=graphs() | joined() | recomputed())
def test_cuts_are_where_all_orders_have_run_the_same(graph: OrderGraph) -> None:
    orders = list(every_order(graph))
    common = [k for k in range(len(graph.working) + 1) if len({frozenset(order[:k]) for order in orders}) == 1]
    assert sorted(set(cuts(graph))) == common


@settings(options, max_examples=60)
@given(graph=graphs() | recomputed(), ends=st.tuples(st.floats(0, 1), st.floats(0, 1)))
def test_a_stretch_has_the_peaks_that_the_whole_order_has_there(graph: OrderGraph, ends: tuple[float, float]) -> None:
    order = worst(graph)
    begin, end = sorted(round(share * len(order)) for share in ends)
    part, base = stretch(graph, order, begin, end)
    for inside in every_order(part):
        assert inside[0] == 0
        whole = [*order[:begin], *(order[begin + k - 1] for k in inside[1:]), *order[end:]]
        along = memory_along(graph, whole)
        assert [base + bytes_ for bytes_ in memory_along(part, inside)[1:]] == along[begin:end]
        assert base + memory_along(part, inside)[0] <= (along[begin - 1] if begin else 0)


@settings(options, max_examples=60)
@given(graph=joined() | recomputed())
def test_segments_by_themselves_are_exact(graph: OrderGraph) -> None:
    assume(len(cuts(graph)) > 2)
    search = OrderSearch(graph, 60)
    search.prove(int(forced_live(graph).max(initial=0)))
    search.offer(worst(graph), "worst")
    divide(search, 1000)
    assert peak(graph, search.best.order) == search.best.peak_bytes == search.bound_bytes == least_peak(graph)


@settings(options, max_examples=60)
@given(graph=joined() | recomputed() | graphs())
def test_the_rest_without_its_side_needs_no_more(graph: OrderGraph) -> None:
    side = side_nodes(graph)
    rest = without(graph, side)
    names = [n for n in graph.working if n not in side]
    least = least_peak(graph)
    assert least_peak(rest) <= least
    for order in every_order(graph):
        inside = [names.index(n) for n in order if n not in side]
        whole = [bytes_ for n, bytes_ in zip(order, memory_along(graph, order), strict=True) if n not in side]
        assert all(a <= b for a, b in zip(memory_along(rest, inside), whole, strict=True))


@settings(options, max_examples=60)
@given(graph=joined() | recomputed() | graphs())
def test_the_tree_without_search_is_valid(graph: OrderGraph) -> None:
    search = OrderSearch(graph, 60)
    search.offer(worst(graph), "worst")
    grow(search)
    assert search.bound_bytes <= least_peak(graph) <= search.best.peak_bytes == peak(graph, search.best.order)


@settings(options, max_examples=25)
@given(graph=joined() | recomputed())
def test_every_method_is_between_bound_and_peak(graph: OrderGraph) -> None:
    least = least_peak(graph)
    for method in METHODS:
        if method.startswith("model") and len(graph.working) > 10:
            continue
        found = best_order(graph, method=method)
        assert sorted(found.order) == list(range(len(graph.nodes)))
        assert found.bound_bytes <= least <= found.peak_bytes == peak(graph, list(found.order))
        if method in ("auto", "exact", "roam"):
            assert found.proven


def test_processes_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does it that a process may have no children, as those of a cluster under their nannies."""
    graph = joined_graph(random.Random(3), 4, 9)
    order = captured_order(graph)
    pieces = []
    for begin, end in pairwise(cuts(graph)):
        if end - begin > 1:
            part, base = stretch(graph, order, begin, end)
            pieces.append(Piece(part, base, begin, tuple(order[begin:end])))
    assert len(pieces) > 2
    one = order_pieces(OrderSearch(graph, 60), pieces, 1000, 1)
    assert None not in one
    assert one == order_pieces(OrderSearch(graph, 60), pieces, 1000, 2)
    monkeypatch.setitem(multiprocessing.current_process()._config, "daemon", True)  # type: ignore[attr-defined]
    assert one == order_pieces(OrderSearch(graph, 60), pieces, 1000, 2)


def test_search_ends_with_the_time() -> None:
    graph = with_recomputation(random.Random(0), 80)
    found = best_order(graph, time_limit_s=0.0)
    assert found.bound_bytes < found.peak_bytes == peak(graph, list(found.order))
    assert not found.interrupted


def interrupted_at(calls: int) -> Iterator[None]:
    for _ in range(calls - 1):
        yield
    raise KeyboardInterrupt


@pytest.mark.parametrize("method", ["auto", "roam", "exact"])
def test_an_interrupt_keeps_what_was_found(method: str) -> None:
    graph = with_recomputation(random.Random(0), 80)
    for calls in (1, 2, 50):
        left = interrupted_at(calls)
        found = best_order(graph, method=method, progress=lambda *_, left=left: next(left))
        assert found.interrupted and not found.proven
        assert found.peak_bytes == peak(graph, list(found.order))
        assert sorted(found.order) == list(range(len(graph.nodes)))

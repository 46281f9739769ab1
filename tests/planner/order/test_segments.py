"""The min-cut bound, segments and their tree, against every order on small graphs; and the command under Ctrl-C."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from order_problems import every_order, graphs, joined_graph, least_peak, peak, with_recomputation

from monet.cli import program
from monet.planner.order import METHODS, best_order
from monet.planner.order.forced_live import forced_live
from monet.planner.order.graph import Node, OrderGraph, memory_along
from monet.planner.order.heuristics import captured_order
from monet.planner.order.min_cut import MOST_CAPACITY, min_cut
from monet.planner.order.pool import Piece, order_pieces
from monet.planner.order.race import Race
from monet.planner.order.segments import cuts, divide, grow, side_nodes, without
from monet.planner.order.stretch import stretch

options = settings(deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
MOST_ORDERS = 2000


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
    return max(every_order(graph), key=lambda order: peak(graph, order))


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
    race = Race(graph, 60)
    race.prove(int(forced_live(graph).max(initial=0)))
    race.offer(worst(graph), "worst")
    divide(race, 1000)
    assert peak(graph, race.best.order) == race.best.peak_bytes == race.bound_bytes == least_peak(graph)


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
    race = Race(graph, 60)
    race.offer(worst(graph), "worst")
    grow(race)
    assert race.bound_bytes <= least_peak(graph) <= race.best.peak_bytes == peak(graph, race.best.order)


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


def test_processes_change_nothing() -> None:
    graph = joined_graph(random.Random(3), 4, 9)
    order = captured_order(graph)
    pieces = []
    for begin, end in pairwise(cuts(graph)):
        if end - begin > 1:
            part, base = stretch(graph, order, begin, end)
            pieces.append(Piece(part, base, begin, tuple(order[begin:end])))
    assert len(pieces) > 2
    one = order_pieces(Race(graph, 60), pieces, 1000, 1)
    assert None not in one
    assert one == order_pieces(Race(graph, 60), pieces, 1000, 2)


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


def document(graph: OrderGraph) -> str:
    ops = [
        {"name": n.name, "ins": n.reads, "new": n.makes, "mut": n.overwrites, "workspace": n.workspace_bytes}
        for n in graph.nodes
    ]
    return json.dumps(
        {"ops": ops, "size": graph.bytes, "inputs": sorted(graph.inputs), "outputs": sorted(graph.outputs)}
    )


def test_the_command_by_segments(tmp_path: Path) -> None:
    graph = joined_graph(random.Random(5), 3, 3)
    (tmp_path / "graph.json").write_text(document(graph))
    result = CliRunner().invoke(program, ["order", str(tmp_path / "graph.json"), "--order", "roam"])
    assert result.exit_code == 0, result.output
    assert f"({least_peak(graph)} bytes), no order needs less" in result.stdout
    assert result.stderr == ""  # no terminal, no progress


def test_ctrl_c_prints_and_writes_the_best_order(tmp_path: Path) -> None:
    graph = with_recomputation(random.Random(0), 80)
    (tmp_path / "graph.json").write_text(document(graph))
    with (tmp_path / "stderr").open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "monet", "order", "-v", "graph.json", "--time-limit", "600", "--json", "out.json"],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        text = ""
        while "delayed-update: " not in text and process.poll() is None:
            text = (tmp_path / "stderr").read_text()
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        printed = process.communicate(timeout=60)[0]
    text = (tmp_path / "stderr").read_text()
    assert process.returncode == 130, text
    assert text.endswith("monet: interrupted; this is the best order found by then\n") and "Traceback" not in text
    written = json.loads((tmp_path / "out.json").read_text())
    assert written["interrupted"] and written["peak_bytes"] == peak(graph, written["order"])
    assert f"({written['peak_bytes']} bytes)" in printed


def test_ctrl_c_before_there_is_an_order_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(graph: OrderGraph) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("monet.planner.order.whole.forced_live", interrupt)
    (tmp_path / "graph.json").write_text(document(joined_graph(random.Random(5), 2, 3)))
    out = tmp_path / "out.json"
    result = CliRunner().invoke(program, ["order", str(tmp_path / "graph.json"), "--json", str(out)])
    assert result.exit_code == 130 and result.stderr == "monet: interrupted\n"
    assert not out.exists()

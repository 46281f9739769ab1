"""Order: which operator runs when, the peak of that, and a proof of how far it is from the least possible.

    bounds  →  orders in linear time until one meets them  →  segments, each by exact search  →  exact search

The result carries its own certificate: ``peak_bytes`` is what the order needs, counted by ``memory_along``, and no
order needs less than ``bound_bytes``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from monet.errors import ConfigError
from monet.planner.order.forced_live import forced_live
from monet.planner.order.graph import OrderGraph, with_views
from monet.planner.order.heuristics import ORDERS, updates_delayed
from monet.planner.order.order_search import OrderSearch
from monet.planner.order.program import solve_order
from monet.planner.order.segments import climb
from monet.planner.order.whole import MANY_STATES, bound, exact, start
from monet.planner.progress import Progress

PROGRAMS = {"model-ss": False, "model-ms": True}
"""MODeL's, and whether they are multi-streaming."""
METHODS: Mapping[str, str] = {
    "auto": "the best order in linear time, improved by segments and exact search",
    **{name: heuristic.about for name, heuristic in ORDERS.items()},
    "exact": "exact search of the whole graph, for small graphs",
    "roam": "the delayed update, improved by segments and their tree, after ROAM (Shu et al., 2023)",
    "model-ss": "MODeL's integer program (Steiner et al., ICML 2023), one operator at a time; hundreds of operators",
    "model-ms": "the same with any number of operators at a time",
}
"""By the names that ``--order`` takes, with a line for the help."""


@dataclass(frozen=True, slots=True)
class Ordered:
    """``order``: all nodes, views included. ``method``: what made it. Bytes are of what the nodes make and their
    workspaces; what the graph is given comes on top of both. ``interrupted``: by Ctrl-C, before the end."""

    order: tuple[int, ...]
    peak_bytes: int
    bound_bytes: int
    method: str
    interrupted: bool = False

    @property
    def proven(self) -> bool:
        """No order has a smaller peak."""
        return self.peak_bytes == self.bound_bytes


def best_order(
    graph: OrderGraph,
    *,
    method: str = "auto",
    time_limit_s: float = 30.0,
    solver: str = "HIGHS",
    workers: int = 1,
    progress: Progress | None = None,
) -> Ordered:
    """An order of ``graph`` of small peak, with a lower bound on the peak of every order.

    ``method``: one of ``METHODS``. ``auto`` takes the best of the linear-time orders and improves it segment by
    segment; a name of ``ORDERS`` takes that one alone; ``exact`` searches the whole graph; ``roam`` begins with the
    delayed update and goes through its segments and their tree; ``model-ss`` and ``model-ms`` solve MODeL's integer
    program (Steiner et al., ICML 2023), single- and multi-streaming.

    Equal input gives equal orders unless the time limit ends the search. ``workers``: processes for segments that
    need long; a program that asks for more than one must be importable (``if __name__ == "__main__"``).
    ``progress`` is called with bytes: peak, bound, gap and seconds so far.

    Raises:
        ConfigError: there is no such method.
        SolverError: the solver is missing or fails.
        KeyboardInterrupt: on Ctrl-C before there is an order; afterwards the best one so far is returned.
    """
    if method not in METHODS:
        raise ConfigError(f"there is no ordering method {method!r}; choose one of {', '.join(METHODS)}")
    search = OrderSearch(graph, time_limit_s, progress)
    try:
        interrupted = _run(search, method, solver, workers)
    except KeyboardInterrupt:
        if search.leader is None:
            raise
        interrupted = True
    best = search.best
    return Ordered(with_views(graph, best.order), best.peak_bytes, search.bound_bytes, best.method, interrupted)


def _run(search: OrderSearch, method: str, solver: str, workers: int) -> bool:
    """Runs ``method``; True if Ctrl-C ended it, and it has handled that itself."""
    graph = search.graph
    if method in ORDERS:
        search.prove(int(forced_live(graph).max(initial=0)))
        search.offer(ORDERS[method].make(graph), method)
        return False
    if method == "roam":
        search.offer(updates_delayed(graph), "delayed-update")
        bound(search, [search.best.order])
        climb(search, workers)
        return False
    start(search)
    if method in PROGRAMS:
        program = solve_order(
            graph,
            search.best.order,
            multi=PROGRAMS[method],
            deadline=search.deadline,
            solver=solver,
            tick=lambda x, bound: search.tell(),
        )
        search.prove(program.bound_bytes)
        search.offer(program.order, method)
        return program.interrupted
    if method == "exact":
        if search.open:
            exact(search, MANY_STATES)
        return False
    climb(search, workers)
    return False

"""MODeL's integer program for the order (Steiner, Elhoushi, Kahn and Hegarty, ICML 2023), equations 1 to 5.

Slots are steps of time. ``run[v, t]``: node v runs in slot t, and creates what it makes (the paper's C, equations
3 and 4). ``kept[e, t]``: storage e, made before t, is still in memory (P). What a node uses is kept while it runs
(5); what is kept was kept or made in the slot before (1); made and kept exclude each other (2). The peak is a column,
and minimised.

Spans (equations 10 to 12): a node's slots begin when its ancestors can have run, and end early enough for its
descendants. A storage has columns ``kept`` from the slot after the first of its maker to the last of its users, an
output to the end.

Single-streaming runs one node a slot, multi-streaming any number. All nodes of one slot count at once, so no order of
them needs more than the program says.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np

from monet.errors import SolverError
from monet.planner.order.ancestry import Ancestry
from monet.planner.order.graph import OrderGraph, memory_along, peak_bytes
from monet.planner.order.heuristics import Order
from monet.planner.solvers.finder import solver as find_solver
from monet.planner.solvers.model import Limits, Model, Tick
from monet.planner.solvers.rows import Floats, Rows, Sum

GAP = 1e-6
MOST_RUNS = 200_000
"""Columns ``run``. With the columns ``kept``, more take minutes to build, and hours do not solve them."""


@dataclass(frozen=True, slots=True)
class OrderBound:
    """An order of the working nodes, and bytes that no order can stay below. ``interrupted``: by Ctrl-C."""

    order: Order
    bound_bytes: int
    interrupted: bool = False


def solve_order(
    graph: OrderGraph, start: Order, *, multi: bool, deadline: float, solver: str = "HIGHS", tick: Tick | None = None
) -> OrderBound:
    """The program's best order by ``time.monotonic() == deadline``, or ``start`` where it finds no better one.

    The program has nodes × slots columns: this is for graphs of hundreds of nodes.

    Raises:
        SolverError: the program is too large, or the solver is missing or fails.
    """
    program = _OrderProgram(graph, multi, max(1, peak_bytes(graph, start)))
    arrays = program.rows.arrays()
    model = Model(arrays, np.zeros(len(arrays.cost)), np.ones(len(arrays.cost)))
    x = program.point(start)
    limits = Limits(max(0.0, deadline - time.monotonic()), GAP)
    answer = find_solver(solver)(replace(model, start=x if model.violation(x) <= 1e-6 else None), limits, tick)
    bound = 0 if not np.isfinite(answer.bound) else int(np.ceil(answer.bound - 0.5))
    order = start if answer.x is None else program.read(answer.x)
    if peak_bytes(graph, order) > peak_bytes(graph, start):
        order = start
    return OrderBound(order, min(bound, peak_bytes(graph, order)), answer.status == "interrupted")


class _OrderProgram:
    def __init__(self, graph: OrderGraph, multi: bool, most_bytes: int) -> None:
        self.graph = graph
        self.rows = Rows()
        self.slots = len(graph.working)
        self.most_bytes = most_bytes
        self.spans = _spans(graph, multi)
        runs = sum(last - first + 1 for first, last in self.spans.values())
        if runs > MOST_RUNS:
            raise SolverError(
                f"MODeL's program for {self.slots} operators has {runs} places to run them at, more than the "
                f"{MOST_RUNS} that are tried; use the default order, which is proven in another way"
            )
        self.run: dict[tuple[int, int], int] = {}
        self.kept: dict[tuple[int, int], int] = {}
        for n in graph.working:
            first, last = self.spans[n]
            for t in range(first, last + 1):
                self.run[n, t] = self.rows.column()
            self.rows.exactly(Sum().add(self.run[n, t] for t in range(first, last + 1)), 1.0)
        if not multi:
            for t in range(self.slots):
                self.rows.at_most(Sum().add(self._running(t)), 1.0)
        self.peak = self.rows.share()
        self.rows.costs[self.peak] = float(most_bytes)
        for name in graph.producer:
            self._keep(name)
        self._edges()
        for t in range(self.slots):
            self._memory(t)

    def point(self, order: Order) -> Floats:
        """``order`` as a point, one node a slot."""
        x = np.zeros(len(self.rows.costs))
        at = {n: t for t, n in enumerate(order)}
        for n, t in at.items():
            if (n, t) in self.run:
                x[self.run[n, t]] = 1.0
        for (name, t), column in self.kept.items():
            users = self.graph.consumers[name]
            until = self.slots - 1 if name in self.graph.outputs else max((at[m] for m in users), default=-1)
            x[column] = float(at[self.graph.producer[name]] < t <= until)
        x[self.peak] = max(memory_along(self.graph, order), default=0) / self.most_bytes
        return x

    def read(self, x: Floats) -> Order:
        """Nodes by slot, and in the captured order within one."""
        slot = {n: t for (n, t), column in self.run.items() if x[column] > 0.5}
        return sorted(self.graph.working, key=lambda n: (slot[n], n))

    def _running(self, t: int) -> list[int]:
        return [column for n in self.graph.working if (column := self.run.get((n, t))) is not None]

    def _keep(self, name: int) -> None:
        """Equations 1 and 2, on the span of what is kept."""
        maker, users = self.graph.producer[name], self.graph.consumers[name]
        forever = name in self.graph.outputs
        last = self.slots - 1 if forever else max((self.spans[m][1] for m in users), default=-1)
        for t in range(self.spans[maker][0] + 1, last + 1):
            column = self.kept[name, t] = self.rows.column()
            before = (self.kept.get((name, t - 1)), self.run.get((maker, t - 1)))
            self.rows.implies((column,), tuple(one for one in before if one is not None))
            if (maker, t) in self.run:
                self.rows.excludes((column,), (self.run[maker, t],))
        if forever and (name, self.slots - 1) in self.kept:
            end = [self.kept[name, self.slots - 1]]
            if (maker, self.slots - 1) in self.run:
                end.append(self.run[maker, self.slots - 1])
            self.rows.exactly(Sum().add(end), 1.0)

    def _edges(self) -> None:
        """Equation 5, and the same for precedence without a storage: a node that overwrites waits for readers."""
        graph = self.graph
        for name, users in graph.consumers.items():
            for m in users:
                for t in range(self.spans[m][0], self.spans[m][1] + 1):
                    kept = self.kept.get((name, t))
                    self.rows.implies((self.run[m, t],), () if kept is None else (kept,))
        working = set(graph.working)
        for n in graph.working:
            for m in graph.predecessors[n]:
                if m not in working or any(graph.producer.get(name) == m for name in graph.counted[n]):
                    continue
                for t in range(self.spans[n][0], self.spans[n][1] + 1):
                    done = [self.run[m, s] for s in range(self.spans[m][0], min(t, self.spans[m][1] + 1))]
                    self.rows.implies((self.run[n, t],), tuple(done))

    def _memory(self, t: int) -> None:
        """The peak is at least what is in memory in slot t: what its nodes make and need, and what is kept."""
        graph = self.graph
        total = Sum()
        for n in graph.working:
            if (n, t) in self.run:
                made = sum(graph.bytes[name] for name in graph.nodes[n].makes)
                total.add((self.run[n, t],), float(made + graph.nodes[n].workspace_bytes))
        for name in graph.producer:
            if (name, t) in self.kept:
                total.add((self.kept[name, t],), float(graph.bytes[name]))
        total.add((self.peak,), -float(self.most_bytes))
        self.rows.at_most(total, 0.0)


def _spans(graph: OrderGraph, multi: bool) -> dict[int, tuple[int, int]]:
    """First and last slot of each node. With one node a slot, each of its ancestors takes a slot before it; with any
    number, only the longest chain of ancestors does."""
    slots = len(graph.working)
    if not multi:
        ancestry = Ancestry(graph)
        earlier = np.array([ancestry.where(row).sum() for row in ancestry.ancestors], np.int64) - 1
        later = np.array([ancestry.where(row).sum() for row in ancestry.descendants], np.int64) - 1
        return {n: (int(earlier[k]), slots - 1 - int(later[k])) for k, n in enumerate(graph.working)}
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for n in graph.working:
        first[n] = max((first[m] + 1 for m in graph.predecessors[n] if m in first), default=0)
    for n in reversed(graph.working):
        last[n] = min((last[m] - 1 for m in graph.successors[n] if m in last), default=slots - 1)
    return {n: (first[n], last[n]) for n in graph.working}

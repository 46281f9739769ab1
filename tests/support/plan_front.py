"""The Pareto front (peak, seconds) of all plans of a small problem, by exhaustion, and optima of programs."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

import numpy as np
from hypothesis import strategies as st
from planner_problems import SIZES, every_run, every_stage, seconds

from monet.errors import InvalidPlan
from monet.planner.problem import (
    BackwardImplementation,
    BackwardOperator,
    ForwardImplementation,
    ForwardOperator,
    Intermediate,
    Problem,
    Tensor,
)
from monet.planner.program.memory_rows import add_memory_rows
from monet.planner.program.program import Program
from monet.planner.program.windows import windows
from monet.planner.replay import replay
from monet.planner.solution import Runs
from monet.planner.solvers.finder import solver
from monet.planner.solvers.model import Limits, Model


@dataclass(frozen=True, slots=True)
class Point:
    """The fastest plan with at most this peak."""

    peak_bytes: int
    objective_s: float
    runs: Runs


def front(problem: Problem, offered: list[bool], most: int = 5000) -> list[Point] | None:
    """Every plan that none beats in both, smallest first; None if there are more than ``most`` plans to try.

    ``offered``: the stages that may recompute. A pinned tensor counts up to its last possible read, as ``Tensor``
    defines it, whether or not a plan reads it.
    """
    forwards = [every_run(problem, operator) for operator in problem.forward]
    stages = [list(every_stage(problem, t, offered[t])) for t in range(len(problem.backward))]
    if math.prod(map(len, forwards)) * math.prod(map(len, stages)) > most:
        return None
    counted = with_pinned_read(problem)
    found: dict[int, Point] = {}
    for forward, chosen in itertools.product(itertools.product(*forwards), itertools.product(*stages)):
        try:
            cost = replay(counted, Runs(forward, chosen))
        except InvalidPlan:
            continue
        best = found.get(cost.peak_bytes)
        if best is None or cost.objective_s < best.objective_s:
            found[cost.peak_bytes] = Point(cost.peak_bytes, cost.objective_s, Runs(forward, chosen))
    points: list[Point] = []
    for peak in sorted(found):
        if not points or found[peak].objective_s < points[-1].objective_s - 1e-12:
            points.append(found[peak])
    return points


def with_pinned_read(problem: Problem) -> Problem:
    """``problem`` with every pinned tensor read at the last stage that can need it: what pinning means."""
    last = windows(problem, None).last
    pinned = [tensor.id for tensor in problem.tensors if tensor.pinned]

    def read(stage: int, q: BackwardImplementation) -> BackwardImplementation:
        return replace(q, reads=tuple(dict.fromkeys((*q.reads, *(k for k in pinned if last.get(k) == stage)))))

    return replace(
        problem,
        backward=tuple(
            replace(operator, implementations=tuple(read(stage, q) for q in operator.implementations))
            for stage, operator in enumerate(problem.backward)
        ),
    )


def optimum(program: Program) -> float:
    """The least objective of the program with memory rows; infinity if it has no point."""
    add_memory_rows(program)
    arrays = program.rows.arrays()
    count = len(arrays.cost)
    answer = solver("HIGHS")(Model(arrays, np.zeros(count), np.ones(count)), Limits(60.0, 0.0), None)
    assert answer.status in ("optimal", "infeasible")
    return float("inf") if answer.x is None else answer.objective


@st.composite
def tight_problems(draw: st.DrawFn, pinned: bool = False) -> Problem:
    """Few operators, more stages, large workspaces and gradients: recomputation at odd stages pays."""
    count = draw(st.integers(2, 3))
    names = [f"t{i}" for i in range(count)]
    tensors = tuple(Tensor(name, draw(SIZES), pinned and draw(st.integers(0, 3)) == 0) for name in names)
    inputs = [
        tuple(draw(st.lists(st.sampled_from(names[:i]), unique=True, max_size=2))) if i else () for i in range(count)
    ]
    last = {name: i for i, read in enumerate(inputs) for name in read}
    two = draw(st.integers(0, count + 1))
    forward = []
    for i in range(count):
        offered = [ForwardImplementation("plain", seconds(draw), draw(st.integers(0, 12)))]
        victims = [j for j in range(i) if last.get(names[j]) == i and tensors[j].bytes <= tensors[i].bytes]
        if two == i and victims:
            victim = tensors[victims[0]]
            offered.append(
                ForwardImplementation("inplace", seconds(draw), draw(st.integers(0, 3)), victim.id, victim.bytes)
            )
        elif two == i:
            offered.append(ForwardImplementation("lean", seconds(draw), 0))
        forward.append(ForwardOperator(f"op{i}", inputs[i], (names[i],), tuple(offered)))
    made: tuple[Intermediate, ...] = ()
    if draw(st.integers(0, 3)) == 0:
        i = draw(st.integers(0, count - 1))
        made = (Intermediate("v", draw(st.integers(1, 4)), f"op{i}", (names[i],), seconds(draw), draw(SIZES)),)
    readable = [*names, *(v.id for v in made)]
    backward = []
    for t in range(draw(st.integers(2, 5 if count == 2 else 3))):
        reads = draw(st.lists(st.sampled_from(readable), unique=True, max_size=2)) if draw(st.booleans()) else []
        live, new = draw(st.integers(0, 12)), draw(st.integers(0, 8))
        aliased = draw(st.integers(0, min(live, new)))
        run = BackwardImplementation("only", seconds(draw), tuple(reads), draw(st.integers(0, 20)), aliased)
        backward.append(BackwardOperator(f"b{t}", (run,), live, live + new))
    return Problem("tight", tensors, tuple(forward), made, tuple(backward), 1)


def two_orders() -> Problem:
    """``b`` needs a large workspace, so it is best made before ``a``, which comes first in the forward pass.

    Only a stage that reads nothing can do that: stage 2, after the peak of stage 1 and before both are read.
    """

    def made(name: str, workspace: int) -> ForwardOperator:
        return ForwardOperator(f"make {name}", (), (name,), (ForwardImplementation("only", 1e-3, workspace),))

    def stage(t: int, reads: tuple[str, ...], workspace: int) -> BackwardOperator:
        return BackwardOperator(f"b{t}", (BackwardImplementation("only", 1e-3, reads, workspace),), 0, 0)

    backward = (stage(0, (), 0), stage(1, (), 20), stage(2, (), 0), stage(3, ("a", "b"), 0))
    return Problem("two orders", (Tensor("a", 10), Tensor("b", 4)), (made("a", 0), made("b", 8)), (), backward, 0)

"""Plans with a second memory: made by hand, and every one there is of a small problem."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace

from planner_problems import every_run, every_stage

from monet.errors import InvalidPlan
from monet.planner.problem import (
    BackwardImplementation,
    BackwardOperator,
    ForwardImplementation,
    ForwardOperator,
    Problem,
    SecondMemory,
    Tensor,
)
from monet.planner.program.index import Index, index_of
from monet.planner.program.program import Program
from monet.planner.replay import Replay, replay
from monet.planner.solution import Run, Runs, Stage
from monet.planner.solvers.rows import Floats


def second(rate: float, **more: object) -> SecondMemory:
    return SecondMemory(rate, rate, smallest_bytes=1, **more)  # type: ignore[arg-type]


MOST = 40_000
"""Plans that are looked at one by one, at most."""


def least(problem: Problem, budget_bytes: int, most: int = MOST) -> float | None:
    """Seconds of the fastest of every plan; None where they are too many."""
    plans = every_plan(problem, most)
    if plans is None:
        return None
    return min((cost.objective_s for cost in plans if cost.peak_bytes <= budget_bytes), default=math.inf)


def every_plan(problem: Problem, most: int = MOST) -> Iterator[Replay] | None:
    """What each plan costs with every way to move, each tensor at most once; None where they are too many.

    A pinned tensor that may be read later survives in every plan (``Tensor``), so nothing destroys it.
    """
    index = index_of(problem)
    surviving = index.pinned.intersection(index.last)
    destroys = {(o.id, q.name) for o in problem.forward for q in o.implementations if q.overwrites in surviving}
    forwards = [
        [run for run in every_run(problem, operator) if (run.operator, run.implementation) not in destroys]
        for operator in problem.forward
    ]
    stages = [list(every_stage(problem, t, True)) for t in range(len(problem.backward))]
    ways = math.prod(1 + len(list(_ways(index, name))) for name in index.movable)
    if math.prod(map(len, forwards)) * math.prod(map(len, stages)) * ways > most:
        return None
    return _costs(index, forwards, stages)


def _costs(index: Index, forwards: list[list[Run]], stages: list[list[Stage]]) -> Iterator[Replay]:
    for forward in itertools.product(*forwards):
        for chosen in itertools.product(*stages):
            for runs in _with_moves(index, Runs(forward, chosen)):
                with suppress(InvalidPlan):
                    yield replay(index.problem, runs)


def _last_reader(index: Index, name: str) -> int:
    return (index.consumers.get(name) or (index.producer[name],))[-1]


def _with_moves(index: Index, runs: Runs) -> Iterator[Runs]:
    names = sorted(index.movable)
    for count in range(len(names) + 1):
        for chosen in itertools.combinations(names, count):
            for how in itertools.product(*(_ways(index, name) for name in chosen)):
                yield placed(index, runs, dict(zip(chosen, how, strict=True)))


Way = tuple[int, tuple[tuple[int, int], ...]]
"""After which operator a tensor's memory is free; of each return, the stages that issue it and wait for it."""


def _ways(index: Index, name: str) -> Iterator[Way]:
    """To move a tensor, with returns one after the other."""
    stages = range(len(index.problem.backward))
    returns = [(r, u) for u in stages for r in range(u + 1)]
    for released in range(_last_reader(index, name), len(index.problem.forward)):
        for count in range(1, len(stages) + 1):
            for chosen in itertools.combinations(returns, count):
                if all(u < r for (_, u), (r, _) in itertools.pairwise(chosen)):
                    yield released, chosen


def chain(count: int, size: int) -> Problem:
    """Operators one after the other, 10 ms each, whose results each backward operator reads in reverse."""
    names = [f"t{i}" for i in range(count)]
    forward = tuple(
        ForwardOperator(f"op{i}", (names[i - 1],) if i else (), (names[i],), (ForwardImplementation("plain", 0.01),))
        for i in range(count)
    )
    backward = tuple(
        BackwardOperator(f"b{i}", (BackwardImplementation("plain", 0.01, (names[i],)),), 0, 0)
        for i in reversed(range(count))
    )
    return Problem("chain", tuple(Tensor(name, size) for name in names), forward, (), backward, 0)


def moved(problem: Problem, moves: dict[str, tuple[int, int, int]]) -> Runs:
    """Everything kept but for moves: name → (released after, issued at, returned at)."""
    forward = tuple(Run(operator.id, "plain") for operator in problem.forward)
    stages = tuple(Stage((), operator.id, "plain") for operator in problem.backward)
    ways = {name: (released, ((issued, returned),)) for name, (released, issued, returned) in moves.items()}
    return placed(index_of(problem), Runs(forward, stages), ways)


def placed(index: Index, runs: Runs, moves: Mapping[str, Way]) -> Runs:
    """``runs`` with moves; of copies that are issued at once, the first is the one that is waited for first."""
    forward, stages = list(runs.forward), list(runs.stages)
    for name, (released, _) in sorted(moves.items(), key=lambda item: (item[1][0], item[0])):
        made = index.producer[name]
        forward[made] = replace(forward[made], writes=(*forward[made].writes, name))
        forward[released] = replace(forward[released], releases=(*forward[released].releases, name))
    returns = sorted((u, name, r) for name, (_, back) in moves.items() for r, u in back)
    for u, name, r in returns:
        stages[r] = replace(stages[r], issues=(*stages[r].issues, name))
        stages[u] = replace(stages[u], returns=(*stages[u].returns, name))
    return Runs(tuple(forward), tuple(stages))


def without_waiting(program: Program, x: Floats) -> Floats:
    """The same point, as if each copy took no time."""
    assert program.moves is not None
    hurried = x.copy()
    for times in (program.moves.forward, program.moves.stages):
        for position, clock in times.clock.items():
            hurried[clock] -= sum(x[wait] for p, wait in times.wait.items() if p < position)
        hurried[list(times.wait.values())] = 0.0
    return hurried

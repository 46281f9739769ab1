"""What may be kept, read and run again, and when: the index that the 0-1 program is built from.

``last(k)`` is the last backward stage that can read tensor k through any implementation, or through
which a forward operator that reads k can still be run again. A forward operator is only worth
recomputing shortly before the last use of what it makes, so recomputation exists only in the
``window`` stages that end there:

    stage            0   1   2   3   4   5   6   7   8
    k in memory      |- as kept by forward -|- own decision -|
                                             start(k)    last(k)

``window=None`` allows every stage up to ``last(k)``. Of the stages allowed, only those that are likely to be
worth it are offered: what is recomputed at a stage that reads nothing may nearly always as well be recomputed at
the next one that is offered, unless fewer gradients are in memory now than then. Not always: one stage recomputes
in forward order, two stages in any, and the other order can need less memory. So the full program and its
relaxation, whose bounds are about every plan, offer every stage (``every_stage``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from monet.planner.problem import BackwardImplementation, ForwardImplementation, Intermediate, Problem
from monet.planner.program.dominance import undominated_again, undominated_backward, undominated_forward


@dataclass(frozen=True, slots=True)
class Windows:
    """Positions, consumers, last uses and windows of one problem.

    Operators are known by their position in ``problem.forward``, stages by theirs in
    ``problem.backward``. ``last``, ``start``: only of tensors and intermediates that the backward
    pass can need. ``inputs_again[i]``: tensors that every recomputation of i reads.
    ``runs_again[i]``: implementations worth offering for it; empty if it never runs again.
    ``stages_again[i]``: the stages in which it may run again. ``everywhere``: how many stages besides the windows
    are offered to every tensor.
    """

    problem: Problem
    window: int | None
    everywhere: int
    size: dict[str, int]
    producer: dict[str, int]
    pinned: frozenset[str]
    intermediates: tuple[tuple[Intermediate, ...], ...]
    consumers: dict[str, tuple[int, ...]]
    readers_again: dict[str, tuple[int, ...]]
    last: dict[str, int]
    start: dict[str, int]
    stages_again: tuple[frozenset[int], ...]
    runs_forward: tuple[tuple[ForwardImplementation, ...], ...]
    runs_again: tuple[tuple[ForwardImplementation, ...], ...]
    runs_backward: tuple[tuple[BackwardImplementation, ...], ...]
    reads: tuple[frozenset[str], ...]

    def needed(self, name: str, stage: int) -> bool:
        """Whether the backward pass can need ``name`` at ``stage`` or later."""
        return self.last.get(name, -1) >= stage


def windows(
    problem: Problem,
    window: int | None,
    also: Mapping[str, frozenset[int]] | None = None,
    everywhere: frozenset[int] = frozenset(),
    every_stage: bool = False,
) -> Windows:
    """Indexes ``problem`` for a window of so many stages, None for all of them.

    Before their windows, the tensors in ``also`` may be made again at the stages given there, and all
    tensors at the stages in ``everywhere``. ``every_stage``: recomputation is offered at all stages of a window,
    instead of those that are likely to be worth it.
    """
    producer = {name: i for i, operator in enumerate(problem.forward) for name in operator.outputs}
    position = {operator.id: i for i, operator in enumerate(problem.forward)}
    made: list[list[Intermediate]] = [[] for _ in problem.forward]
    for intermediate in problem.intermediates:
        producer[intermediate.id] = position[intermediate.operator]
        made[position[intermediate.operator]].append(intermediate)
    size = {tensor.id: tensor.bytes for tensor in problem.tensors}
    size |= {intermediate.id: intermediate.bytes for intermediate in problem.intermediates}
    pinned = frozenset(tensor.id for tensor in problem.tensors if tensor.pinned)
    consumers: dict[str, list[int]] = {}
    for i, operator in enumerate(problem.forward):
        for name in dict.fromkeys(operator.inputs):
            consumers.setdefault(name, []).append(i)

    runs_backward = tuple(undominated_backward(operator.implementations) for operator in problem.backward)
    reads = tuple(frozenset(name for q in runs for name in q.reads) for runs in runs_backward)
    last = {name: stage for stage, names in enumerate(reads) for name in names}
    runs_again = _last_uses(problem, consumers, made, pinned, last)

    worth = [True] * len(reads) if every_stage else _worth_recomputing(problem, reads)
    allowed = {
        name: frozenset(range(0 if window is None else max(0, end - window + 1), end + 1))
        | frozenset(stage for stage in everywhere | (also or {}).get(name, frozenset()) if stage <= end)
        for name, end in last.items()
    }
    start = {name: min(stages) for name, stages in allowed.items()}
    stages_again = tuple(
        frozenset(
            stage
            for name in (*operator.outputs, *(v.id for v in made[i]))
            if runs_again[i] and name in last and name not in pinned
            for stage in allowed[name]
            if worth[stage] or stage in (also or {}).get(name, frozenset())
        )
        for i, operator in enumerate(problem.forward)
    )
    readers_again: dict[str, list[int]] = {}
    for i, operator in enumerate(problem.forward):
        again = dict.fromkeys(name for q in runs_again[i] for name in (*operator.inputs, *q.recompute_reads))
        for name in again:
            readers_again.setdefault(name, []).append(i)
    return Windows(
        problem=problem,
        window=window,
        everywhere=len(everywhere),
        size=size,
        producer=producer,
        pinned=pinned,
        intermediates=tuple(map(tuple, made)),
        consumers={name: tuple(found) for name, found in consumers.items()},
        readers_again={name: tuple(found) for name, found in readers_again.items()},
        last=last,
        start=start,
        stages_again=stages_again,
        runs_forward=tuple(_forward_runs(operator.implementations, pinned, last) for operator in problem.forward),
        runs_again=tuple(runs_again),
        runs_backward=runs_backward,
        reads=reads,
    )


def _worth_recomputing(problem: Problem, reads: tuple[frozenset[str], ...]) -> list[bool]:
    """Stages that recomputation is offered at; latest first, each compared with the next one that is."""
    worth = [False] * len(reads)
    then_bytes = 0
    for stage in range(len(reads) - 1, -1, -1):
        now_bytes = problem.backward[stage].live_before_bytes
        if reads[stage] or now_bytes < then_bytes:
            worth[stage], then_bytes = True, now_bytes
    return worth


def _last_uses(
    problem: Problem,
    consumers: dict[str, list[int]],
    made: list[list[Intermediate]],
    pinned: frozenset[str],
    last: dict[str, int],
) -> list[tuple[ForwardImplementation, ...]]:
    """Extends ``last`` from direct reads to reads by recomputation, latest operator first.

    Returns, per operator, the implementations that may run again.
    """
    runs: list[tuple[ForwardImplementation, ...]] = [() for _ in problem.forward]
    late: set[str] = set()
    for i in range(len(problem.forward) - 1, -1, -1):
        operator = problem.forward[i]
        makes = [name for name in operator.outputs if name not in pinned] + [v.id for v in made[i]]
        end = max((last.get(name, -1) for name in makes), default=-1)
        if not operator.recomputable or end < 0:
            continue
        # An output read by a later recomputation cannot be destroyed before it: leave such an
        # in-place implementation out rather than order two recomputations by a constraint.
        barred = late | pinned
        runs[i] = undominated_again([q for q in operator.implementations if q.overwrites not in barred])
        late.update(name for q in runs[i] for name in q.recompute_reads)
        for name in {*operator.inputs, *(name for q in runs[i] for name in q.recompute_reads)}:
            last[name] = max(last.get(name, -1), end)
        for v in made[i]:
            # Recomputation does not replace a pinned output: making v reads the one that survived.
            for name in pinned.intersection(v.reads) if v.id in last else ():
                last[name] = max(last.get(name, -1), last[v.id])
    return runs


def _forward_runs(
    implementations: tuple[ForwardImplementation, ...], pinned: frozenset[str], last: dict[str, int]
) -> tuple[ForwardImplementation, ...]:
    """Leaves out what destroys a tensor that survives in every plan, then what is dominated."""
    return undominated_forward([q for q in implementations if not (q.overwrites in pinned and q.overwrites in last)])

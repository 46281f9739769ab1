"""What may be kept, read and run again, and when: the index that the 0-1 program is built from.

``last(k)`` is the last backward stage that can read tensor k through any implementation, or through
which a forward operator that reads k can still be run again. A forward operator is only worth
recomputing shortly before the last use of what it makes, so recomputation exists only in the
``window`` stages that end there:

    stage            0   1   2   3   4   5   6   7   8
    k in memory      |- as kept by forward -|- own decision -|
                                             start(k)    last(k)

``window=None`` allows every stage up to ``last(k)``.

A stage is *idle* if its backward operator reads nothing. Of the stages that are allowed, an idle one is offered only
if fewer gradients are in memory then than at the next stage that is offered. Otherwise what an idle stage recomputes
may nearly always as well be recomputed at that next stage. Not always: one stage recomputes in forward order, two
stages in any, and the other order can need less memory. So the full program and its relaxation, whose bounds are
about every plan, offer every stage (``offer_idle_stages``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from monet.planner.problem import BackwardImplementation, ForwardImplementation, ForwardOperator, Intermediate, Problem
from monet.planner.program.dominance import undominated_again, undominated_backward, undominated_forward

NO_STAGES: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Windows:
    """Positions, consumers, last uses and windows of one problem.

    Operators are known by their position in ``problem.forward``, stages by theirs in ``problem.backward``, tensors
    and intermediates by their ids. A tuple of implementations is sorted by time, the fastest first.

    ``window``: how many stages a window has, None for all of them. ``after_peaks``: the stages that are allowed to
    every tensor besides its window.
    ``size``: bytes of each tensor and intermediate. ``producer``: the operator that makes it. ``pinned``: tensors
    about which there is no decision, as in ``Tensor``.
    ``intermediates[i]``: what operator i can make on demand. ``consumers``: the operators that read a tensor.
    ``last``, ``start``: the last stage that can need a tensor or intermediate, and the first stage that decides on
    it; without an entry where the backward pass never needs it.
    ``stages_again[i]``: the stages in which operator i may run again. ``readers_again``: the operators whose
    recomputation can read a tensor.
    ``runs_forward[i]``: implementations worth offering for operator i in the forward pass. ``runs_again[i]``: the
    same for running it again; empty if it never does.
    ``runs_backward[t]``: implementations worth offering for the backward operator of stage t. ``reads[t]``: what any
    of them reads.
    """

    problem: Problem
    window: int | None
    after_peaks: frozenset[int]
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
    also_at: Mapping[str, frozenset[int]] | None = None,
    after_peaks: frozenset[int] = NO_STAGES,
    offer_idle_stages: bool = False,
) -> Windows:
    """Indexes ``problem`` for a window of so many stages, None for all of them.

    Before their windows, the tensors in ``also_at`` may be made again at the stages given there, and all tensors at
    the stages ``after_peaks`` (``peaks.py``). ``offer_idle_stages``: of the stages that are allowed, every one is
    offered, instead of those that are likely to be worth it. Stages in ``also_at`` are offered in any case.
    """
    also_at = also_at or {}
    makers = _makers(problem)
    runs_backward = tuple(undominated_backward(operator.implementations) for operator in problem.backward)
    reads = tuple(frozenset(name for q in runs for name in q.reads) for runs in runs_backward)
    last, runs_again = _last_uses(makers, reads)
    allowed = _allowed_stages(last, window, also_at, after_peaks)
    offered = frozenset(range(len(reads))) if offer_idle_stages else _worth_offering(problem, reads)
    size = {tensor.id: tensor.bytes for tensor in problem.tensors}
    size |= {v.id: v.bytes for v in problem.intermediates}
    surviving = makers.pinned.intersection(last)
    return Windows(
        problem=problem,
        window=window,
        after_peaks=after_peaks,
        size=size,
        producer=makers.producer,
        pinned=makers.pinned,
        intermediates=makers.intermediates,
        consumers=_readers(operator.inputs for operator in problem.forward),
        readers_again=_readers(map(_recompute_reads, problem.forward, runs_again)),
        last=last,
        start={name: min(stages) for name, stages in allowed.items()},
        stages_again=tuple(
            _stages_again(makers.remade(i), allowed, offered, also_at) if runs else NO_STAGES
            for i, runs in enumerate(runs_again)
        ),
        runs_forward=tuple(_forward_runs(operator, surviving) for operator in problem.forward),
        runs_again=runs_again,
        runs_backward=runs_backward,
        reads=reads,
    )


@dataclass(frozen=True, slots=True)
class _Makers:
    """Who makes what; fields as in ``Windows``."""

    problem: Problem
    producer: dict[str, int]
    pinned: frozenset[str]
    intermediates: tuple[tuple[Intermediate, ...], ...]

    def remade(self, i: int) -> list[str]:
        """What running operator i again can make; a pinned output is the one that survived."""
        outputs = [name for name in self.problem.forward[i].outputs if name not in self.pinned]
        return outputs + [v.id for v in self.intermediates[i]]


def _makers(problem: Problem) -> _Makers:
    producer = {name: i for i, operator in enumerate(problem.forward) for name in operator.outputs}
    position = {operator.id: i for i, operator in enumerate(problem.forward)}
    intermediates: list[list[Intermediate]] = [[] for _ in problem.forward]
    for v in problem.intermediates:
        producer[v.id] = position[v.operator]
        intermediates[position[v.operator]].append(v)
    pinned = frozenset(tensor.id for tensor in problem.tensors if tensor.pinned)
    return _Makers(problem, producer, pinned, tuple(map(tuple, intermediates)))


def _last_uses(
    makers: _Makers, reads: tuple[frozenset[str], ...]
) -> tuple[dict[str, int], tuple[tuple[ForwardImplementation, ...], ...]]:
    """``last`` and ``runs_again``: direct reads first, then reads by recomputation, latest operator first."""
    forward = makers.problem.forward
    last = {name: stage for stage, names in enumerate(reads) for name in names}
    runs_again: list[tuple[ForwardImplementation, ...]] = [() for _ in forward]
    read_later: set[str] = set()
    for i in range(len(forward) - 1, -1, -1):
        end = max((last.get(name, -1) for name in makers.remade(i)), default=-1)
        if not forward[i].recomputable or end < 0:
            continue
        # An output read by a later recomputation cannot be destroyed before it: leave such an
        # in-place implementation out rather than order two recomputations by a constraint.
        barred = read_later | makers.pinned
        runs_again[i] = undominated_again([q for q in forward[i].implementations if q.overwrites not in barred])
        read_later.update(name for q in runs_again[i] for name in q.recompute_reads)
        for name in {*forward[i].inputs, *(name for q in runs_again[i] for name in q.recompute_reads)}:
            last[name] = max(last.get(name, -1), end)
        for v in makers.intermediates[i]:
            # Recomputation does not replace a pinned output: making v reads the one that survived.
            for name in makers.pinned.intersection(v.reads) if v.id in last else ():
                last[name] = max(last.get(name, -1), last[v.id])
    return last, tuple(runs_again)


def _allowed_stages(
    last: Mapping[str, int],
    window: int | None,
    also_at: Mapping[str, frozenset[int]],
    after_peaks: frozenset[int],
) -> dict[str, frozenset[int]]:
    """The stages that decide on each tensor or intermediate: its window, and those that are given besides."""
    allowed = {}
    for name, end in last.items():
        begin = 0 if window is None else max(0, end - window + 1)
        besides = after_peaks | also_at.get(name, NO_STAGES)
        allowed[name] = frozenset(range(begin, end + 1)) | frozenset(stage for stage in besides if stage <= end)
    return allowed


def _worth_offering(problem: Problem, reads: tuple[frozenset[str], ...]) -> frozenset[int]:
    """Stages that read something, and idle ones with fewer gradients than the next one that is offered."""
    worth: set[int] = set()
    next_bytes = 0
    for stage in range(len(reads) - 1, -1, -1):
        gradient_bytes = problem.backward[stage].live_before_bytes
        if reads[stage] or gradient_bytes < next_bytes:
            worth.add(stage)
            next_bytes = gradient_bytes
    return frozenset(worth)


def _stages_again(
    remade: list[str],
    allowed: Mapping[str, frozenset[int]],
    offered: frozenset[int],
    also_at: Mapping[str, frozenset[int]],
) -> frozenset[int]:
    """The stages at which an operator that makes ``remade`` may run again."""
    return frozenset(
        stage
        for name in remade
        for stage in allowed.get(name, NO_STAGES)
        if stage in offered or stage in also_at.get(name, NO_STAGES)
    )


def _recompute_reads(operator: ForwardOperator, runs: Iterable[ForwardImplementation]) -> list[str]:
    return [name for q in runs for name in (*operator.inputs, *q.recompute_reads)]


def _readers(reads: Iterable[Iterable[str]]) -> dict[str, tuple[int, ...]]:
    """The operators that read each tensor, from what each operator reads."""
    readers: dict[str, list[int]] = {}
    for i, names in enumerate(reads):
        for name in dict.fromkeys(names):
            readers.setdefault(name, []).append(i)
    return {name: tuple(operators) for name, operators in readers.items()}


def _forward_runs(operator: ForwardOperator, surviving: frozenset[str]) -> tuple[ForwardImplementation, ...]:
    """Leaves out what destroys a tensor that survives in every plan, then what is dominated."""
    return undominated_forward([q for q in operator.implementations if q.overwrites not in surviving])

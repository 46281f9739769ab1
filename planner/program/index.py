"""Who makes, reads and may run again what: the part of the program's index that no window changes.

``last(k)`` is the last backward stage that can read tensor k through any implementation, or through
which a forward operator that reads k can still be run again. Everything here is linear in the size of the network.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from monet.planner.problem import (
    BackwardImplementation,
    ForwardImplementation,
    ForwardOperator,
    Intermediate,
    Problem,
)
from monet.planner.program.dominance import undominated_again, undominated_backward, undominated_forward


@dataclass(frozen=True, slots=True)
class Makers:
    """Who makes what; fields as in ``Index``."""

    problem: Problem
    producer: dict[str, int]
    pinned: frozenset[str]
    intermediates: tuple[tuple[Intermediate, ...], ...]

    def remade(self, i: int) -> list[str]:
        """What running operator i again can make; a pinned output is the one that survived."""
        outputs = [name for name in self.problem.forward[i].outputs if name not in self.pinned]
        return outputs + [v.id for v in self.intermediates[i]]


@dataclass(frozen=True, slots=True)
class Index(Makers):
    """Positions, consumers and last uses of one problem.

    Operators are known by their position in ``problem.forward``, stages by theirs in ``problem.backward``, tensors
    and intermediates by their ids. A tuple of implementations is sorted by time, the fastest first.

    ``size``: bytes of each tensor and intermediate. ``producer``: the operator that makes it. ``pinned``: tensors
    about which there is no decision, as in ``Tensor``. ``movable``: what may be moved to the second memory; of
    it nothing is pinned.
    ``intermediates[i]``: what operator i can make on demand. ``consumers``: the operators that read a tensor.
    ``readers_again``: the operators whose recomputation can read a tensor.
    ``last``: the last stage that can need a tensor or intermediate; without an entry where the backward pass never
    needs it.
    ``runs_forward[i]``: implementations worth offering for operator i in the forward pass. ``runs_again[i]``: the
    same for running it again; empty if it never does.
    ``runs_backward[t]``: implementations worth offering for the backward operator of stage t. ``reads[t]``: what any
    of them reads. ``uses``: the stages whose backward operator may read a tensor, ascending.
    """

    size: dict[str, int]
    consumers: dict[str, tuple[int, ...]]
    readers_again: dict[str, tuple[int, ...]]
    last: dict[str, int]
    runs_forward: tuple[tuple[ForwardImplementation, ...], ...]
    runs_again: tuple[tuple[ForwardImplementation, ...], ...]
    runs_backward: tuple[tuple[BackwardImplementation, ...], ...]
    reads: tuple[frozenset[str], ...]
    uses: dict[str, tuple[int, ...]]
    movable: frozenset[str]

    def needed(self, name: str, stage: int) -> bool:
        """Whether the backward pass can need ``name`` at ``stage`` or later."""
        return self.last.get(name, -1) >= stage

    def shared_reads(self, i: int) -> frozenset[str]:
        """What every implementation of operator i reads, and does not make, when it runs again."""
        runs = self.runs_again[i]
        return frozenset.intersection(*(frozenset(q.recompute_reads) for q in runs)) if runs else frozenset()


def index_of(problem: Problem) -> Index:
    """Indexes ``problem``."""
    large = _large_enough(problem)
    makers = _makers(problem, large)
    runs_backward = tuple(undominated_backward(operator.implementations) for operator in problem.backward)
    reads = tuple(frozenset(name for q in runs for name in q.reads) for runs in runs_backward)
    last, runs_again = _last_uses(makers, reads)
    size = {tensor.id: tensor.bytes for tensor in problem.tensors}
    size |= {v.id: v.bytes for v in problem.intermediates}
    surviving = makers.pinned.intersection(last)
    return Index(
        problem=problem,
        size=size,
        producer=makers.producer,
        pinned=makers.pinned,
        intermediates=makers.intermediates,
        consumers=_readers(operator.inputs for operator in problem.forward),
        readers_again=_readers(map(_recompute_reads, problem.forward, runs_again)),
        last=last,
        runs_forward=tuple(_forward_runs(operator, surviving) for operator in problem.forward),
        runs_again=runs_again,
        runs_backward=runs_backward,
        reads=reads,
        uses=_readers(reads),
        movable=(large & last.keys()) - makers.pinned,
    )


MOST_COPY = 2
"""Times as long as the forward pass: what takes longer to write and read back is not moved."""


def _large_enough(problem: Problem) -> frozenset[str]:
    """Tensors that are worth a copy: large, and written and read back in no more than ``MOST_COPY`` forward passes.
    What makes them may not be able to run again; where it can, a pinned one is not among them. Intermediates are small,
    and made on demand."""
    second = problem.second
    if second is None:
        return frozenset()
    forward_s = sum(min(q.time_s for q in operator.implementations) for operator in problem.forward)
    recomputable = {name for operator in problem.forward if operator.recomputable for name in operator.outputs}
    sizes = {tensor.id: tensor.bytes for tensor in problem.tensors if not (tensor.pinned and tensor.id in recomputable)}
    return frozenset(
        name
        for name, size in sizes.items()
        if size >= second.smallest_bytes
        and (second.limit_bytes is None or size <= second.limit_bytes)
        and second.write_s(size) + second.read_s(size) <= MOST_COPY * forward_s
    )


def _makers(problem: Problem, large: frozenset[str]) -> Makers:
    producer = {name: i for i, operator in enumerate(problem.forward) for name in operator.outputs}
    position = {operator.id: i for i, operator in enumerate(problem.forward)}
    intermediates: list[list[Intermediate]] = [[] for _ in problem.forward]
    for v in problem.intermediates:
        producer[v.id] = position[v.operator]
        intermediates[position[v.operator]].append(v)
    # What is large and cannot be made again may be moved, so there is a decision.
    pinned = frozenset(tensor.id for tensor in problem.tensors if tensor.pinned) - large
    return Makers(problem, producer, pinned, tuple(map(tuple, intermediates)))


def _last_uses(
    makers: Makers, reads: tuple[frozenset[str], ...]
) -> tuple[dict[str, int], tuple[tuple[ForwardImplementation, ...], ...]]:
    """``last`` and ``runs_again``: direct reads first, then reads by recomputation, latest operator first."""
    forward, pinned = makers.problem.forward, makers.pinned
    last = {name: stage for stage, names in enumerate(reads) for name in sorted(names)}
    runs_again: list[tuple[ForwardImplementation, ...]] = [() for _ in forward]
    read_later: set[str] = set()
    for i in range(len(forward) - 1, -1, -1):
        end = max((last.get(name, -1) for name in makers.remade(i)), default=-1)
        if not forward[i].recomputable or end < 0:
            continue
        # An output read by a later recomputation cannot be destroyed before it: leave such an
        # in-place implementation out rather than order two recomputations by a constraint.
        runs_again[i] = undominated_again(
            [q for q in forward[i].implementations if q.overwrites not in read_later and q.overwrites not in pinned]
        )
        read_later.update(name for q in runs_again[i] for name in q.recompute_reads)
        for name in (*forward[i].inputs, *(name for q in runs_again[i] for name in q.recompute_reads)):
            last[name] = max(last.get(name, -1), end)
        for v in makers.intermediates[i]:
            # Recomputation does not replace a pinned output: making v reads the one that survived.
            for name in v.reads if v.id in last else ():
                if name in pinned:
                    last[name] = max(last.get(name, -1), last[v.id])
    return last, tuple(runs_again)


def by_last(last: Mapping[str, int]) -> dict[int, list[str]]:
    """Position → the names whose last one it is. Who goes along the positions looks at these alone: at whatever is
    there, step by step, takes the square of the number of operators."""
    ends: dict[int, list[str]] = {}
    for name, position in last.items():
        ends.setdefault(position, []).append(name)
    return ends


def _recompute_reads(operator: ForwardOperator, runs: Iterable[ForwardImplementation]) -> list[str]:
    return [name for q in runs for name in (*operator.inputs, *q.recompute_reads)]


def _readers(reads: Iterable[Iterable[str]]) -> dict[str, tuple[int, ...]]:
    """The operators, or stages, that read each tensor, from what each of them reads."""
    readers: dict[str, list[int]] = {}
    for i, names in enumerate(reads):
        for name in dict.fromkeys(names):
            readers.setdefault(name, []).append(i)
    return {name: tuple(operators) for name, operators in readers.items()}


def _forward_runs(operator: ForwardOperator, surviving: frozenset[str]) -> tuple[ForwardImplementation, ...]:
    """Leaves out what destroys a tensor that survives in every plan, then what is dominated."""
    return undominated_forward([q for q in operator.implementations if q.overwrites not in surviving])

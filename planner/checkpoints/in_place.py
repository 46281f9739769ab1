"""Implementations that overwrite what nothing reads any more.

Whether a run may destroy its input depends on all that runs after it, so it is chosen once the runs are known.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace

from monet.planner.problem import ForwardImplementation, recompute_cost
from monet.planner.program.index import Index
from monet.planner.solution import Run, Runs, Stage


def in_place(index: Index, runs: Runs, *, larger: bool = True) -> Runs:
    """``runs`` with each operator's fastest implementation among those that destroy nothing that is read later, and,
    unless ``larger``, need no more memory than the one it has.

    An operator that runs again keeps to implementations that read the same, besides its inputs, as the one it has.
    Every intermediate that ``runs`` makes must be read by something (``without_useless``).
    """
    problem = index.problem
    position = {operator.id: i for i, operator in enumerate(problem.forward)}
    reads = {(operator.id, q.name): q.reads for operator in problem.backward for q in operator.implementations}
    wanted: set[str] = set()
    stages: list[Stage] = []
    for stage in reversed(runs.stages):
        wanted |= set(reads[stage.backward, stage.implementation])
        recompute: list[Run] = []
        for run in reversed(stage.recompute):
            i = position[run.operator]
            had = next(q for q in problem.forward[i].implementations if q.name == run.implementation)
            same = [q for q in index.runs_again[i] if q.recompute_reads == had.recompute_reads]
            allowed = [q for q in same if larger or _bytes(q, again=True) <= _bytes(had, again=True)]
            q = _best(index, i, run, allowed, had, wanted, again=True)
            made = {n for n in problem.forward[i].outputs if n not in index.pinned and n not in q.recompute_reads}
            _before(index, i, run, wanted, made)
            wanted |= set(q.recompute_reads)
            recompute.append(Run(run.operator, q.name, run.intermediates))
        wanted.difference_update(stage.returns)
        stages.append(replace(stage, recompute=tuple(reversed(recompute))))
    forward: list[Run] = []
    for run in reversed(runs.forward):
        i = position[run.operator]
        had = next(q for q in problem.forward[i].implementations if q.name == run.implementation)
        wanted.update(run.releases)  # whose copies may be under way
        allowed = [q for q in index.runs_forward[i] if larger or _bytes(q, again=False) <= _bytes(had, again=False)]
        q = _best(index, i, run, allowed, had, wanted, again=False)
        _before(index, i, run, wanted, set(problem.forward[i].outputs))
        forward.append(replace(run, implementation=q.name))
    return Runs(tuple(reversed(forward)), tuple(reversed(stages)))


def _best(
    index: Index,
    i: int,
    run: Run,
    allowed: Sequence[ForwardImplementation],
    had: ForwardImplementation,
    wanted: Set[str],
    *,
    again: bool,
) -> ForwardImplementation:
    """The fastest that destroys nothing that is wanted after the run; of equals, the one that needs least memory.

    ``had`` where there is none: it was no plan before either, and replaying it will say so.
    """
    spoilt = wanted | {name for v in index.intermediates[i] if v.id in run.intermediates for name in v.reads}

    def cost(q: ForwardImplementation) -> tuple[float, int]:
        return (recompute_cost(q)[0] if again else q.time_s), _bytes(q, again=again)

    usable = (q for q in (*allowed, had) if q.overwrites is None or q.overwrites not in spoilt)
    return min(usable, key=cost, default=had)


def _bytes(q: ForwardImplementation, *, again: bool) -> int:
    """What ``q`` needs beside its inputs and outputs, less the output that takes an input's place."""
    return (recompute_cost(q)[1] if again else q.workspace_bytes) - q.aliased_bytes


def _before(index: Index, i: int, run: Run, wanted: set[str], made: Set[str]) -> None:
    """``wanted`` as of before the run, which makes ``made`` and its intermediates."""
    outputs = set(index.problem.forward[i].outputs)
    wanted -= {*made, *run.intermediates}
    wanted |= {n for v in index.intermediates[i] if v.id in run.intermediates for n in v.reads if n not in outputs}
    wanted |= set(index.problem.forward[i].inputs)

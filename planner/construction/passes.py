"""Walk through a training step with a set of tensors in memory, dropping and recomputing on the way.

Whenever the next run does not fit, what is cheapest to do without, per byte, is dropped; whenever a
read is missing, what it needs is run again. Dynamic Tensor Rematerialization (Kirisame et al., ICLR
2021) evicts in the same way, but while training and blind to the future; here the next use of every
tensor is known. A *thrifty* walk drops everything at once and takes the leanest implementations.

Every choice is tried and undone, and the walk goes on from the best one.

The walk counts a tensor until it is dropped, replay until its last read: replay never finds more.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Set
from dataclasses import dataclass
from functools import partial

from monet.planner.construction.reruns import NEVER, reads_again, reruns
from monet.planner.construction.trials import Moment, Trial, best_trial, make_intermediate, making_reads, run_trial
from monet.planner.construction.walk import Walk
from monet.planner.problem import BackwardImplementation, ForwardImplementation, Intermediate, recompute_cost
from monet.planner.program.index import Index, by_last
from monet.planner.solution import Run, Stage

MOST_AGAIN = 50_000
"""Recomputations in a plan. One that drops everything makes them by the square of the number of operators; more than
this take minutes to order, and a step many times eager's."""


def forward_pass(walk: Walk, kept: Container[str] | None = None) -> list[Run] | None:
    """Runs everything once; what the backward pass may want stays until room is needed. None where it does not fit.

    ``kept``: of what the backward pass may want, what stays at all; None is all of it.
    """
    runs: list[Run] = []
    index = walk.index
    staying = index.last if kept is None else kept
    final = {name: (index.consumers.get(name) or (i,))[-1] for name, i in index.producer.items()}
    ends = by_last(final)
    read_later: set[str] = set()
    for i, operator in enumerate(index.problem.forward):
        made = [v for v in index.intermediates[i] if v.id in walk.chosen or _must_be_made(index, v.id)]
        needed = read_later & walk.present
        best = best_trial(partial(_forward_trials, walk, i, needed, made))
        if best is None:
            return None
        walk.adopt(best.changes)
        for v in made:
            if make_intermediate(walk, v, index.problem.fixed_bytes, needed | making_reads(made), 0) >= NEVER:
                return None
        read_later.update(name for name in operator.outputs if final[name] > i)
        read_later.difference_update(ends.get(i, ()))
        over = {*ends.get(i, ()), *operator.outputs, *(v.id for v in made)}
        walk.drop([n for n in over if final.get(n, -1) <= i and n not in staying])
        runs.append(Run(operator.id, best.choice.name, tuple(v.id for v in made)))
    return runs


def _forward_trials(
    walk: Walk, i: int, needed: Set[str], made: list[Intermediate], thrifty: bool
) -> Iterator[Trial[ForwardImplementation]]:
    """Operator i by each implementation that fits and leaves what making ``made`` reads."""
    index, operator = walk.index, walk.index.problem.forward[i]
    base_bytes = index.problem.fixed_bytes + sum(index.size[n] for n in operator.outputs)
    moment = Moment(0, base_bytes, needed, operator.outputs)
    read_by_making = making_reads(made)
    for q in index.runs_forward[i]:
        if q.overwrites in read_by_making:
            continue
        trial = run_trial(walk, moment, q, q.time_s, q.workspace_bytes, thrifty=thrifty)
        if trial is not None:
            yield trial


def _must_be_made(index: Index, name: str) -> bool:
    """Whether some stage cannot do without an intermediate that can only be made in the forward pass."""
    if name not in index.last or index.runs_again[index.producer[name]]:
        return False
    return any(all(name in q.reads for q in runs) for runs in index.runs_backward if runs)


def backward_pass(walk: Walk) -> list[Stage] | None:
    """Runs every stage by the implementation that takes least time, with what it makes the walk recompute or drop. None
    where it does not fit, or more than ``MOST_AGAIN`` operators run again."""
    stages: list[Stage] = []
    runs_again, index = 0, walk.index
    last, ends = index.last, by_last(index.last)
    outputs = {operator.id: operator.outputs for operator in index.problem.forward}
    for stage in range(len(walk.index.problem.backward)):
        best = best_trial(partial(_stage_trials, walk, stage))
        if best is None:
            return None
        walk.adopt(best.changes)
        over = {n for run in best.choice.recompute for n in (*outputs[run.operator], *run.intermediates)}
        if stage == 0:  # the forward pass leaves what was to stay, be it never read
            over |= walk.present
        walk.drop([n for n in over.union(ends.get(stage, ())) if last.get(n, -1) <= stage])
        runs_again += len(best.choice.recompute)
        if runs_again > MOST_AGAIN:
            return None
        stages.append(best.choice)
    return stages


def _stage_trials(walk: Walk, stage: int, thrifty: bool) -> Iterator[Trial[Stage]]:
    """Each backward implementation of ``stage``, with what must run again before it; those that do not fit left out."""
    for q in walk.index.runs_backward[stage]:
        if walk.is_late():
            return
        before = walk.begin(thrifty)
        seconds, runs, returns = _run_stage(walk, stage, q)
        changes = walk.undo(before)
        if seconds >= NEVER:
            continue
        done = Stage(tuple(runs), walk.index.problem.backward[stage].id, q.name, returns, returns)
        yield Trial(done, changes, seconds)


def _run_stage(walk: Walk, stage: int, q: BackwardImplementation) -> tuple[float, list[Run], tuple[str, ...]]:
    """Reads back or recomputes what q misses, then q itself; seconds of all that and of what was dropped for it,
    ``NEVER`` where it does not fit, what was recomputed, and what was read back."""
    problem = walk.index.problem
    seconds, runs = q.time_s, list[Run]()
    again = _reruns(walk, stage, q)
    if again is None:
        return NEVER, [], ()
    returns = tuple(sorted(((again[0].reads if again else set(q.reads)) & walk.away) - walk.present))
    walk.take(returns)
    for rerun in again:
        rerun_s, run = _run_again(walk, rerun)
        seconds += rerun_s
        if run is None or seconds >= NEVER:
            return NEVER, [], ()
        runs.append(run)
    extra_bytes = problem.fixed_bytes + problem.backward[stage].live_during_bytes
    seconds += walk.make_room(extra_bytes + q.workspace_bytes - q.aliased_bytes, set(q.reads), stage + 1)
    return seconds, runs, returns


@dataclass(slots=True)
class _Rerun:
    """Operator ``operator`` runs again at ``stage``, then makes the intermediates ``made``.

    ``read_later``: what the reruns after it and the stage's backward operator read. ``reads``: the same and what it
    reads itself. ``base_bytes``: what is fixed, and gradients.
    """

    operator: int
    stage: int
    made: list[Intermediate]
    reads: Set[str]
    read_later: Set[str]
    base_bytes: int


def _reruns(walk: Walk, stage: int, q: BackwardImplementation) -> list[_Rerun] | None:
    """What must run again before ``q``, in forward order; None where something that it needs cannot be made again at
    this stage."""
    index, problem = walk.index, walk.index.problem
    operators = reruns(index, walk.available, q.reads, stage)
    if operators is None:
        return None
    base_bytes = problem.fixed_bytes + problem.backward[stage].live_before_bytes
    latest_first: list[_Rerun] = []
    read_later = set(q.reads)
    for i, wanted in reversed(operators.items()):
        made = [v for v in index.intermediates[i] if v.id in wanted]
        reads = read_later | reads_again(index, i, wanted)
        latest_first.append(_Rerun(i, stage, made, reads, read_later, base_bytes))
        read_later = reads
    return latest_first[::-1]


def _run_again(walk: Walk, rerun: _Rerun) -> tuple[float, Run | None]:
    """One recomputation by its best implementation, then its intermediates; seconds, those lost included, ``NEVER``
    where it does not fit."""
    index, stage = walk.index, rerun.stage
    best = min(_rerun_trials(walk, rerun), key=Trial.order, default=None)
    if best is None:
        return NEVER, None
    walk.adopt(best.changes)
    seconds = best.own_s + best.lost_s
    for v in rerun.made:
        seconds += make_intermediate(walk, v, rerun.base_bytes, rerun.read_later | set(v.reads), stage)
    made = tuple(v.id for v in rerun.made)
    # All else that is present is needed at this stage, or read later: each stage ends by dropping what is not.
    touched = {*rerun.reads, *index.problem.forward[rerun.operator].outputs, *made} - rerun.read_later
    walk.drop([n for n in touched if not index.needed(n, stage)])
    return seconds, Run(index.problem.forward[rerun.operator].id, best.choice.name, made)


def _rerun_trials(walk: Walk, rerun: _Rerun) -> Iterator[Trial[ForwardImplementation]]:
    """The rerun by each implementation that is usable and fits."""
    index, operator = walk.index, walk.index.problem.forward[rerun.operator]
    # What is there and made again counts twice here: as present and as output.
    base_bytes = rerun.base_bytes + sum(index.size[n] for n in operator.outputs)
    missing = [n for n in operator.outputs if n not in walk.present]
    moment = Moment(rerun.stage, base_bytes, rerun.reads, missing)
    for q in _usable_again(index, rerun):
        trial = run_trial(walk, moment, q, *recompute_cost(q), thrifty=False)
        if trial is not None:
            yield trial


def _usable_again(index: Index, rerun: _Rerun) -> Iterator[ForwardImplementation]:
    """Implementations that read what was prepared for the fastest one, and destroy nothing that is read later or
    whose window has not begun."""
    offered = index.runs_again[rerun.operator]
    read_later = rerun.read_later | making_reads(rerun.made)
    for q in offered:
        if q.recompute_reads != offered[0].recompute_reads:
            continue
        if q.overwrites is None or (q.overwrites not in read_later):
            yield q

"""Plans from points of the checkpoint program.

What a point holds is kept; what is missing is made again as late as possible, by ``reruns`` at the first stage that
needs it, and stays until its last use. The memory of that is not counted by the program, so the plan is replayed.
What is gone is read back where it is needed first; when its copies begin and end is ``construction/copies.py``'s.
"""

from __future__ import annotations

from collections.abc import Iterable, Set

import numpy as np
import numpy.typing as npt

from monet.planner.checkpoints.columns import CheckpointProgram
from monet.planner.checkpoints.in_place import in_place
from monet.planner.construction.copies import moving, with_copies
from monet.planner.construction.reruns import reads_again, reruns
from monet.planner.problem import BackwardImplementation, ForwardImplementation, recompute_cost
from monet.planner.program.index import Index, by_last
from monet.planner.runs import without_useless
from monet.planner.solution import Run, Runs, Stage
from monet.planner.solvers.rows import Floats

Chosen = npt.NDArray[np.bool_]
"""Which columns of a point are 1."""


def plan_of(program: CheckpointProgram, x: Floats) -> Runs | None:
    """The runs of a 0-1 point; None where something that a stage reads can neither be kept nor made again."""
    index, problem = program.index, program.index.problem
    on = x > 0.5
    held: list[set[str]] = [set() for _ in program.at]
    for (name, checkpoint), column in program.held.items():
        if on[column]:
            held[checkpoint].add(name)
    kept = held[0] | {name for name in index.pinned if name in index.last}
    away = frozenset(name for name, column in program.gone.items() if on[column])
    wanted = kept | away
    forward = moving(index, (_forward_run(program, on, i, wanted) for i in range(len(problem.forward))), away)
    present = set(kept)
    if problem.in_place:
        present |= away
    checkpoint_at = {stage: checkpoint for checkpoint, stage in enumerate(program.at)}
    ending = by_last(index.last)
    remade = _remade(program, on)
    stages = []
    for stage, operator in enumerate(problem.backward):
        here = checkpoint_at.get(stage)
        ahead = [] if here is None else sorted(held[here] - present - away)
        back = away - remade.get(program.segment(stage), frozenset())
        chosen = _stage_run(program, on, stage, present | back if back else present, ahead)
        if chosen is None:
            back, chosen = away, _stage_run(program, on, stage, present | away, ahead)
        if chosen is None:
            return None
        q, again = chosen
        reads = {*q.reads, *(n for i, made in again.items() for n in reads_again(index, i, made))}
        returns = tuple(sorted(reads & back - present))
        present.update(returns)
        recompute = []
        for i, made in again.items():
            made = made | _made_besides(program, on, i, program.segment(stage), present)
            recompute.append(_run_again(index, i, made))
            run = _fastest(index, i)
            present |= {name for name in problem.forward[i].outputs if name not in run.recompute_reads} | made
        stages.append(Stage(tuple(recompute), operator.id, q.name, returns, returns))
        if here is not None:
            present &= held[here] | index.pinned | (away if problem.in_place else frozenset())
        present.difference_update(ending.get(stage, ()))
    plain = in_place(index, without_useless(problem, Runs(forward, tuple(stages))), larger=False)
    return with_copies(problem, plain, program.budget_bytes) if away else plain


def _remade(program: CheckpointProgram, on: Chosen) -> dict[int, frozenset[str]]:
    """By segment, what the point makes again in it, of what may be moved."""
    runs: dict[int, set[int]] = {}
    for (i, segment), column in program.run.items() if program.gone else ():
        if on[column]:
            runs.setdefault(segment, set()).add(i)
    producer = program.index.producer
    return {segment: frozenset(n for n in program.gone if producer[n] in made) for segment, made in runs.items()}


def _forward_run(program: CheckpointProgram, on: Chosen, i: int, kept: Set[str]) -> Run:
    """The point's run, or else the fastest, that destroys nothing that is kept or that a kept intermediate is made
    of."""
    index = program.index
    operator = index.problem.forward[i]
    made = [v for v in index.intermediates[i] if v.id in kept]
    spoilt = {name for v in made for name in v.reads}
    usable = [q for q in index.runs_forward[i] if q.overwrites not in kept and q.overwrites not in spoilt]
    chosen = [q for q in usable if (c := program.forward.get((i, q.name))) is not None and on[c]]
    q = min(
        chosen or usable,
        key=lambda q: (q.time_s, q.workspace_bytes - q.aliased_bytes),
        default=index.runs_forward[i][0],
    )
    return Run(operator.id, q.name, tuple(v.id for v in made))


def _stage_run(
    program: CheckpointProgram, on: Chosen, stage: int, present: set[str], ahead: Iterable[str]
) -> tuple[BackwardImplementation, dict[int, set[str]]] | None:
    """The point's implementation of a stage, or the fastest that can run, and what runs again before it."""
    index = program.index
    offered = index.runs_backward[stage]
    chosen = [q for q in offered if (c := program.backward.get((stage, q.name))) is None or on[c]]
    for names in (ahead, ()):
        for q in (*chosen, *offered):
            again = reruns(index, present, (*q.reads, *names), stage)
            if again is not None:
                return q, again
    return None


def _made_besides(program: CheckpointProgram, on: Chosen, i: int, segment: int, present: Set[str]) -> set[str]:
    """Intermediates that the point makes again in this segment: else their operator would run once more for them."""
    return {
        v.id
        for v in program.index.intermediates[i]
        if v.id not in present and (c := program.make.get((v.id, segment))) is not None and on[c]
    }


def _fastest(index: Index, i: int) -> ForwardImplementation:
    """The fastest rerun that reads what ``reruns`` prepares and destroys nothing."""
    offered = index.runs_again[i]
    usable = [q for q in offered if q.overwrites is None and q.recompute_reads == offered[0].recompute_reads]
    return min(usable or offered, key=lambda q: recompute_cost(q)[0])


def _run_again(index: Index, i: int, made: Set[str]) -> Run:
    operator = index.problem.forward[i]
    return Run(operator.id, _fastest(index, i).name, tuple(v.id for v in index.intermediates[i] if v.id in made))

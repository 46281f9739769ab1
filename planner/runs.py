"""What a schedule runs, and leaving out what nothing reads."""

from __future__ import annotations

from monet.planner.problem import Problem
from monet.planner.solution import Run, Runs, Stage


def without_useless(problem: Problem, runs: Runs) -> Runs:
    """Drops recomputations, intermediates and moves that nothing reads; walks backward from the reads."""
    operators = {operator.id: operator for operator in problem.forward}
    implementations = {(o.id, q.name): q for o in problem.forward for q in o.implementations}
    pinned = {tensor.id for tensor in problem.tensors if tensor.pinned}
    made_reads = {v.id: v.reads for v in problem.intermediates}
    reads = {(o.id, q.name): q.reads for o in problem.backward for q in o.implementations}
    wanted: set[str] = set()
    coming: set[str] = set()  # returned later, and not issued yet
    returned: set[str] = set()
    stages: list[Stage] = []
    for stage in reversed(runs.stages):
        wanted |= set(reads[stage.backward, stage.implementation])
        recompute: list[Run] = []
        for run in reversed(stage.recompute):
            operator, q = operators[run.operator], implementations[run.operator, run.implementation]
            made = tuple(name for name in run.intermediates if name in wanted)
            outputs = {n for n in operator.outputs if n not in pinned and n not in q.recompute_reads}
            if not made and not outputs & wanted:
                continue
            wanted -= set(made) | outputs
            # What an intermediate reads is there: made by this very run, or among its inputs.
            wanted |= {n for name in made for n in made_reads[name] if n not in outputs}
            wanted |= {*operator.inputs, *q.recompute_reads}
            recompute.append(Run(run.operator, run.implementation, made))
        returns = tuple(name for name in stage.returns if name in wanted)
        wanted.difference_update(returns)
        coming.update(returns)
        issues = tuple(name for name in stage.issues if name in coming)
        coming.difference_update(issues)
        returned.update(issues)
        stages.append(Stage(tuple(reversed(recompute)), stage.backward, stage.implementation, issues, returns))
    moved = set(runs.moved) & wanted if problem.in_place else returned
    forward = tuple(
        Run(
            run.operator,
            run.implementation,
            tuple(n for n in run.intermediates if n in wanted or n in moved),
            tuple(n for n in run.writes if n in moved),
            tuple(n for n in run.releases if n in moved),
        )
        for run in runs.forward
    )
    return Runs(forward, tuple(reversed(stages)))

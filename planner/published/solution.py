"""Published solutions: the ``stages`` that MONeT's authors published, from and to a ``Solution``.

The first stage is the forward pass, and one stage of each backward operator follows. An implementation that saves
(``save``, ``save_inplace``) stands for a run that makes an intermediate, as in ``profile.py``.
"""

from __future__ import annotations

from typing import Any

from monet.planner.problem import Problem
from monet.planner.published.profile import tensor_id
from monet.planner.replay import replay
from monet.planner.solution import Run, Runs, Stage


def published_stages(problem: Problem, runs: Runs) -> list[dict[str, Any]]:
    """``runs`` as the ``stages`` of the published solution format.

    ``keep`` of a stage: what it leaves in memory for the next one, by exact replay of reads.

    Raises:
        InvalidPlan: the runs do not fit the problem.
    """
    replay(problem, runs)
    reads = {(o.id, q.name): q.reads for o in problem.backward for q in o.implementations}
    inputs = {o.id: o.inputs for o in problem.forward}
    order = {name: i for i, name in enumerate(_published_order(problem))}
    wanted: set[str] = set()
    kept: list[set[str]] = []
    for stage in reversed(runs.stages):
        kept.append(set(wanted))
        wanted |= set(reads[stage.backward, stage.implementation])
        for run in reversed(stage.recompute):
            wanted -= {run.operator, *run.intermediates}
            wanted |= set(inputs[run.operator])
    kept.append(set(wanted))
    keeps = [[_published(n) for n in sorted(names, key=order.__getitem__)] for names in reversed(kept)]
    first: dict[str, Any] = {"forward": [_published_run(run) for run in runs.forward], "keep": keeps[0]}
    return [first] + [
        {
            "forward": [_published_run(run) for run in stage.recompute],
            "keep": keep,
            "backward": [int(stage.backward[1:]), stage.implementation],
        }
        for stage, keep in zip(runs.stages, keeps[1:], strict=True)
    ]


def runs_from_published(stages: list[dict[str, Any]], saved: dict[str, str]) -> Runs:
    """Published ``stages`` as runs; ``saved`` maps operator ids to their intermediate."""

    def run(pair: list[Any]) -> Run:
        operator, name = tensor_id(pair[0]), str(pair[1])
        if not name.startswith("save"):
            return Run(operator, name)
        return Run(operator, "inplace" if name == "save_inplace" else "plain", (saved[operator],))

    return Runs(
        forward=tuple(run(pair) for pair in stages[0]["forward"]),
        stages=tuple(
            Stage(tuple(run(pair) for pair in s["forward"]), f"b{s['backward'][0]}", s["backward"][1])
            for s in stages[1:]
        ),
    )


def _published_order(problem: Problem) -> list[str]:
    """Tensors and intermediates in the order of the operators that make them."""
    made: dict[str, list[str]] = {}
    for v in problem.intermediates:
        made.setdefault(v.operator, []).append(v.id)
    return [name for o in problem.forward for name in (*o.outputs, *made.get(o.id, []))]


def _published(name: str) -> int | str:
    """The inverse of ``tensor_id``."""
    return int(name[1:]) if name.startswith("f") else name


def _published_run(run: Run) -> list[Any]:
    """(operator, implementation); one that makes an intermediate is an implementation that saves."""
    name = run.implementation
    if run.intermediates:
        name = "save_inplace" if name == "inplace" else "save"
    return [int(run.operator[1:]), name]

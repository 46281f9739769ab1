"""From a point of the 0-1 program to a plan's runs, and from runs to a point."""

from __future__ import annotations

from collections.abc import Iterable, Set

import numpy as np

from monet.planner.program.channel_rows import set_clocks
from monet.planner.program.move_rows import set_moves, with_moves
from monet.planner.program.program import Program
from monet.planner.program.windows import Windows
from monet.planner.runs import without_useless
from monet.planner.solution import Run, Runs, Stage
from monet.planner.solvers.rows import Floats, Presence


def read_point(program: Program, x: Floats) -> Runs:
    """The runs of a 0-1 point; values are rounded at one half, since solvers return 0.9999999."""
    problem, index = program.problem, program.windows
    on = x > 0.5

    def chosen(columns: Iterable[tuple[str, int]]) -> str:
        """The implementation whose column is largest."""
        return max(columns, key=lambda pair: float(x[pair[1]]))[0]

    forward = tuple(
        Run(
            operator.id,
            chosen((q.name, program.forward[i, q.name]) for q in index.runs_forward[i]),
            tuple(v.id for v in index.intermediates[i] if any(on[c] for c in program.kept(v.id))),
        )
        for i, operator in enumerate(problem.forward)
    )
    recompute: list[list[Run]] = [[] for _ in problem.backward]
    for i, operator in enumerate(problem.forward):
        for stage in sorted(index.stages_again[i]):
            if any(on[c] for c in program.runs(i, stage)):
                names = [q.name for q in index.runs_again[i] if (i, q.name, stage) in program.again]
                made = tuple(
                    v.id for v in index.intermediates[i] if (c := program.make.get((v.id, stage))) is not None and on[c]
                )
                run = Run(operator.id, chosen((n, program.again[i, n, stage]) for n in names), made)
                recompute[stage].append(run)
    stages = tuple(
        Stage(
            tuple(recompute[stage]),
            operator.id,
            chosen((q.name, program.backward[stage, q.name]) for q in index.runs_backward[stage]),
        )
        for stage, operator in enumerate(problem.backward)
    )
    runs = Runs(forward, stages)
    return without_useless(problem, runs if program.moves is None else with_moves(program.moves, x, runs))


def write_point(program: Program, runs: Runs) -> Floats | None:
    """The point of the program that runs the same, or None where a window does not allow it.

    Presence is as small as the runs permit. The point may still break a memory row that
    over-estimates, so it is a start, not a proof.
    """
    problem, index = program.problem, program.windows
    runs = without_useless(problem, runs)
    operators = {operator.id: i for i, operator in enumerate(problem.forward)}
    x = np.zeros(len(program.rows.costs))
    wanted: set[str] = set()  # tensors read from here on, as made before here
    held: set[str] = set()  # those wanted when their windows begin
    for t in range(len(runs.stages) - 1, -1, -1):
        stage = runs.stages[t]
        if (t, stage.implementation) not in program.backward:
            return None
        x[program.backward[t, stage.implementation]] = 1
        wanted |= set(next(q for q in index.runs_backward[t] if q.name == stage.implementation).reads)
        if not _set(program, x, {name: program.resident.get((name, t), ()) for name in wanted}):
            return None
        for run in reversed(stage.recompute):
            i = operators[run.operator]
            columns = [
                (i, run.implementation, t) in program.again,
                *((v, t) in program.make for v in run.intermediates),
            ]
            if not all(columns):
                return None
            q = next(q for q in index.runs_again[i] if q.name == run.implementation)
            x[program.again[i, q.name, t]] = 1
            for name in run.intermediates:
                x[program.make[name, t]] = 1
            if not _set_early(program, x, (*problem.forward[i].outputs, *run.intermediates), wanted, t):
                return None
            wanted -= set(run.intermediates)
            wanted -= {n for n in problem.forward[i].outputs if n not in index.pinned and n not in q.recompute_reads}
            wanted |= {*problem.forward[i].inputs, *q.recompute_reads}
        wanted -= set(stage.returns)
        held |= {name for name in wanted if index.start.get(name) == t}
    early = {name for name, columns in program.early.items() if x[list(columns)].any()}
    if not _set(program, x, {name: _kept(program, x, name, held) for name in wanted - early}):
        return None
    for run in runs.forward:
        i = operators[run.operator]
        if (i, run.implementation) not in program.forward:
            return None
        x[program.forward[i, run.implementation]] = 1
    for (name, at), presence in program.resident.items():
        if name in program.early and at < index.start[name] and x[list(program.kept(name))].any():
            x[list(presence)] = 1
    _set_local(program, x)
    if not set_moves(program, x, runs):
        return None
    set_clocks(program, x)
    return x


def _set_early(program: Program, x: Floats, made: Iterable[str], wanted: Set[str], stage: int) -> bool:
    """In the relaxation: what a run makes before its window, inside the window of another output, is made early."""
    for name in made:
        if name in wanted and stage < program.windows.start.get(name, 0) and name in program.early:
            if not program.early[name]:
                return False
            x[list(program.early[name])] = 1
    return True


def _kept(program: Program, x: Floats, name: str, held: Set[str]) -> Presence:
    """How a tensor survives the forward pass: in the relaxation briefly, where it goes before its window begins and
    nothing in between was read from where it is kept."""
    brief = program.brief.get(name)
    if brief is None or name in held or x[list(program.keep[name])].any():
        return program.kept(name)
    return brief


def _set(program: Program, x: Floats, presences: dict[str, Presence]) -> bool:
    """Sets the columns by which each name is there; False where one has none."""
    for name, presence in presences.items():
        if not presence:
            return False
        if name not in program.windows.pinned:
            # In the relaxation a presence has several columns, of which being kept comes first.
            x[presence[0] if name in program.early else list(presence)] = 1
    return True


def _set_local(program: Program, x: Floats) -> None:
    """Each local column is the largest of what must not exceed it."""
    for (name, stage), levels in program.local.items():
        following = program.resident.get((name, stage), ())
        for position, presence in reversed(levels):
            own = position == program.windows.producer[name]
            users = program.runs(position, stage) if own else program.runs_reading(position, name, stage)
            # Without a following use, a level is the sum of its users' columns and has none of its own.
            if presence not in (users, following):
                x[list(presence)] = x[list(users + following)].any()
            following = presence


def earlier(index: Windows, runs: Runs) -> dict[str, frozenset[int]]:
    """``also_at`` of a program that contains ``runs``: what it must offer at which stages, outside the windows of
    ``index``."""
    operators = {operator.id: i for i, operator in enumerate(index.problem.forward)}
    also_at: dict[str, set[int]] = {}
    for t, stage in enumerate(runs.stages):
        for run in stage.recompute:
            i = operators[run.operator]
            operator = index.problem.forward[i]
            if t not in index.stages_again[i]:
                for name in (*operator.outputs, *run.intermediates):
                    also_at.setdefault(name, set()).add(t)
            for q in operator.implementations:
                if q.name == run.implementation and q.overwrites and t < index.start.get(q.overwrites, -1):
                    also_at.setdefault(q.overwrites, set()).add(t)
        for name in stage.returns:
            if t < index.start.get(name, -1):
                also_at.setdefault(name, set()).add(t)
    return {name: frozenset(stages) for name, stages in also_at.items()}

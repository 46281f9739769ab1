"""A relaxation of the full program that is as small as a windowed one: its bound holds for every plan.

The windowed program forbids three things that the full one allows before the window of tensor k. Here
each is allowed at less than it can really cost:

* ``early[k]``: k is made again before its window, once or often. It costs one run of its producer i
  (``again_early[i]``), whose inputs must have been there: ``again_early[i] ≤ survives[p] + early[p]``. The
  memory of that run, and of k until its window begins or a stage reads it, is not counted.
* ``brief[k]``: k survives the forward pass and is dropped before its window. It counts in the forward
  pass and where it is read, and not in between.
* ``keep[k]``: as in the windowed program, in memory until the window begins.

At most one of the three holds: whatever a plan does with k before its window, one of them describes it
and allows at least as much. Inside the windows everything is as in the full program. So every plan of the
full program maps to a point of this one that costs no more, and a bound on this one bounds them all.

The full program offers recomputation before every backward operator, whether it reads something or not; so
does this one inside its windows.
"""

from __future__ import annotations

from monet.planner.problem import recompute_cost
from monet.planner.program.program import Program
from monet.planner.solvers.rows import ABSENT, Presence


def add_early_columns(program: Program) -> None:
    """``early`` and ``brief`` of everything whose window does not begin at the first stage."""
    index = program.windows
    seconds = {v.id: v.time_s for made in index.intermediates for v in made}
    for name, start in index.start.items():
        if start > 0 and name not in index.pinned:
            program.brief[name] = (program.rows.column(seconds.get(name, 0.0)),)
            program.early[name] = ABSENT
    again_early: dict[int, int] = {}
    for name in program.early:
        i = index.producer[name]
        if index.runs_again[i]:
            if i not in again_early:
                least_s = min(recompute_cost(q)[0] for q in index.runs_again[i])
                again_early[i] = program.rows.column(least_s)
            program.early[name] = (program.rows.column(seconds.get(name, 0.0)),)
            # A run inside the window of another output makes this one, too.
            inside = tuple(
                column
                for stage in sorted(index.stages_again[i])
                if stage < index.start[name]
                for column in program.runs(i, stage)
            )
            program.rows.implies(program.early[name], (again_early[i],), inside)
        program.rows.excludes(program.survives(name), program.early[name])
    for i, column in again_early.items():
        latest = max(index.start[name] for name in program.early if index.producer[name] == i)
        for name in (*dict.fromkeys(index.problem.forward[i].inputs), *sorted(index.shared_reads(i))):
            if name in index.pinned or index.producer[name] == i:
                continue
            inside = tuple(
                column
                for stage in range(index.start[name], min(latest, index.last[name] + 1))
                for column in program.runs_making(name, stage)
            )
            program.rows.implies((column,), program.survives(name), program.early.get(name, ABSENT), inside)


def resident_early(program: Program, name: str, stage: int) -> Presence:
    """Presence of ``name`` at a stage before its window: as kept.

    Where the stage may read ``name``, a column that may also be 1 if ``name`` survives briefly or is made again early.
    """
    kept = program.kept(name)
    if name not in program.windows.reads[stage]:
        return kept
    column = (program.rows.column(),)
    program.rows.implies(kept, column)
    program.rows.implies(column, program.survives(name), program.early[name])
    return column

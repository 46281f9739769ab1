"""The rows of moves in the 0-1 program (``moves.py``), and moves of points and of plans."""

from __future__ import annotations

from dataclasses import replace

from monet.planner.program.moves import Moves, returns_of
from monet.planner.program.program import Program
from monet.planner.solution import Run, Runs, Stage
from monet.planner.solvers.rows import Floats, Sum


def add_move_rows(program: Program) -> None:
    """What is moved is not kept, what comes back has been moved, and nothing is there twice.

    * keep[k] + Σ_e out[k, e] ≤ 1, and Σ_r back[k, u, r] ≤ Σ_e out[k, e]
    * Σ_{r ≤ t < u} back[k, u, r] + (k is there at stage t to be read) ≤ 1: a return overwrites nothing
    * back[k, u, r] + resident[k, u−1] ≤ 1, and back[k, u, r] + Σ_q again[k, q, u] ≤ 1
    * Σ_k bytes · out[k, e] ≤ limit
    * forward[i, q] + Σ_e out[k, e] ≤ 1 where q overwrites k
    """
    moves, index, rows = program.moves, program.windows, program.rows
    if moves is None:
        return
    for name, stages in moves.back.items():
        rows.excludes(program.kept(name), moves.moved(name))
        for t in range(index.last[name] + 1):
            coming, returned = moves.coming(name, t), moves.returned(name, t)
            if returned:
                rows.implies(returned, moves.moved(name))
                rows.excludes(program.before(name, t))
                rows.excludes(returned, program.runs_making(name, t))
            if coming:
                rows.excludes(coming, program.present(name, t, index.producer[name] + 1))
            if coming and returned and len(stages) > 1:
                rows.excludes(coming, returned)
    if moves.second.limit_bytes is not None:
        total = Sum()
        for name in moves.out:
            total.add(moves.moved(name), index.size[name])
        rows.at_most(total, float(moves.second.limit_bytes))
    for i, implementations in enumerate(index.runs_forward):
        for q in implementations:
            if q.overwrites in moves.out:
                rows.excludes((program.forward[i, q.name],), moves.moved(q.overwrites))


def with_moves(moves: Moves, x: Floats, runs: Runs) -> Runs:
    """``runs`` with the moves of a 0-1 point; of an operator's, or a stage's, the most urgent copy comes first."""
    on = x > 0.5
    issues: dict[int, list[tuple[int, str]]] = {}
    returns: dict[int, list[str]] = {}
    back = set()
    for name, r, u, column in moves.reads():
        if on[column]:
            issues.setdefault(r, []).append((u, name))
            returns.setdefault(u, []).append(name)
            back.add(name)
    writes: dict[int, list[tuple[int, str]]] = {}
    releases: dict[int, list[str]] = {}
    for name, made, e, column in moves.writes():
        if on[column] and name in back:
            writes.setdefault(made, []).append((e, name))
            releases.setdefault(e, []).append(name)

    def run(i: int, run: Run) -> Run:
        begun = tuple(name for _, name in sorted(writes.get(i, ())))
        return replace(run, writes=begun, releases=tuple(sorted(releases.get(i, ()))))

    def stage(t: int, stage: Stage) -> Stage:
        begun = tuple(name for _, name in sorted(issues.get(t, ())))
        return replace(stage, issues=begun, returns=tuple(sorted(returns.get(t, ()))))

    return Runs(
        tuple(run(i, r) for i, r in enumerate(runs.forward)), tuple(stage(t, s) for t, s in enumerate(runs.stages))
    )


def set_moves(program: Program, x: Floats, runs: Runs) -> bool:
    """Sets the columns of a plan's moves; False where there is none for one of them."""
    moves = program.moves
    if moves is None:
        return not runs.moved
    chosen = [
        moves.out.get(name, {}).get(e) for e, run in enumerate(runs.forward) for name in run.releases
    ]  # fmt: skip
    chosen += [moves.back.get(name, {}).get(u, {}).get(r) for name, r, u in returns_of(runs)]
    for column in chosen:
        if column is None:
            return False
        x[column] = 1
    for stage, share in moves.coming_share.items():
        coming = sum(moves.size[name] * x[list(moves.coming(name, stage))].sum() for name in moves.back)
        x[share] = coming / program.budget_bytes
    return True

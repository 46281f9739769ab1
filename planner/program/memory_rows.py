"""Memory rows of the 0-1 program: fixed bytes and everything live at any moment fit the budget.

One row for every forward operator, every backward operator and every (recomputable operator, stage),
and one for every intermediate made after them. A moment of stage t, with operator i running again::

    producer before i      i                    producer after i
    present(k, t, i)       its outputs          present, unless this stage makes it later
    (a reader ≥ i runs,    (all of them)
     or k is resident)

Exact for every 0-1 point within the windows, with one over-estimate left: before its window, a kept
tensor counts even when nothing will read it again. (So does a pinned tensor up to its last possible
read, and a discarded second copy of an output outside its window.)
"""

from __future__ import annotations

from monet.planner.problem import Intermediate, recompute_cost
from monet.planner.program.program import Program
from monet.planner.solvers.rows import ABSENT, Presence, Sum


def add_memory_rows(program: Program) -> None:
    """Adds every memory row that some 0-1 point can violate."""
    _forward_rows(program)
    for stage in range(len(program.problem.backward)):
        coming = _coming(program, stage)
        _backward_row(program, stage, coming)
        _recompute_rows(program, stage, coming)


def _forward_rows(program: Program) -> None:
    """fixed + outputs of i + Σ_q forward[i, q]·(workspace − aliased) + what is needed later ≤ budget

    A tensor made before i counts in any case while a forward operator from i on reads it, and as
    ``keep[k]`` afterwards.
    """
    index, problem = program.windows, program.problem
    final = {name: (index.consumers.get(name) or (i,))[-1] for name, i in index.producer.items()}
    for i, operator in enumerate(problem.forward):
        earlier = Sum(problem.fixed_bytes)
        for j in range(i):
            for name in problem.forward[j].outputs:
                if final[name] > i:
                    earlier.constant += index.size[name]
                elif final[name] < i:
                    earlier.add(program.lingers(name, i), index.size[name])
            for v in index.intermediates[j]:
                earlier.add(program.survives(v.id), v.bytes)
        total = earlier.copy()
        total.constant += sum(index.size[name] for name in operator.outputs)
        inputs = [name for name in dict.fromkeys(operator.inputs) if final[name] == i]
        total.constant += sum(index.size[name] for name in inputs)
        for q in index.runs_forward[i]:
            total.add((program.forward[i, q.name],), q.workspace_bytes - q.aliased_bytes)
        spare_bytes = 0 if program.given is None else program.given.spare_forward_bytes(i)
        _fit(program, total, spare_bytes)
        for v in index.intermediates[i]:
            if v.id in program.keep:
                _fit(program, _forward_making(program, earlier.copy(), i, v, inputs, final), spare_bytes)
            earlier.add(program.survives(v.id), v.bytes)


def _forward_making(
    program: Program, total: Sum, i: int, v: Intermediate, inputs: list[str], final: dict[str, int]
) -> Sum:
    """Making v right after i: what it reads, what is needed later, v itself and its workspace.

    What v reads counts even if v is not made: the row of i's own run is then at least as tight.
    """
    index = program.windows
    for name in (*inputs, *program.problem.forward[i].outputs):
        if name in v.reads or final[name] > i:
            total.constant += index.size[name]
            for q in index.runs_forward[i]:
                if q.overwrites == name:
                    total.add((program.forward[i, q.name],), -index.size[name])
        else:
            total.add(program.lingers(name, i), index.size[name])
    return total.add(program.survives(v.id), v.bytes + v.workspace_bytes)


def _backward_row(program: Program, stage: int, coming: Presence) -> None:
    """fixed + gradients + Σ_q backward[t, q]·(workspace − aliased) + Σ_k resident[k, t]·bytes ≤ budget

    ``coming``: the column of what is on its way back, in shares of the budget."""
    index = program.windows
    total = Sum(program.problem.fixed_bytes + program.problem.backward[stage].live_during_bytes)
    for q in index.runs_backward[stage]:
        total.add((program.backward[stage, q.name],), q.workspace_bytes - q.aliased_bytes)
    for name, last in index.last.items():
        if last >= stage:
            total.add(program.resident.get((name, stage), ()), index.size[name])
    total.add(coming, program.budget_bytes)
    _fit(program, total, _spare_bytes(program, stage))


def _recompute_rows(program: Program, stage: int, coming: Presence) -> None:
    """One row per operator that may run again at ``stage``, and per intermediate made after it.

    fixed + gradients + Σ_q again[i, q, t]·(workspace − aliased) + everything present ≤ budget
    """
    index = program.windows
    running = [i for i, stages in enumerate(index.stages_again) if stage in stages]
    if not running:
        return
    always = Sum(program.problem.fixed_bytes + program.problem.backward[stage].live_before_bytes)
    spare_bytes = _spare_bytes(program, stage)
    always.add(coming, program.budget_bytes)
    moving: list[str] = []
    for name, last in index.last.items():
        if last < stage:
            continue
        if name in index.pinned or (stage < index.start[name] and not _moves_early(program, name, stage)):
            always.add(program.kept(name), index.size[name])
        else:
            moving.append(name)
    for i in running:
        total = always.copy()
        for name in moving:
            _add_present(program, total, name, stage, i, after=i)
        for q in index.runs_again[i]:
            if (i, q.name, stage) not in program.again:
                continue
            column = (program.again[i, q.name, stage],)
            total.add(column, recompute_cost(q)[1] - q.aliased_bytes)
            for name in program.problem.forward[i].outputs:
                if name not in q.recompute_reads and not _tracked(program, name, stage):
                    total.add(column, index.size[name])
        _fit(program, total, spare_bytes)
        for position, v in enumerate(index.intermediates[i]):
            if (v.id, stage) in program.make:
                made = {earlier.id for earlier in index.intermediates[i][: position + 1]}
                total = always.copy()
                for name in moving:
                    _add_making(program, total, name, stage, i, v, made)
                discarded = [n for n in program.problem.forward[i].outputs if n in v.reads and n not in index.pinned]
                held = sum(index.size[n] for n in discarded if not _tracked(program, n, stage))
                _fit(program, total.add((program.make[v.id, stage],), v.workspace_bytes + held), spare_bytes)


def _coming(program: Program, stage: int) -> Presence:
    """A column for the bytes of what is on its way back at a stage, as a share of the budget: it has its memory from
    the stage on that issues its return. One, since every row of the stage has it."""
    if program.moves is None:
        return ABSENT
    total = Sum()
    for name in program.moves.back:
        total.add(program.moves.coming(name, stage), program.windows.size[name])
    if not total.terms:
        return ABSENT
    column = program.moves.coming_share[stage] = program.rows.share()
    program.rows.exactly(total.add((column,), -float(program.budget_bytes)), 0.0)
    return (column,)


def _moves_early(program: Program, name: str, stage: int) -> bool:
    """In the relaxation: whether a tensor before its window is more, or less, than kept or not."""
    index = program.windows
    touched = stage in index.stages_again[index.producer[name]] or name in index.reads[stage]
    return name in program.early and (touched or (name, stage) in program.local)


def _add_present(program: Program, total: Sum, name: str, stage: int, i: int, after: int) -> None:
    """``name`` while i runs again: from before if this stage makes it later, else while it has a use.

    ``after``: readers up to this operator have run.
    """
    index = program.windows
    producer = index.producer[name]
    if stage < index.start[name]:
        # Of what is made again before its window, the relaxation only counts what is read after that.
        held = program.present(name, stage, after) if producer < i else program.kept(name) if producer > i else ()
        total.add(held, index.size[name])
        return
    total.add(program.present(name, stage, max(producer, after)), index.size[name])
    intermediate_of_i = producer == i and name not in program.problem.forward[i].outputs
    if producer > i or intermediate_of_i:
        total.add(program.runs_making(name, stage), -index.size[name])


def _add_making(program: Program, total: Sum, name: str, stage: int, i: int, v: Intermediate, made: set[str]) -> None:
    """``name`` while v is made after i ran again; what v reads counts as during the run of i."""
    index = program.windows
    size = index.size[name]
    if stage < index.start[name]:
        _add_present(program, total, name, stage, i, after=i if name in v.reads else i + 1)
    elif name in v.reads:
        total.add(program.present(name, stage, i), size)
        for q in index.runs_again[i]:
            if q.overwrites == name and (i, q.name, stage) in program.again:
                total.add((program.again[i, q.name, stage],), -size)
    elif name in made:
        total.add(program.resident.get((name, stage), ()), size)
    else:
        _add_present(program, total, name, stage, i, after=i + 1)


def _tracked(program: Program, name: str, stage: int) -> bool:
    """Whether a recomputed output has presence of its own at ``stage``; if not, it is thrown away."""
    return name not in program.windows.pinned and program.own_decision(name, stage)


def _spare_bytes(program: Program, stage: int) -> int:
    """What is counted at a stage and is in the second memory, where moves are given."""
    return 0 if program.given is None else program.given.spare_stage_bytes(program.windows, stage)


def _fit(program: Program, total: Sum, spare_bytes: int = 0) -> None:
    """total ≤ budget, or ≤ peak · budget; ``spare_bytes``: what ``total`` counts and is not there"""
    total.constant -= spare_bytes
    if program.peak is not None:
        total.terms[program.peak] = -float(program.budget_bytes)
    known = len(program.rows.lower)
    program.rows.at_most(total, 0.0 if program.peak is not None else float(program.budget_bytes))
    program.memory.extend(range(known, len(program.rows.lower)))

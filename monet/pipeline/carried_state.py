"""An optimiser's state in the second memory between steps: what of it, and when each tensor is read and written.

A tensor of state is used by one operator, its parameter's update. So it need not be there for the rest of the step: it
is read back before that, and written after it. What of it is moved so is decided before the program is solved
(``state_choices``), by the bytes of whole updates; the program then plans the rest for the memory that this leaves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from monet.base.graph import STATE
from monet.ops.weight_update import ParameterUpdate
from monet.pipeline.lowering import Lowered
from monet.planner.problem import STATIC, SYNCHRONOUS, Carried, Problem, SecondMemory
from monet.plans.format import whole_blocks

SLACK = 0.25
"""Of a copy's time: by how much earlier it begins, or later it is waited for, than need be."""
AHEAD = 2
"""At most: so many updates before its own the state is read, and so many after it the write is waited for. It bounds
the memory of state where the channel is slower than the backward pass. With 0, the step waits for each copy."""
SHARES = (0.5, 1.0)
"""Of the bytes of state that can be moved: what is tried, besides none."""


@dataclass(frozen=True, slots=True)
class StateMoves:
    """``names``: storages of state to move; ``ahead``: as ``AHEAD``."""

    names: frozenset[str] = frozenset()
    ahead: int = AHEAD


def state_choices(lowered: Lowered) -> list[StateMoves]:
    """Nothing; the largest updates' state, up to a half; all; and all with copies that the step waits for. Nothing
    alone for a model on a GPU: PyTorch's optimisers want their state there."""
    second, groups = lowered.problem.second, _groups(lowered)
    if second is None or second.mode == STATIC or not groups or lowered.catalogue.graph.device.type != "cpu":
        return [StateMoves()]
    largest = sorted(groups.items(), key=lambda item: (-_bytes(lowered, item[1]), item[0]))
    total = sum(_bytes(lowered, names) for _, names in largest)
    found = [StateMoves()]
    for share in SHARES:
        chosen: list[str] = []
        for _, names in largest:
            if _bytes(lowered, chosen) < share * total:
                chosen += names
        blocks = sum(whole_blocks(_bytes(lowered, [name])) for name in chosen)
        moves = StateMoves(frozenset(chosen))
        if moves not in found and (second.limit_bytes is None or blocks <= second.limit_bytes):
            found.append(moves)
    if found[-1].names and second.mode != SYNCHRONOUS:
        found.append(replace(found[-1], ahead=0))
    return found


def _groups(lowered: Lowered) -> dict[int, list[str]]:
    """Stage of an update → storages of its state that are worth a copy."""
    second, graph = lowered.problem.second, lowered.catalogue.graph
    if second is None:
        return {}
    states = {source.value for source in graph.sources if source.kind == STATE}
    position = {operator.id: k for k, operator in enumerate(lowered.problem.backward)}
    found: dict[int, list[str]] = {}
    for op in graph.backward:
        if not isinstance(op.target, ParameterUpdate):
            continue
        for run in lowered.catalogue.backward[op.name].values():
            names = [n for n in run.inputs() if n in states and _bytes(lowered, [n]) >= second.smallest_bytes]
            if names:
                found[position[op.name]] = names
    return found


def _bytes(lowered: Lowered, names: Sequence[str]) -> int:
    return sum(lowered.catalogue.values[name].storage_bytes for name in names)


def with_carried(lowered: Lowered, moves: StateMoves) -> Lowered:
    """``lowered`` with these storages of state in the second memory between steps."""
    problem, names = lowered.problem, moves.names
    if not names or problem.second is None:
        return lowered
    groups = [
        (stage, [name for name in found if name in names])
        for stage, found in sorted(_groups(lowered).items())
        if names.intersection(found)
    ]
    ahead = 0 if problem.second.mode == SYNCHRONOUS else moves.ahead
    states = [(stage, name, _bytes(lowered, [name])) for stage, group in groups for name in group]
    carried = _timed(problem, problem.second, states, ahead)
    held = [0] * len(problem.backward)
    for state in carried:
        for stage in range(state.issue, state.release + 1):
            held[stage] += whole_blocks(state.bytes)
    backward = tuple(
        replace(
            operator,
            live_before_bytes=operator.live_before_bytes + more,
            live_during_bytes=operator.live_during_bytes + more,
        )
        for operator, more in zip(problem.backward, held, strict=True)
    )
    gone = sum(state.bytes for state in carried)
    limit = problem.second.limit_bytes
    left = None if limit is None else limit - sum(whole_blocks(state.bytes) for state in carried)
    fixed = {**lowered.fixed, "optimizer_state": lowered.fixed["optimizer_state"] - gone}
    changed = replace(
        problem,
        backward=backward,
        fixed_bytes=problem.fixed_bytes - gone,
        second=replace(problem.second, limit_bytes=left),
        carried=carried,
    )
    return replace(lowered, problem=changed, fixed=fixed)


def _timed(
    problem: Problem, second: SecondMemory, states: Sequence[tuple[int, str, int]], ahead: int
) -> tuple[Carried, ...]:
    """``states``: stage, storage and bytes, in the order of the stages. Reads are issued as late as they hide, and
    writes waited for as early, by the fastest operators' times and one channel; neither past ``ahead`` other updates.
    """
    begins = [0.0, *accumulate(min(q.time_s for q in operator.implementations) for operator in problem.backward)]
    stages = sorted({stage for stage, _, _ in states})
    rank = {stage: k for k, stage in enumerate(stages)}
    last = len(problem.backward) - 1
    issues: dict[str, int] = {}
    following = begins[-1]
    for stage, name, size in reversed(states):
        seconds = second.read_s(size)
        following = min(begins[stage], following) - seconds
        wanted = following - SLACK * seconds
        first = stages[rank[stage] - ahead] + 1 if rank[stage] >= ahead else 0
        issues[name] = next((r for r in range(stage, first, -1) if begins[r] <= wanted), min(first, stage))
        following -= second.write_s(size)  # of another one, which is written meanwhile
    found = []
    free = 0.0
    for stage, name, size in states:
        seconds = second.write_s(size)
        free = max(free, begins[stage + 1]) + seconds
        until = stages[rank[stage] + ahead] - 1 if rank[stage] + ahead < len(stages) else last
        wanted, until = free + SLACK * seconds, max(until, stage)
        release = next((w for w in range(stage, until) if begins[w + 1] >= wanted), until)
        free += second.read_s(size)
        found.append(Carried(name, size, issues[name], stage, release))
    return tuple(found)

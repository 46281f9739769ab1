"""Parameters and an optimiser's state in the second memory between steps: which, and what the program counts for them.

A parameter is used by a few operators of each pass, and a tensor of state by one, its parameter's update. They need not
be there for the rest of the step. What of them is moved so is decided in a program of its own (``chosen_moves``);
beside that some sets are always tried (``state_choices``). The program that comes after it counts an operator's own
while it runs, in each pass and wherever it runs again; when each is read and written is decided for the runs that are
found (``carried_copies.py``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from monet.base.graph import PARAMETER, STATE, operator_inputs
from monet.ops.offers.implementation import Implementation
from monet.ops.update_order import changed_by, updates_of
from monet.pipeline.lowering import Lowered
from monet.planner.carrying import chosen_state
from monet.planner.problem import STATIC, SYNCHRONOUS, ForwardOperator, StateTensor
from monet.planner.search import Solving
from monet.plans.format import whole_blocks

MOST_TAKEN = 0.98
"""Of the channel's time: what is left is too little to move tensors of the step, and no division by zero."""


@dataclass(frozen=True, slots=True)
class StateMoves:
    """``names``: storages of parameters and state to move. ``beside``: whether memory is left for the largest of them,
    so that one can be on its way beside operators whatever these need. ``staying``: of ``names``, those for which
    memory is left from the last operator that uses them in the forward pass to the first in the backward pass.
    ``taken``: of the channel's time, as much as their copies take, and is not left to tensors of the step."""

    names: frozenset[str] = frozenset()
    beside: bool = True
    staying: frozenset[str] = frozenset()
    taken: float = 0.0


def movable_state(lowered: Lowered) -> dict[str, list[str]]:
    """Storages that may be moved, those together that are: the state of each update, and each parameter. Nothing for a
    step without updates, whose parameters are its caller's, and for a model on a GPU: PyTorch's optimisers want their
    state there."""
    second, graph = lowered.problem.second, lowered.catalogue.graph
    if second is None or second.mode == STATIC or not updates_of(graph) or graph.device.type != "cpu":
        return {}
    together = [*_states_of_updates(lowered), *([name] for name in _parameters(lowered))]
    return {"+".join(group): group for group in together}


def state_choices(lowered: Lowered) -> list[StateMoves]:
    """Nothing; all state; all state and parameters; the last of these with no memory for copies beside operators."""
    groups = movable_state(lowered)
    states = [name for names in _states_of_updates(lowered) for name in names] if groups else []
    found = [StateMoves()]
    for names in (states, [name for group in groups.values() for name in group]):
        moves = StateMoves(frozenset(names))
        if moves not in found and _has_room(lowered, moves):
            found.append(moves)
    second = lowered.problem.second
    if found[-1].names and second is not None and second.mode != SYNCHRONOUS:
        found.append(replace(found[-1], beside=False))
    return found


def _has_room(lowered: Lowered, moves: StateMoves) -> bool:
    second = lowered.problem.second
    return second is None or second.limit_bytes is None or _blocks(lowered, moves.names) <= second.limit_bytes


def chosen_moves(lowered: Lowered, budget_bytes: int, solving: Solving) -> tuple[list[StateMoves], float]:
    """What the program moves, with more room left each time, and a bound in seconds on every plan, whatever it moves; 0
    where none is proven. ``solving``: as for ``chosen_state``."""
    groups = movable_state(lowered)
    carrying = chosen_state(lowered.problem, _state_tensors(lowered, groups), budget_bytes, solving)

    def names(chosen: Iterable[str]) -> frozenset[str]:
        return frozenset(name for group in chosen for name in groups[group])

    choices = [
        StateMoves(names(choice.carried), staying=names(choice.staying), taken=choice.taken)
        for choice in carrying.choices
    ]
    return [moves for moves in choices if _has_room(lowered, moves)], carrying.bound_s


def _state_tensors(lowered: Lowered, groups: Mapping[str, Sequence[str]]) -> tuple[StateTensor, ...]:
    """What is moved together as one, which an operator uses that uses all of it however it runs."""
    offers, (forward, backward) = lowered.catalogue, _certain_uses(lowered)
    changed = frozenset[str]().union(*(changed_by(offers, update) for update in updates_of(offers.graph)))
    found = []
    for group, names in groups.items():
        written = _bytes(lowered, changed.intersection(names))
        uses = [frozenset.intersection(*(of.get(name, frozenset()) for name in names)) for of in (forward, backward)]
        found.append(StateTensor(group, _bytes(lowered, names), written, *uses))
    return tuple(found)


def _certain_uses(lowered: Lowered) -> tuple[dict[str, frozenset[int]], dict[str, frozenset[int]]]:
    """Of each pass: storage → positions of the operators that read it by every implementation."""
    problem, offers = lowered.problem, lowered.catalogue
    forward = _read_by_all(lowered, (offers.forward[operator.id] for operator in problem.forward))
    backward = _read_by_all(lowered, (offers.backward[operator.id] for operator in problem.backward))
    return forward, backward


def _read_by_all(lowered: Lowered, operators: Iterable[Mapping[str, Implementation]]) -> dict[str, frozenset[int]]:
    storage, found = lowered.catalogue.storage, defaultdict[str, set[int]](set)
    for position, runs in enumerate(operators):
        for name in frozenset.intersection(*(frozenset(map(storage, run.inputs())) for run in runs.values())):
            found[name].add(position)
    return {name: frozenset(positions) for name, positions in found.items()}


def _states_of_updates(lowered: Lowered) -> list[list[str]]:
    """Of each update, the storages of its state that are worth a copy."""
    graph = lowered.catalogue.graph
    states = {source.value for source in graph.sources if source.kind == STATE and _is_large(lowered, source.value)}
    changed = (changed_by(lowered.catalogue, update) & states for update in updates_of(graph))
    return [sorted(names) for names in changed if names]


def _parameters(lowered: Lowered) -> list[str]:
    """Those that are worth a copy; frozen ones, too, which are never written. What the step returns stays, and what an
    island uses, which has no other place for them."""
    graph = lowered.catalogue.graph
    staying = {graph.storage(name) for name in graph.outputs if name is not None}
    for operator in graph.forward:
        if str(operator.target) == "monet.island.default":
            staying |= {graph.storage(name) for name in operator_inputs(operator)}
    names = [source.value for source in graph.sources if source.kind == PARAMETER]
    return [name for name in names if name not in staying and graph.storage(name) == name and _is_large(lowered, name)]


def _is_large(lowered: Lowered, name: str) -> bool:
    second = lowered.problem.second
    return second is not None and lowered.catalogue.values[name].storage_bytes >= second.smallest_bytes


def _bytes(lowered: Lowered, names: Iterable[str]) -> int:
    return sum(lowered.catalogue.values[name].storage_bytes for name in names)


def _blocks(lowered: Lowered, names: Iterable[str]) -> int:
    return sum(whole_blocks(lowered.catalogue.values[name].storage_bytes) for name in names)


def with_carried(lowered: Lowered, moves: StateMoves) -> Lowered:
    """``lowered`` with these storages in the second memory between steps."""
    problem, names = lowered.problem, moves.names
    if not names or problem.second is None:
        return lowered
    offers = lowered.catalogue

    def used(*groups: Mapping[str, Implementation]) -> int:
        read = {offers.storage(name) for runs in groups for run in runs.values() for name in run.inputs()}
        return _blocks(lowered, read & names)

    spare = 0
    if moves.beside and problem.second.mode != SYNCHRONOUS:
        spare = max(_blocks(lowered, [name]) for name in names)
    forward_stay, before_stay, during_stay = _stays(lowered, moves.staying)
    forward = []
    for operator, stay in zip(problem.forward, forward_stay, strict=True):
        first, again = used(offers.forward[operator.id]), used(offers.recompute.get(operator.id, {}))
        forward.append(_with_more(operator, spare + stay + first, again))
    backward = []
    for stage, stays_before, stays_during in zip(problem.backward, before_stay, during_stay, strict=True):
        before = stage.live_before_bytes + spare + stays_before  # what runs again has its own
        during = stage.live_during_bytes + spare + stays_during + used(offers.backward[stage.id])
        backward.append(replace(stage, live_before_bytes=before, live_during_bytes=during))
    gone: dict[str, int] = {"parameters": 0, "optimizer_state": 0}
    for source in offers.graph.sources:
        if source.value in names:
            gone["parameters" if source.kind == PARAMETER else "optimizer_state"] += _bytes(lowered, [source.value])
    fixed = {kind: size - gone.get(kind, 0) for kind, size in lowered.fixed.items()}
    limit = problem.second.limit_bytes
    left = None if limit is None else limit - _blocks(lowered, names)
    second = replace(problem.second, limit_bytes=left, taken=min(moves.taken, MOST_TAKEN))
    changed = replace(
        problem,
        forward=tuple(forward),
        backward=tuple(backward),
        fixed_bytes=problem.fixed_bytes - sum(gone.values()),
        second=second,
    )
    return replace(lowered, problem=changed, fixed=fixed, carried=frozenset(names))


def _stays(lowered: Lowered, staying: frozenset[str]) -> tuple[list[int], list[int], list[int]]:
    """Bytes of what stays from one pass to the next while an operator runs that does not use it: of the forward pass,
    before each of the backward pass, where others run again, and during it."""
    problem = lowered.problem
    forward, before, during = [0] * len(problem.forward), [0] * len(problem.backward), [0] * len(problem.backward)
    in_forward, in_backward = _certain_uses(lowered) if staying else ({}, {})
    for name in staying:
        size, last, first = _blocks(lowered, [name]), max(in_forward[name]), min(in_backward[name])
        for i in range(last + 1, len(forward)):
            forward[i] += size
        for stage in range(first + 1):
            before[stage] += size
            during[stage] += size if stage < first else 0
    return forward, before, during


def least_copied_s(lowered: Lowered) -> float:
    """Seconds that the channel takes in each step: all that is carried is read, and what an update changes written."""
    second, offers = lowered.problem.second, lowered.catalogue
    if second is None or not lowered.carried:
        return 0.0
    second = second.undivided
    changed = frozenset[str]().union(*(changed_by(offers, update) for update in updates_of(offers.graph)))
    sizes = {name: offers.values[name].storage_bytes for name in lowered.carried}
    return sum(second.read_s(size) + (second.write_s(size) if name in changed else 0) for name, size in sizes.items())


def _with_more(operator: ForwardOperator, first: int, again: int) -> ForwardOperator:
    """With so many bytes more while it runs the first time, and again (where the gradients have the spare ones)."""
    runs = []
    for run in operator.implementations:
        repeated = run.workspace_bytes if run.recompute_workspace_bytes is None else run.recompute_workspace_bytes
        workspace = run.workspace_bytes + first
        runs.append(replace(run, workspace_bytes=workspace, recompute_workspace_bytes=repeated + again))
    return replace(operator, implementations=tuple(runs))

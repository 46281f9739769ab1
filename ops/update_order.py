"""Where weight updates may be in a step: after whatever reads the weight, or may be run again and read it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from monet.base.graph import Graph, Operator, operator_inputs
from monet.ops.weight_update import ParameterUpdate

if TYPE_CHECKING:
    from monet.ops.catalogue import Catalogue


def updates_of(graph: Graph) -> frozenset[str]:
    """Names of the operators that are weight updates."""
    return frozenset(op.name for op in graph.backward if isinstance(op.target, ParameterUpdate))


def changed_by(offers: Catalogue, update: str) -> frozenset[str]:
    """Storages that an update reads: its parameter and its state, which it changes, and its gradient."""
    return frozenset(offers.storage(name) for run in offers.backward[update].values() for name in run.inputs())


def late_updates(offers: Catalogue, backward: Sequence[str]) -> tuple[str, ...]:
    """The order ``backward`` with each weight update after the last operator before which a plan may run again what
    reads the weight: the program does not know that an update changes it."""
    graph = offers.graph
    updates = updates_of(graph)
    position = {name: k for k, name in enumerate(backward)}
    wanted: dict[str, int] = defaultdict(int)  # storage → the last operator before which it may be made again

    def want(names: Iterable[str | None], last: int) -> None:
        for storage in {offers.storage(name) for name in names if name is not None}:
            wanted[storage] = max(wanted[storage], last)

    for name in position.keys() - updates:
        for run in offers.backward[name].values():
            want((*run.inputs(), *run.holds), position[name])
    for op in reversed(graph.forward):
        made = [*op.outputs, *(saved.value.name for saved in offers.intermediates.get(op.name, ()))]
        want(operator_inputs(op), max((wanted[offers.storage(name)] for name in made if name is not None), default=0))
    for op in graph.backward:
        if op.name in updates:
            position[op.name] = max(position[op.name], *(wanted[offers.storage(name)] for name in operator_inputs(op)))
    return tuple(sorted(backward, key=lambda name: (position[name], name in updates)))


def along_names(operators: Sequence[Operator], names: Sequence[str]) -> tuple[Operator, ...]:
    """The operators in that order, each view right before what reads it first, or at the end."""
    by_name = {operator.name: operator for operator in operators}
    views = {name: op for op in operators if op.view for name in op.outputs if name is not None}
    found: dict[str, Operator] = {}

    def add(operator: Operator) -> None:
        waiting = [operator]
        while waiting:
            unread = [views[name] for name in operator_inputs(waiting[-1]) if name in views]
            unread = [view for view in unread if view.name not in found and view is not waiting[-1]]
            if unread:
                waiting.append(unread[0])
            else:
                last = waiting.pop()
                found.setdefault(last.name, last)

    for name in names:
        add(by_name[name])
    for operator in operators:
        if operator.name not in found:
            add(operator)
    return tuple(found.values())


def with_late_updates(offers: Catalogue) -> Graph:
    """The graph of ``offers`` with its updates as late as they must be; itself where they are, or there are none."""
    graph = offers.graph
    if not updates_of(graph):
        return graph
    names = tuple(op.name for op in graph.backward if not op.view)
    late = late_updates(offers, names)
    return graph if late == names else replace(graph, backward=along_names(graph.backward, late))

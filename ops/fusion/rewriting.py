"""What the rewritings of a graph share: who reads what, and a graph with some of its operators replaced."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import replace

from monet.base.graph import Graph, Operator, Value, operator_inputs


def makers_of(graph: Graph) -> dict[str, Operator]:
    """Value → the operator that makes it."""
    return {name: op for op in (*graph.forward, *graph.backward) for name in op.outputs if name is not None}


def readers_of(graph: Graph) -> dict[str, list[Operator]]:
    """Storage → the operators of both passes that read it and are no views."""
    found: dict[str, list[Operator]] = {}
    for op in (*graph.forward, *graph.backward):
        if not op.view:
            for storage in dict.fromkeys(map(graph.storage, operator_inputs(op))):
                found.setdefault(storage, []).append(op)
    return found


def rewritten(
    graph: Graph, changed: Mapping[str, Operator | None], added: dict[str, Value], gone: Container[str]
) -> Graph:
    """``graph`` with other operators for some, by name, None for none; with the values ``added``, and without those
    of the storages that are ``gone``, views included. The graph itself where nothing is ``changed``."""
    if not changed:
        return graph

    def kept(operators: tuple[Operator, ...]) -> tuple[Operator, ...]:
        there = (op for op in operators if not (op.view and graph.storage(str(op.outputs[0])) in gone))
        return tuple(new for new in (changed.get(op.name, op) for op in there) if new is not None)

    values = {name: value for name, value in graph.values.items() if value.storage not in gone} | added
    return replace(graph, forward=kept(graph.forward), backward=kept(graph.backward), values=values)

"""What is offered at every shape of a range: implementations that are the same at another shape, but for sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from monet.base.graph import Graph
from monet.base.sizes import Ranges, at_largest, graph_at, numbers_at, resized, value_at
from monet.errors import CaptureError
from monet.ops.catalogue import Catalogue, Named
from monet.ops.offers.implementation import Implementation, SavedIntermediate


def resizable(graph: Graph, ranges: Ranges, offered: Callable[[Graph], Catalogue]) -> Catalogue:
    """What ``offered`` says of ``graph``, with plain numbers for sizes, without what it does not say of the graph at
    another shape: operators are offered by what their sizes are, and some that are equal at the largest shape are so by
    chance, or were calculated with in a way that sizes do not keep. Raises ``CaptureError`` where an operator has no
    implementation left.
    """
    other = ranges.other()
    if other is None:
        raise CaptureError("the capture holds for the largest shape alone")
    number_of = numbers_at(ranges, other)
    here, there = offered(graph), offered(graph_at(graph, number_of))

    def named(mine: Mapping[str, Named], others: Mapping[str, Named]) -> dict[str, Named]:
        return {
            operator: {
                name: run for name, run in runs.items() if _at(run, number_of) == others.get(operator, {}).get(name)
            }
            for operator, runs in mine.items()
            if operator in others
        }

    def saved(operator: str) -> tuple[SavedIntermediate, ...]:
        found = {made.value.name: made for made in there.intermediates.get(operator, ())}
        return tuple(
            made for made in here.intermediates[operator] if _saved_at(made, number_of) == found.get(made.value.name)
        )

    intermediates = {operator: made for operator in here.intermediates if (made := saved(operator))}
    gone = {made.value.name for group in here.intermediates.values() for made in group} - {
        made.value.name for group in intermediates.values() for made in group
    }
    kept = Catalogue(
        graph_at(graph, at_largest),
        {name: value_at(value, at_largest) for name, value in here.values.items()},
        _plain(named(here.forward, there.forward)),
        _plain({operator: runs for operator, runs in named(here.recompute, there.recompute).items() if runs}),
        _plain(_without_readers(named(here.backward, there.backward), gone)),
        {operator: tuple(_saved_at(one, at_largest) for one in made) for operator, made in intermediates.items()},
    )
    for operator in (*graph.forward, *graph.backward):
        if not operator.view and not (kept.forward.get(operator.name) or kept.backward.get(operator.name)):
            raise CaptureError(
                f"{operator.name} ({operator.signature}) is run in another way at other shapes\n{operator.where}"
            )
    return kept


def _plain(offers: Mapping[str, Named]) -> dict[str, Named]:
    return {operator: {name: _at(run, at_largest) for name, run in runs.items()} for operator, runs in offers.items()}


def _at(run: Implementation, number_of: Callable[[Any], Any]) -> Implementation:
    kwargs = tuple((key, resized(value, number_of)) for key, value in run.kwargs)
    return replace(run, args=resized(run.args, number_of), kwargs=kwargs)


def _saved_at(made: SavedIntermediate, number_of: Callable[[Any], Any]) -> SavedIntermediate:
    return replace(made, value=value_at(made.value, number_of), implementation=_at(made.implementation, number_of))


def _without_readers(backward: Mapping[str, Named], gone: set[str]) -> dict[str, Any]:
    """Without implementations that read an intermediate that is not offered."""
    return {
        operator: {name: run for name, run in runs.items() if gone.isdisjoint(run.inputs())}
        for operator, runs in backward.items()
    }

"""Sparse gradients of embeddings, which are handed from their island to autograd as they are.

A plan has no place for a tensor whose size depends on values. In the trace an island takes an element (``ANCHOR``) in
place of such a parameter, and what it has for a gradient is expanded to the parameter's shape. Here the element itself
becomes the gradient of the plan, where the sparse one is put in its place when a step is run.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from monet.base.graph import Graph, Operator, Ref, Value, operator_inputs
from monet.errors import CaptureError

aten = torch.ops.aten


def anchored_sources(graph: Graph) -> dict[str, str]:
    """By the element that an island takes in place of a parameter, the parameter's source."""
    anchors = (op for op in graph.forward if str(op.target) == "monet.anchor.default")
    return {str(op.outputs[0]): name for op in anchors for name in operator_inputs(op)}


def with_elements_for_sparse(graph: Graph) -> Graph:
    """``graph`` as it was read, with these gradients. Raises ``CaptureError`` where the gradient of a parameter is the
    sum of a sparse and of another one."""
    anchored = set(anchored_sources(graph).values())
    sources = {source.value: source.target for source in graph.sources if source.value in anchored}
    if not sources:
        return graph
    producers = {name: op for op in graph.backward for name in op.outputs if name is not None}
    values, backward, gradients = dict(graph.values), list(graph.backward), dict(graph.gradients)
    for source, target in sources.items():
        gradient = gradients.get(source)
        if gradient is not None:
            gradients[source] = _element(gradient, target, producers, values, backward)
    return replace(graph, values=values, backward=tuple(backward), gradients=gradients)


def _element(
    gradient: str, target: str, producers: dict[str, Operator], values: dict[str, Value], backward: list[Operator]
) -> str:
    """The name of the element that ``gradient`` is made of; sums of several are made sums of their elements."""
    op = producers.get(gradient)
    if op is not None and op.target is aten.expand.default:
        (base,) = operator_inputs(op)
        if base in producers and str(producers[base].target) == "monet.island_backward.default":
            return base
    if op is None or op.target is not aten.add.Tensor or len(operator_inputs(op)) != 2:
        raise CaptureError(
            f"the gradient of {target} is sparse (sparse=True), and the model uses that parameter in other ways, too: "
            "make the embedding with sparse=False"
        )
    first, second = (_element(name, target, producers, values, backward) for name in operator_inputs(op))
    values[gradient] = replace(values[first], name=gradient, storage=gradient)
    backward[backward.index(op)] = replace(op, args=(Ref(first), Ref(second)))
    return gradient

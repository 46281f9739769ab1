"""Gradients that add up over several batches: each is added to its parameter's ``.grad`` as soon as it is made.

backward → gradient of a parameter → ``.grad += gradient`` → its memory is free again

So a step needs one set of gradients besides one of them, as eager's does, and not two sets.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch

from monet.base.graph import PARAMETER, TOTAL, Graph, Operator, Ref, Source, Value
from monet.capture import Captured


@dataclass(eq=False)
class LiveGradient:
    """What the operator must know of a parameter's gradient when a step runs.

    ``fresh``: no gradient is there yet. ``reached``: the loss depends on the parameter; else nothing is added, not even
    zeros.
    """

    target: str
    fresh: bool = field(default=False)
    reached: bool = field(default=True)

    def __repr__(self) -> str:
        return "gradient"


@dataclass(frozen=True, slots=True)
class Accumulate:
    """The operator: does what autograd does with a leaf's gradient, into memory that is there. The first gradient is
    copied, later ones are added."""

    def __str__(self) -> str:
        return "autograd.accumulate"

    __repr__ = __str__

    def __call__(self, live: LiveGradient, total: torch.Tensor, gradient: torch.Tensor) -> None:
        if not live.reached:
            return
        if live.fresh:
            total.copy_(gradient)
        else:
            total.add_(gradient)


@dataclass(frozen=True)
class Accumulated:
    """``captured``: a step that leaves the gradients of parameters in ``.grad``. ``totals``: source value of a
    ``.grad`` → what its operator must know of it. ``gradient_of``: the same → the value that is added to it."""

    captured: Captured
    totals: dict[str, LiveGradient]
    gradient_of: dict[str, str]


def with_accumulation(captured: Captured) -> Accumulated:
    """The step with a source for each parameter's ``.grad``, and an operator that adds to it as early as possible."""
    graph = captured.graph
    made_at = {name: i for i, op in enumerate(graph.backward) for name in op.outputs if name is not None}
    values, sources = dict(graph.values), list(graph.sources)
    totals: dict[str, LiveGradient] = {}
    gradient_of: dict[str, str] = {}
    after: dict[int, list[Operator]] = {}
    for source in graph.sources:
        if source.kind != PARAMETER or source.value not in graph.gradients:
            continue
        name, gradient = f"total {source.target}", graph.gradients[source.value]
        values[name] = _like(name, graph, source)
        sources.append(Source(name, TOTAL, source.target, False))
        totals[name], gradient_of[name] = LiveGradient(source.target), gradient
        after.setdefault(made_at.get(gradient, len(graph.backward)), []).append(
            Operator.writer(f"accumulate {source.target}", Accumulate(), totals[name], Ref(name), Ref(gradient))
        )
    backward: list[Operator] = []
    for i, op in enumerate(graph.backward):
        backward += [op, *after.get(i, ())]
    backward += after.get(len(graph.backward), ())
    kept = {
        s.value: graph.gradients[s.value] for s in graph.sources if s.kind != PARAMETER and s.value in graph.gradients
    }
    changed = replace(graph, values=values, sources=tuple(sources), backward=tuple(backward), gradients=kept)
    return Accumulated(replace(captured, graph=changed), totals, gradient_of)


def _like(name: str, graph: Graph, source: Source) -> Value:
    """The value of a ``.grad``. Autograd lays a leaf's gradient out like the leaf if that has no gaps, else by rows."""
    value = graph.values[source.value]
    meta = torch.empty_strided(value.shape, value.stride, device="meta")
    return value.apart(name, torch.empty_like(meta).stride())

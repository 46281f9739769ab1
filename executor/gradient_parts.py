"""At which steps of a backward pass its gradients can be given away, in parts as large as buckets are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from monet.base.graph import PARAMETER
from monet.executor.step_writer import CopyStep
from monet.ops.catalogue import Catalogue
from monet.ops.offers.implementation import Implementation


@dataclass(frozen=True, slots=True)
class Part:
    """``sources``: whose gradients are given away right after step ``last``."""

    last: int
    sources: tuple[str, ...]


def gradient_parts(
    catalogue: Catalogue, steps: Sequence[Implementation | CopyStep], border: int, part_bytes: Sequence[int]
) -> tuple[Part, ...]:
    """The gradients of a step in the order in which they can be given away; none where there are no gradients.

    ``border``: the first step of the backward pass. ``part_bytes``: a part ends where its parameters' gradients of one
    dtype are that many bytes or more: a number a part, of which the last is for all further parts. The last part ends
    with the last step.

    A gradient can be given away once no step reads it any more: DDP reduces it in place. Nor may a step still read
    the parameter: whoever gets a gradient may update the parameter at once, as optimisers in hooks do.
    """
    graph = catalogue.graph
    last: dict[str, int] = {}
    for i in range(border, len(steps)):
        last.update(dict.fromkeys(_touched(catalogue, steps[i]), i))
    ready: dict[str, int] = {}  # by the storage of a gradient: several gradients in one go together
    for source, gradient in graph.gradients.items():
        storage = catalogue.storage(gradient)
        until = (last.get(storage, border - 1), last.get(catalogue.storage(source), border - 1))
        ready[storage] = max(ready.get(storage, border - 1), *until)
    leaving: dict[int, list[str]] = {}
    for source, gradient in graph.gradients.items():
        leaving.setdefault(ready[catalogue.storage(gradient)], []).append(source)
    parameters = {source.value for source in graph.sources if source.kind == PARAMETER}
    parts: list[Part] = []
    sources: list[str] = []
    filled: dict[object, int] = {}
    for step in sorted(leaving):
        for source in leaving[step]:
            sources.append(source)
            if source in parameters:
                value = graph.values[source]
                filled[value.dtype] = filled.get(value.dtype, 0) + value.numel * value.dtype.itemsize
        if max(filled.values(), default=0) >= part_bytes[min(len(parts), len(part_bytes) - 1)]:
            parts.append(Part(step, tuple(sources)))
            sources, filled = [], {}
    if sources:
        parts.append(Part(len(steps) - 1, tuple(sources)))
    return (*parts[:-1], Part(len(steps) - 1, parts[-1].sources)) if parts else ()


def _touched(catalogue: Catalogue, step: Implementation | CopyStep) -> Iterable[str]:
    """Storages that a step reads or makes."""
    if isinstance(step, CopyStep):
        return (step.storage,)
    names = (*step.inputs(), *(name for name in step.outputs if name is not None))
    more = () if step.overwrites is None else (step.overwrites,)
    return {catalogue.storage(name) for name in (*names, *more)}

"""Gradients in the layout of their parameters, and each in memory of its own.

Where a kernel returns the gradient of a parameter in other strides than the parameter's (a convolution on channels-last
images), or one tensor is the gradient of two parameters, autograd copies it when it arrives at the parameter
(``torch/csrc/autograd/functions/accumulate_grad.h``, the layout contract). Here the copy is an operator of the step, so
that its memory is planned, and what leaves is what ``.grad`` becomes.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from monet.base.graph import PARAMETER, Graph, Operator, Ref, Value

aten = torch.ops.aten
_FORMATS = (torch.contiguous_format, torch.channels_last, torch.channels_last_3d)


def with_own_layout(graph: Graph) -> Graph:
    """``graph`` with a copy after each gradient of a parameter that autograd would copy."""
    copies: dict[str, list[Operator]] = {}
    values, gradients = dict(graph.values), dict(graph.gradients)
    made = {name for op in graph.backward for name in op.outputs if name is not None}
    taken: set[str] = set()
    for source in graph.sources:
        gradient = gradients.get(source.value)
        if source.kind != PARAMETER or gradient is None or gradient not in made:
            continue
        wanted, found = graph.values[source.value], graph.values[gradient]
        if found.shape != wanted.shape:  # it stands for one that no plan holds
            continue
        again = found.storage in taken
        taken.add(found.storage)
        if not again and _obeys(found, wanted):
            continue
        layout = _format(wanted)
        if layout is None:
            continue
        name = f"{gradient}.{source.value}.grad"
        copy = Operator(
            name, aten.clone.default, (Ref(gradient),), (("memory_format", layout),), (name,), single=True, view=False,
            random=False, where="",
        )  # fmt: skip
        copies.setdefault(gradient, []).append(copy)
        values[name] = found.apart(name, wanted.stride)
        gradients[source.value] = name
    if not copies:
        return graph
    backward = []
    for op in graph.backward:
        backward.append(op)
        for output in op.outputs:
            backward += copies.get(output, []) if output is not None else []
    return replace(graph, backward=tuple(backward), values=values, gradients=gradients)


def _obeys(gradient: Value, parameter: Value) -> bool:
    """The layout contract: the parameter's strides, wherever a size is not one."""
    pairs = zip(gradient.shape, gradient.stride, parameter.stride, strict=True)
    return all(size == 1 or mine == theirs for size, mine, theirs in pairs)


def _format(parameter: Value) -> torch.memory_format | None:
    """The memory format whose copies have the parameter's strides; None where there is none, as for a transpose."""
    for layout in _FORMATS:
        rank = {torch.channels_last: 4, torch.channels_last_3d: 5}.get(layout)
        if rank is not None and rank != len(parameter.shape):
            continue
        made = torch.empty(parameter.shape, device="meta").contiguous(memory_format=layout)
        if made.stride() == parameter.stride:
            return layout
    return None

"""The dtypes of normalizations in mixed precision, as PyTorch's CPU kernels have them.

Tracing on fake tensors gets four of them wrong (torch 2.11 to 2.13): a bfloat16 input with float32 weights keeps its
statistics in float32, not in bfloat16; group norm's input gradient is then bfloat16, not float32; and bfloat16 running
statistics stay bfloat16. A plan with the wrong dtype would count other bytes, and the kernels refuse it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from monet.graph import Graph, Operator, Ref, substitute

aten = torch.ops.aten

_FORWARD: dict[Callable[..., Any], tuple[int, ...]] = {
    aten.native_layer_norm.default: (2, 3),  # positions of weight and bias
    aten.native_group_norm.default: (1, 2),
    aten.native_batch_norm.default: (1, 2, 3, 4),  # and of the running statistics
    aten._native_batch_norm_legit_functional.default: (1, 2, 3, 4),
    aten._native_batch_norm_legit.no_stats: (1, 2),
}
_RUNNING = aten._native_batch_norm_legit_functional.default


def with_real_dtypes(graph: Graph) -> Graph:
    """``graph`` with the dtypes that the kernels return, and without casts to a dtype that is there already."""
    changed: dict[str, torch.dtype] = {}  # storage → dtype
    for op in (*graph.forward, *graph.backward):
        for name, dtype in _dtypes(op, graph):
            if graph.values[name].dtype is not dtype:
                changed[graph.storage(name)] = dtype
    if not changed:
        return graph
    values = dict(graph.values)
    for name, value in graph.values.items():
        if value.storage in changed:
            dtype = changed[value.storage]
            size = value.storage_bytes // value.dtype.itemsize * dtype.itemsize
            values[name] = replace(value, dtype=dtype, storage_bytes=size)
    return _without_idle_casts(replace(graph, values=values))


def _dtypes(op: Operator, graph: Graph) -> list[tuple[str, torch.dtype]]:
    """Results of a normalization on the CPU and their dtypes, where tracing may be wrong."""
    positions = _FORWARD.get(op.target)
    if op.target is aten.native_group_norm_backward.default:
        x, result = graph.values[op.args[1].name], op.outputs[0]
        return [(result, x.dtype)] if result is not None and x.device.type == "cpu" else []
    if positions is None:
        return []
    x = graph.values[op.args[0].name]
    if x.device.type != "cpu" or x.dtype not in (torch.bfloat16, torch.float16):
        return []
    given = [graph.values[op.args[p].name] for p in positions if isinstance(op.args[p], Ref)]
    mixed = any(value.dtype is torch.float32 for value in given)
    found = [(name, torch.float32 if mixed else x.dtype) for name in op.outputs[1:3] if name is not None]
    if op.target is _RUNNING:
        running = zip(op.outputs[3:], op.args[3:5], strict=True)
        found += [(name, graph.values[old.name].dtype) for name, old in running if name is not None]
    return found


def _without_idle_casts(graph: Graph) -> Graph:
    """A cast to the dtype that a value has already is the value; not for what leaves the step, which needs memory of
    its own."""
    kept = {*graph.outputs, *graph.gradients.values()}
    viewed = {graph.storage(name) for name in kept if name is not None}
    renamed: dict[str, str] = {}

    def change(op: Operator) -> Operator | None:
        op = replace(op, args=substitute(op.args, renamed))
        if op.target is not aten._to_copy.default or not {k for k, _ in op.kwargs} <= {"dtype", "layout", "device"}:
            return op
        new, old = op.outputs[0], op.args[0].name
        if new is None or new in viewed or graph.storage(old) in {s.value for s in graph.sources}:
            return op
        a, b = graph.values[new], graph.values[old]
        if (a.dtype, a.shape, a.stride, a.device) != (b.dtype, b.shape, b.stride, b.device):
            return op
        renamed[new] = old
        return None

    passes = [
        tuple(new for op in phase if (new := change(op)) is not None) for phase in (graph.forward, graph.backward)
    ]
    values = {
        name: replace(value, storage=graph.storage(renamed[value.storage])) if value.storage in renamed else value
        for name, value in graph.values.items()
    }
    mutations = {source: renamed.get(new, new) for source, new in graph.mutations.items()}
    return replace(graph, forward=passes[0], backward=passes[1], values=values, mutations=mutations)

"""Canonical form of a captured graph: mutation where it belongs, gradients of one operator apart.

Each rewrite keeps the results bit for bit. Split gradients free an operator's input earlier: the
parameter gradient is the last to read it, the input gradient needs only the weight (MONeT, section 4).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from monet.base.graph import Graph, Operator, Ref, operator_inputs, with_names, written_sources
from monet.capture.rewriting.copies import with_small_parts, without_copies
from monet.errors import CaptureError

aten = torch.ops.aten


def canonical(graph: Graph) -> Graph:
    """``graph`` after all rewrites: operators update the buffers, and ``mutations`` is empty.

    Raises ``CaptureError`` where the backward pass reads what the forward pass has changed in place.
    """
    for rewrite in (
        without_copies,
        with_small_parts,
        _batch_norm_in_place,
        _split_convolution_gradients,
        _mutations_as_operators,
        _check_old_contents,
        _prune,
    ):
        graph = rewrite(graph)
    return graph


def _map_operators(graph: Graph, change: Callable[[Operator], tuple[Operator, ...]]) -> Graph:
    return replace(
        graph,
        forward=tuple(new for old in graph.forward for new in change(old)),
        backward=tuple(new for old in graph.backward for new in change(old)),
    )


def _batch_norm_in_place(graph: Graph) -> Graph:
    """The functional batch norm returns new running statistics; the plain one updates them, as eager does."""
    mutations = dict(graph.mutations)
    renamed: dict[str, str] = {}

    def change(op: Operator) -> tuple[Operator, ...]:
        if op.target is aten._native_batch_norm_legit.no_stats:
            x, weight, bias, *rest = op.args
            args = (x, weight, bias, None, None, *rest)
            return (replace(op, target=aten.native_batch_norm.default, args=args),)
        if op.target is not aten._native_batch_norm_legit_functional.default:
            return (op,)
        for position, running in ((3, op.args[3]), (4, op.args[4])):
            new = op.outputs[position]
            if new is None:
                continue
            if mutations.get(running.name) != new:
                return (op,)
        for position, running in ((3, op.args[3]), (4, op.args[4])):
            new = op.outputs[position]
            if new is not None:
                del mutations[running.name]
                renamed[new] = running.name
        return (replace(op, target=aten.native_batch_norm.default, outputs=op.outputs[:3]),)

    graph = _map_operators(graph, change)
    graph = replace(graph, mutations=mutations)
    return _map_operators(graph, lambda op: (_without_running(with_names(op, renamed)),))


def _without_running(op: Operator) -> Operator:
    """Batch norm's backward lists the running statistics but, in training mode, reads the saved ones."""
    if op.target is not aten.native_batch_norm_backward.default or not op.args[7]:
        return op
    return replace(op, args=(*op.args[:3], None, None, *op.args[5:]))


def _split_convolution_gradients(graph: Graph) -> Graph:
    """The gradients of a convolution's parameters and of its input, as two operators."""

    def change(op: Operator) -> tuple[Operator, ...]:
        if op.target is not aten.convolution_backward.default:
            return (op,)
        *head, mask = op.args
        if not (mask[0] and (mask[1] or mask[2])):
            return (op,)
        of_parameters = replace(
            op, name=f"{op.name}_params", args=(*head, [False, mask[1], mask[2]]), outputs=(None, *op.outputs[1:])
        )
        of_input = replace(
            op, name=f"{op.name}_input", args=(*head, [True, False, False]), outputs=(op.outputs[0], None, None)
        )
        return of_parameters, of_input

    return _map_operators(graph, change)


def _mutations_as_operators(graph: Graph) -> Graph:
    """The remaining ``mutations`` as in-place operators at the end of the forward pass."""
    forward = list(graph.forward)
    readers: dict[str, int] = {}
    for op in (*graph.forward, *graph.backward):
        for name in operator_inputs(op):
            readers[name] = readers.get(name, 0) + 1
    made = {name: op for op in forward for name in op.outputs if name is not None}
    kept = {*graph.gradients.values(), *graph.outputs}
    for source, new in graph.mutations.items():
        maker = made.get(new)
        adds = maker is not None and maker.target is aten.add.Tensor and not maker.kwargs
        if (
            maker is not None
            and adds
            and maker.args[0] == Ref(source)
            and readers.get(source) == 1
            and not readers.get(new)
            and new not in kept
        ):
            # A counter (batch norm's number of batches): add in place, with no copy.
            forward[forward.index(maker)] = replace(maker, target=aten.add_.Tensor, outputs=(None,))
            continue
        forward.append(Operator.writer(f"write_back_{source}", aten.copy_.default, Ref(source), Ref(new)))
    return replace(graph, forward=tuple(forward), mutations={})


def _check_old_contents(graph: Graph) -> Graph:
    """Raises ``CaptureError`` where the backward pass reads a source that the forward pass changes, as eager does."""
    written = {graph.storage(name) for name in written_sources(graph)}
    for op in graph.backward:
        for name in operator_inputs(op):
            if graph.storage(name) in written:
                raise CaptureError(
                    f"{op.name} ({op.target}) reads {graph.storage(name)} in the backward pass, which the forward pass "
                    "has changed in place; read a clone of it in the model"
                )
    return graph


def _prune(graph: Graph) -> Graph:
    """The graph without the values that nothing makes any more."""
    made = {name for op in (*graph.forward, *graph.backward) for name in op.outputs if name is not None}
    made |= {source.value for source in graph.sources} | {name for name in graph.tangents if name is not None}
    return replace(graph, values={name: value for name, value in graph.values.items() if name in made})

"""Whether what was traced is the model: code that asks whether it is traced may compute something else then."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch._subclasses.fake_tensor import FakeTensor

from monet.base.graph import BUFFER, CONSTANT, INPUT, PARAMETER, Graph, Operator, Ref, operator_inputs, written_sources
from monet.base.sizes import at_largest, graph_at
from monet.capture import autocast
from monet.capture.captured import Captured
from monet.capture.guards.attribute_writes import another_path
from monet.capture.guards.caches_of_keys import without_caches_of_keys
from monet.capture.guards.model_reads import model_reads
from monet.capture.guards.module_changes import unchanged_around
from monet.capture.guards.module_hooks import as_planned
from monet.capture.guards.python_random import random_state, set_random_state
from monet.capture.islands.state import as_before, keeping_nothing
from monet.errors import CaptureError

logger = logging.getLogger(__name__)

_UNKNOWN = "it is not known whether the trace is the model: %s"
_ISLAND = "monet.island.default"


def require_same_outputs(
    captured: Captured, model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> None:
    """Raises ``CaptureError`` where the forward pass of ``captured`` returns something else than the model's own.

    Both are run once, from the same random state, and keep nothing for a backward pass. That is left out where it would
    say nothing, or do harm: on fake tensors, on a GPU (inputs that the model does not take end the use of it), where
    processes would wait for each other, and where the forward pass changes parameters. It also says nothing where eager
    fails on the inputs, or takes another path on them, or is not the same twice.
    """
    graph = captured.graph if captured.ranges is None else graph_at(captured.graph, at_largest)
    why = _why_not(graph, model, args, kwargs)
    if why:
        logger.info(_UNKNOWN, why)
        return
    try:
        own = _own(model, args, kwargs)
        found = _of_graph(captured, graph, model, pytree.tree_leaves((tuple(args), dict(kwargs))))
    except Exception as error:  # whatever the model raises
        logger.info(_UNKNOWN, f"{type(error).__name__}: {error}")
        return
    if another_path(captured.writes, found) is not None:
        return
    traced = [output for output in found[: captured.out_spec.num_leaves] if isinstance(output, torch.Tensor)]
    difference = _difference(own, traced)
    if not difference:
        return
    if not _difference(_own(model, args, kwargs, with_caches=False), traced):
        raise CaptureError(
            "no plan can hold the model's cache of keys and values, and without it the model's outputs are others. "
            "Check its configuration (a layer that runs twice needs two places in the cache), or set "
            "model.config.use_cache = False, which eager PyTorch then heeds, too"
        )
    if _difference(own, _own(model, args, kwargs)):
        logger.info(_UNKNOWN, "eager's outputs are not the same twice")
        return
    raise CaptureError(
        f"the model is another one while it is traced: {difference}. Some of its code asks whether it is traced "
        "(torch.compiler.is_compiling, or whether a tensor is a fake one) and then computes something else; pass what "
        "it then leaves out or makes up (masks, token types), or change that code"
    )


def _why_not(graph: Graph, model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    leaves = (leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor))
    tensors = [*model.parameters(), *model.buffers(), *leaves]
    if any(isinstance(tensor, FakeTensor) for tensor in tensors):
        return "its tensors have no values"
    if any(tensor.device.type != "cpu" for tensor in tensors):
        return "it is not on the CPU"
    if any("c10d" in op.signature for op in graph.forward):
        return "its forward pass waits for other processes"
    written = written_sources(graph)
    if any(source.value in written for source in graph.sources if source.kind not in (BUFFER, INPUT)):
        return "its forward pass changes parameters or constants"
    return ""


def _own(
    model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], *, with_caches: bool = True
) -> list[torch.Tensor]:
    """The tensors that the model returns, computed as in training. The model and the random states are as before."""
    given = pytree.tree_map(_copied, (tuple(args), dict(kwargs)))
    randomness = random_state()
    try:
        with ExitStack() as stack:
            if not with_caches:
                stack.enter_context(without_caches_of_keys(model))
            around = unchanged_around(model, model_reads(model))
            for context in (as_before(model), as_planned(model), around, torch.enable_grad(), keeping_nothing()):
                stack.enter_context(context)
            returned = model(*given[0], **given[1])
            return [leaf.detach() for leaf in pytree.tree_leaves(returned) if isinstance(leaf, torch.Tensor)]
    finally:
        set_random_state(randomness)


def _copied(leaf: Any) -> Any:
    """The model may change its inputs in place."""
    return leaf.detach().clone().requires_grad_(leaf.requires_grad) if isinstance(leaf, torch.Tensor) else leaf


def _of_graph(captured: Captured, graph: Graph, model: torch.nn.Module, leaves: Sequence[Any]) -> list[Any]:
    """The flattened outputs of the graph's forward pass, the further ones included."""
    places: dict[str, Any] = {
        PARAMETER: dict(model.named_parameters(remove_duplicate=False)),
        BUFFER: dict(model.named_buffers(remove_duplicate=False)),
        CONSTANT: captured.constants,
    }
    values: dict[str, torch.Tensor] = {}
    for source in graph.sources:
        if source.kind == INPUT:
            values[source.value] = _copied(leaves[int(source.target)])
        elif source.kind in places:
            values[source.value] = places[source.kind][source.target]
    last = {name: position for position, op in enumerate(graph.forward) for name in operator_inputs(op)}
    kept = set(graph.outputs)
    with as_before(model), torch.no_grad(), autocast.ignored():
        for position, op in enumerate(graph.forward):
            results = _called(captured, op, values)
            values.update({name: result for name, result in zip(op.outputs, results, strict=False) if name is not None})
            for name in {*operator_inputs(op), *op.outputs} - kept:
                if name is not None and last.get(name, position) <= position:
                    values.pop(name, None)
    return [None if name is None else values[name].detach() for name in graph.outputs]


def _called(captured: Captured, op: Operator, values: Mapping[str, torch.Tensor]) -> Sequence[Any]:
    def value(leaf: Any) -> Any:
        return values[leaf.name] if isinstance(leaf, Ref) else leaf

    args, kwargs = pytree.tree_map(value, (op.args, dict(op.kwargs)))
    if op.signature == _ISLAND:
        island = captured.islands[args[1]]
        returned = pytree.tree_leaves(island.called(args[0][: len(island.arguments)]))
        return [leaf for leaf in returned if isinstance(leaf, torch.Tensor)]
    result = op.target(*args, **kwargs)
    return (result,) if op.single else result


def _difference(own: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> str:
    """In what the outputs differ by more than kernels of another path do; "" where they do not."""
    if len(own) != len(others):
        return f"it returns {len(others)} tensors, and eager {len(own)}"
    pairs = zip(own, others, strict=True)
    return next((found for number, pair in enumerate(pairs) if (found := _apart(f"output {number}", *pair))), "")


def _apart(name: str, own: torch.Tensor, other: torch.Tensor) -> str:
    """By more than half of the digits of the larger tensor's numbers."""
    if (own.shape, own.dtype) != (other.shape, other.dtype):
        kinds = (f"{tuple(tensor.shape)} {tensor.dtype}" for tensor in (other, own))
        return f"{name} is {' and eager '.join(kinds)}"
    if not own.numel() or torch.equal(own, other):
        return ""
    if not (own.is_floating_point() or own.is_complex()):
        return f"{name} has other values than eager's"
    largest = float(own.abs().nan_to_num(0.0, 0.0, 0.0).max())
    if torch.allclose(own, other, rtol=0.0, atol=torch.finfo(own.dtype).eps ** 0.5 * largest, equal_nan=True):
        return ""
    off = float((own - other).abs().nan_to_num(0.0, 0.0, 0.0).max())
    return f"{name} differs from eager's by up to {off:.3g}, and its largest number is {largest:.3g}"

"""Whether what was traced is the model: code that asks whether it is traced may compute something else then."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.utils._pytree as pytree
from torch._subclasses.fake_tensor import FakeTensor
from tqdm import tqdm

from monet.base.graph import BUFFER, CONSTANT, INPUT, PARAMETER, Graph, Operator, Ref, operator_inputs, written_sources
from monet.base.progress_line import SHARE_FORMAT, is_shown
from monet.base.sizes import at_largest, graph_at
from monet.capture import autocast
from monet.capture.captured import Captured
from monet.capture.effects.attribute_writes import another_path
from monet.capture.effects.held_state import all_put_back
from monet.capture.effects.module_changes import unchanged_around
from monet.capture.effects.python_random import random_state, set_random_state
from monet.capture.guards.caches_of_keys import without_caches_of_keys
from monet.capture.guards.model_reads import model_reads
from monet.capture.guards.module_hooks import as_planned
from monet.capture.guards.tensor_ties import memory
from monet.capture.islands.state import as_before, keeping_nothing, parted
from monet.errors import CaptureError

if TYPE_CHECKING:
    from monet.capture.islands.island import Island

logger = logging.getLogger(__name__)

SHOWN_AFTER_S = 1.0
_CACHES = (
    "no plan can hold the model's cache of keys and values, and without it the model's outputs are others. Check its "
    "configuration (a layer that runs twice needs two places in the cache), or set model.config.use_cache = False, "
    "which eager PyTorch then heeds, too"
)
_ASKS = (
    "Some of its code asks whether it is traced (torch.compiler.is_compiling, or whether a tensor is a fake one) and "
    "then computes something else; pass what it then leaves out or makes up (masks, token types), or change that code. "
    "Or its forward pass sets the seed (torch.manual_seed), which a plan does not: leave that to the training loop"
)
_PADS = (
    "A TransformerEncoder in eval mode writes zeros where its input is padded, which a trace does not: set "
    "torch.backends.mha.set_fastpath_enabled(False), which eager then heeds, too"
)


@dataclass(frozen=True)
class _Results:
    """Of a forward pass: the tensors that it returns; in which structure, beside which other leaves (by their
    positions); the buffers that it writes, by name."""

    tensors: list[torch.Tensor]
    structure: tuple[pytree.TreeSpec, dict[int, Any]]
    buffers: dict[str, torch.Tensor]


def require_same_outputs(
    captured: Captured,
    model: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    progress: bool = False,
) -> bool:
    """Raises ``CaptureError`` where the forward pass of ``captured`` returns something else than the model's own, or
    leaves something else in its buffers. Whether that is known now.

    Both are run once, from the same random state, and keep nothing for a backward pass. That is left out where it would
    say nothing, or do harm: on fake tensors, on a GPU (inputs that the model does not take end the use of it), where
    processes would wait for each other, and where the forward pass changes parameters. It also says nothing where eager
    fails on the inputs, or takes another path on them, or is not the same twice. ``progress``: show it on stderr where
    it takes long.
    """
    graph = captured.graph if captured.ranges is None else graph_at(captured.graph, at_largest)
    refusal, unknown = "", _unknown(graph, model, args, kwargs)
    if not unknown:
        with tqdm(
            total=2 * len(graph.forward), desc="comparing with eager", delay=SHOWN_AFTER_S, leave=False,
            disable=not is_shown(progress), bar_format=SHARE_FORMAT,
        ) as bar:  # fmt: skip
            try:
                refusal, unknown = _compared(captured, graph, model, args, kwargs, bar)
            except Exception as error:  # whatever the model raises
                unknown = f"{type(error).__name__}: {error}"
    if refusal:
        raise CaptureError(refusal)
    if unknown:
        logger.info("it is not known whether the trace is the model: %s", unknown)
    return not unknown


def _compared(
    captured: Captured,
    graph: Graph,
    model: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    bar: tqdm[Any],
) -> tuple[str, str]:
    """Why the model is refused, and why that is not known; "" for what is not so."""
    written = written_sources(graph)
    buffers = [source.target for source in graph.sources if source.value in written and source.kind == BUFFER]
    own = _own(model, args, kwargs, buffers)
    bar.update(len(graph.forward))
    outputs, left = _of_graph(captured, graph, model, pytree.tree_leaves((tuple(args), dict(kwargs))), buffers, bar)
    if another_path(captured.writes, outputs) is not None:
        return "", "eager takes another path on these inputs"
    returned = outputs[: captured.out_spec.num_leaves]
    literals = {i: captured.output_literals.get(i) for i, output in enumerate(returned) if output is None}
    tensors = [output for output in returned if output is not None]
    traced = _Results(tensors, (captured.out_spec, literals), left)
    difference = _difference(own, traced)
    if not difference:
        return "", ""
    bare = _own(model, args, kwargs, buffers, with_caches=False)
    if not _difference(bare, traced):
        # What it returns beside the cache may be the same.
        return _CACHES if _difference(own, bare, but_structure=True) else "", ""
    again = _own(model, args, kwargs, buffers)
    if _difference(own, again, but_structure=True):
        return "", "eager's results are not the same twice"
    # A cache of keys and values is another object each time. What is beside it is compared.
    if _difference(own, again) and not _difference(own, traced, but_structure=True):
        return "", "what eager's results are arranged in is not the same twice"
    pads = any(isinstance(part, torch.nn.TransformerEncoderLayer) and not part.training for part in model.modules())
    return f"the model is another one while it is traced: {difference}. {_PADS if pads else _ASKS}", ""


def _unknown(graph: Graph, model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Why the two are not compared; "" where they are."""
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
    model: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    buffers: Sequence[str],
    *,
    with_caches: bool = True,
) -> _Results:
    """What the model's own forward pass makes, as in training. The model, its inputs and the random states are as
    before."""
    copies: dict[int, torch.Tensor] = {}

    def copied(leaf: Any) -> Any:  # one tensor that is given twice stays one
        return copies.setdefault(id(leaf), _copied(leaf)) if isinstance(leaf, torch.Tensor) else leaf

    given = pytree.tree_map(copied, (tuple(args), dict(kwargs)))
    randomness, cast = random_state(), autocast.state("cpu")
    try:
        with ExitStack() as stack:
            if not with_caches:
                stack.enter_context(without_caches_of_keys(model))
            if cast is not None:  # eager's casts of weights are for eager's own use
                stack.enter_context(autocast.entered({**cast, "cache": False}, "cpu"))
            around = unchanged_around(model, model_reads(model))
            for context in (
                all_put_back(model),
                as_before(model),
                as_planned(model),
                around,
                torch.enable_grad(),
                keeping_nothing(),
            ):
                stack.enter_context(context)
            tensors, literals, spec = parted(model(*given[0], **given[1]))
            return _Results(_as_now(model, tensors), (spec, literals), _clones(model, buffers))
    finally:
        set_random_state(randomness)


def _as_now(model: torch.nn.Module, tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Buffers are put back in place: one that is returned, or a part of it, would be what it was before."""
    held = {memory(buffer) for buffer in model.buffers()}
    return [tensor.detach().clone() if memory(tensor) in held else tensor.detach() for tensor in tensors]


def _clones(model: torch.nn.Module, buffers: Sequence[str]) -> dict[str, torch.Tensor]:
    held = dict(model.named_buffers(remove_duplicate=False))
    return {name: held[name].detach().clone() for name in buffers}


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    """In the same geometry: kernels, and a model's code, may look at it. The model may change its inputs in place."""
    own = tensor.detach()
    if tensor.numel() and not (tensor.is_conj() or tensor.is_neg()):
        reach = 1 + sum((size - 1) * step for size, step in zip(own.shape, own.stride(), strict=True))
        own = own.as_strided((reach,), (1,)).clone().as_strided(own.shape, own.stride())
    else:
        own = own.clone()
    return own.requires_grad_(tensor.requires_grad)


def _of_graph(
    captured: Captured,
    graph: Graph,
    model: torch.nn.Module,
    leaves: Sequence[Any],
    buffers: Sequence[str],
    bar: tqdm[Any],
) -> tuple[list[Any], dict[str, torch.Tensor]]:
    """The flattened outputs of the graph's forward pass, the further ones included, and the buffers that it writes."""
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
            bar.update()
        made = iter(_as_now(model, (values[name] for name in graph.outputs if name is not None)))
        return [None if name is None else next(made) for name in graph.outputs], _clones(model, buffers)


def _called(captured: Captured, op: Operator, values: Mapping[str, torch.Tensor]) -> Sequence[Any]:
    def value(leaf: Any) -> Any:
        return values[leaf.name] if isinstance(leaf, Ref) else leaf

    args, kwargs = pytree.tree_map(value, (op.args, dict(op.kwargs)))
    island = _island_of(captured, op, args)
    if island is not None:
        # Recorded as in a step: recurrent layers run by other kernels where nothing is.
        given = [tensor.detach() for tensor in args[0][: len(island.arguments)]]
        with torch.set_grad_enabled(island.recorded), keeping_nothing():
            returned = pytree.tree_leaves(island.called(given))
        return [leaf.detach() for leaf in returned if isinstance(leaf, torch.Tensor)]
    result = op.target(*args, **kwargs)
    return (result,) if op.single else result


def _island_of(captured: Captured, op: Operator, args: tuple[Any, ...]) -> Island | None:
    if not captured.islands:
        return None
    # What it imports registers operators with torch: only where there are islands.
    from monet.capture.islands.binding import island_of

    return island_of(op.target, args, captured.islands)


def _difference(own: _Results, other: _Results, *, but_structure: bool = False) -> str:
    """In what they differ by more than kernels of another path do; "" where they do not."""
    if len(own.tensors) != len(other.tensors):
        return f"it returns {len(other.tensors)} tensors, and eager {len(own.tensors)}"
    pairs = [(f"output {n}", *pair) for n, pair in enumerate(zip(own.tensors, other.tensors, strict=True))]
    pairs += [(f"the buffer {name} that it writes", own.buffers[name], other.buffers[name]) for name in own.buffers]
    found = next((apart for pair in pairs if (apart := _apart(*pair))), "")
    if not found and not but_structure and own.structure != other.structure:
        return "its outputs are arranged otherwise than eager's"
    return found


def _apart(name: str, own: torch.Tensor, other: torch.Tensor) -> str:
    """By more than half of the digits of the larger tensor's numbers."""
    if (own.shape, own.dtype) != (other.shape, other.dtype):
        kinds = (f"{tuple(tensor.shape)} {tensor.dtype}" for tensor in (other, own))
        return f"{name} is {' and eager '.join(kinds)}"
    if not own.numel():
        return ""
    if not (own.is_floating_point() or own.is_complex()):
        return "" if torch.equal(own, other) else f"{name} has other values than eager's"
    rounding = torch.finfo(own.dtype).eps ** 0.5
    if own.itemsize == 1:  # no operators are there for these
        own, other = own.float(), other.float()
    largest = float(own.abs().nan_to_num(0.0, 0.0, 0.0).max())
    if torch.allclose(own, other, rtol=0.0, atol=rounding * largest, equal_nan=True):
        return ""
    off = float((own - other).abs().nan_to_num(0.0, 0.0, 0.0).max())
    return f"{name} differs from eager's by up to {off:.3g}, and its largest number is {largest:.3g}"

"""Every implementation of every operator of one graph, by name: what plans choose from."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

import torch

from monet.base.graph import Graph, Operator, Value
from monet.ops.compressed import half, sparse
from monet.ops.compressed.packing import replaces
from monet.ops.fusion import offers as fusion
from monet.ops.fusion.compiling import can_compile
from monet.ops.fusion.regions import with_regions
from monet.ops.offers.context import Context
from monet.ops.offers.generic import runs_once
from monet.ops.offers.implementation import Guard, Implementation, SavedIntermediate
from monet.ops.offers.offering import Offering
from monet.ops.offers.record import Record
from monet.ops.registry import GENERIC, record
from monet.ops.update_order import with_late_updates

Named = Mapping[str, Implementation]

# How many times its limit a scale must be when a plan is made that divides by it: training changes scales.
SCALE_MARGIN = 10.0


@dataclass(frozen=True)
class Catalogue:
    """By operator name, then by implementation name. ``recompute`` has no entry for what cannot be run again.

    ``values``: the graph's, with those that implementations add (bit masks, generator states).
    ``intermediates``: by operator name; an intermediate is named by its value.
    """

    graph: Graph
    values: Mapping[str, Value]
    forward: Mapping[str, Named]
    recompute: Mapping[str, Named]
    backward: Mapping[str, Named]
    intermediates: Mapping[str, tuple[SavedIntermediate, ...]]

    def storage(self, value: str) -> str:
        return self.values[value].storage


def catalogue(
    graph: Graph, offering: Offering = Offering(), *, scales: Callable[[Guard], float] | None = None
) -> Catalogue:
    """What ``offering`` says of every operator of ``graph``.

    ``scales``: what a guard bounds, as it is now. What divides by a source is offered if that is well above its
    limit (zero-initialised scales of residual branches are not); None: in any case, and each step checks the limit.
    """
    if not offering.fused or not can_compile(graph.device.type):
        return _catalogue(graph, replace(offering, fused=False), scales)
    fused = _catalogue(with_regions(graph), offering, scales)
    # A region reads a weight later than its operators did, and an update in between would have changed it.
    late = with_late_updates(fused)
    return fused if late is fused.graph else _catalogue(late, offering, scales)


def _catalogue(graph: Graph, offering: Offering, scales: Callable[[Guard], float] | None) -> Catalogue:
    context = Context(graph)
    values = dict(graph.values)
    forward: dict[str, Named] = {}
    recompute: dict[str, Named] = {}
    backward: dict[str, Named] = {}
    intermediates: dict[str, tuple[SavedIntermediate, ...]] = {}

    def named(offers: list[Implementation]) -> Named:
        allowed = [offer for offer in offers if offer.exact or not offering.exact]
        return {offer.name: offer for offer in allowed if _may_divide(offer, scales)}

    for op in graph.forward:
        if op.view:
            continue
        offered = _record(op, backward=False)
        one_kernel = fusion.alone(op, context) if offering.fused else []
        forward[op.name] = named([*offered.forward(op, context), *one_kernel])
        again = offered.recompute(op, context)
        if again is not None:
            # Not the one kernel: batch norm's would count the batch once more.
            recompute[op.name] = named([_without(context.escaping, run, values) for run in again])
        made = offered.intermediates(op, context)
        if made:
            intermediates[op.name] = tuple(made)
            values.update({saved.value.name: saved.value for saved in made})
        if op.random and not runs_once(op):
            state = _generator_state(op, graph)
            values[state.name] = state
    for op in graph.backward:
        if not op.view:
            # An operator can occur in the other pass than its own: a ReLU in the gradient of another operator.
            offered = _record(op, backward=True)
            one_kernel = fusion.alone(op, context) if offering.fused else []
            backward[op.name] = named([*offered.backward(op, context), *one_kernel])
    packings = sparse.packings(context, offering.density) if "sparse" in offering.storage else []
    packings += half.packings(context) if "half" in offering.storage and not offering.exact else []
    for packing in [p for p in packings if replaces(p, backward, values)]:
        intermediates[packing.operator] = (*intermediates.get(packing.operator, ()), packing.saved)
        values[packing.saved.value.name] = packing.saved.value
        for node, reader in packing.readers.items():
            backward[node] = {**backward[node], reader.name: reader}
    return Catalogue(graph, values, forward, recompute, backward, intermediates)


def _record(op: Operator, *, backward: bool) -> Record:
    fused = fusion.record(op)
    if fused is not None:
        return fused
    found = record(op)
    return found if op.target in (found.backward_targets if backward else found.forward_targets) else GENERIC


def _without(escaping: Collection[str], run: Implementation, values: Mapping[str, Value]) -> Implementation:
    """A recomputation without the results that left the step when the operator first ran: it would make them outside
    the arena once more (a dropout whose mask is made again, and whose output is the model's)."""
    if len(run.outputs) < 2:
        return run
    kept = tuple(None if n is None or (n in values and values[n].storage in escaping) else n for n in run.outputs)
    return replace(run, outputs=kept)


def _may_divide(offer: Implementation, scales: Callable[[Guard], float] | None) -> bool:
    """Whether the scale that the offer divides by, if any, is large enough now; NaN is not."""
    if offer.guard is None or scales is None:
        return True
    return scales(offer.guard) >= SCALE_MARGIN * offer.guard.least


def _generator_state(op: Operator, graph: Graph) -> Value:
    device = next((graph.values[n].device for n in op.outputs if n is not None), torch.device("cpu"))
    # torch.get_rng_state: Mersenne twister on CPU, Philox seed and offset on CUDA; both CPU tensors.
    size = 16 if device.type == "cuda" else torch.get_rng_state().numel()
    name = f"{op.name}.rng"
    return Value(name, (size,), (1,), 0, torch.uint8, torch.device("cpu"), name, size)

"""What PyTorch's own step holds at most, as far as its operators tell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from monet.base.graph import Graph, Operator, operator_inputs, references
from monet.base.measurement import Request
from monet.ops.kinds import MATMUL, kind
from monet.pipeline.lowering import Lowered
from monet.pipeline.schedule import Call, calls
from monet.pipeline.unrolling import unroll
from monet.planner.layout.load import load_over_time
from monet.planner.solution import Solution
from monet.plans.format import aligned

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class EagerStep:
    """``blocks``: begin and end (ticks, the end excluded) and bytes of all that eager's step asks for, as far as its
    operators tell. ``held_bytes``: what is there before and after it, parameters and inputs."""

    blocks: Sequence[tuple[int, int, int]]
    held_bytes: int

    @property
    def peak_bytes(self) -> int:
        """What it holds at once at most."""
        _, load = load_over_time(*np.array(self.blocks, np.int64).T)
        return self.held_bytes + int(load.max())


def eager_step(eager: Solution, lowered: Lowered) -> EagerStep:
    """What eager's step holds: a plan counts outputs and gradients from the beginning, since its arena is
    there until the end, and eager has each from when it is made.

    ``eager`` is a solution of ``lowered``, which keeps what autograd does. Freed is what no operator reads any more;
    what the model's own variables still hold is not seen, so that a measured peak can be a little above. Where
    gradients add up over batches, the sums of the batches before are there all the time, as are gradients that the
    loop keeps.

    Where a plan's kernels differ, eager's count: on the CPU a dropout mask is as wide as its input, and a sum of
    gradients that begins with a view gets memory of its own. The gradients that one node of autograd's graph makes are
    several operators here: what the node has saved, as a weight that autocast has cast, and the gradient that it was
    given are there until its last one. A convolution's makes the input's first.
    """
    graph = lowered.catalogue.graph
    gradients = {graph.storage(n) for n in graph.gradients.values()}
    operators = {op.name: op for op in graph.backward}
    schedule = _inputs_first(calls(eager.runs, lowered), operators)
    unrolled = unroll(schedule, lowered)
    masks = _masks(graph)
    widened = {f"{op.name}.temporary" for op in (*graph.forward, *graph.backward) if _uses_mask(op, graph, masks)}
    until = {
        first: unrolled.steps[first + 1].begin + schedule[first + 1].measured.ticks
        for first in _of_one_node(schedule, operators, graph)
    }
    alive = [
        (
            buffer.begin,
            max(buffer.end, until.get(buffer.last, 0)) if buffer.first < buffer.last else buffer.end,
            masks.get(buffer.value, buffer.bytes),
        )
        for buffer in unrolled.buffers
        if buffer.value not in widened
    ]
    end = max(step.begin for step in unrolled.steps) + max(call.measured.ticks for call in schedule)
    for call, step in zip(schedule, unrolled.steps, strict=True):
        for request, id in zip(call.measured.requests, step.requests, strict=True):
            if id is None and _storage(graph, call, request) not in gradients:
                alive.append((step.begin + request.begin, end, request.bytes))
        alive.append((step.begin, step.begin + call.measured.ticks, _copied_bytes(graph, call)))
    backward = next((step.begin for step in unrolled.steps if step.kind != "forward"), 0)
    alive.append((backward, end, lowered.fixed["output_gradients"]))
    held = lowered.problem.fixed_bytes - sum(lowered.fixed[k] for k in ("outputs", "output_gradients"))
    return EagerStep(alive, held)


def _inputs_first(schedule: Sequence[Call], operators: Mapping[str, Operator]) -> list[Call]:
    """The same with a convolution's gradient of its input before those of its parameters, where a plan has these apart
    and PyTorch makes them in one call."""
    found = list(schedule)
    for at in range(len(found) - 1):
        first, second = (operators.get(call.node) for call in found[at : at + 2])
        if _is_split_convolution(first, second) and second is not None and second.args[-1][0]:
            found[at : at + 2] = found[at + 1], found[at]
    return found


def _is_split_convolution(first: Operator | None, second: Operator | None) -> bool:
    """Whether these are the gradients of one convolution."""
    return (
        first is not None
        and second is not None
        and first.target is second.target is aten.convolution_backward.default
        and first.args[:-1] == second.args[:-1]
    )


def _of_one_node(schedule: Sequence[Call], operators: Mapping[str, Operator], graph: Graph) -> list[int]:
    """The calls that make, with the one after each, the gradients of one convolution or product: two products in a row
    that read one gradient."""
    made = {graph.storage(name) for op in graph.backward for name in op.outputs if name is not None}
    made |= {graph.storage(name) for name in graph.tangents if name is not None}
    found: list[int] = []
    for at in range(len(schedule) - 1):
        if found and found[-1] == at - 1:
            continue
        first, second = (operators.get(call.node) for call in schedule[at : at + 2])
        if first is None or second is None:
            continue
        if _is_split_convolution(first, second):
            found.append(at)
        elif kind(first) == kind(second) == MATMUL:
            read = [{graph.storage(name) for name in operator_inputs(op)} & made for op in (first, second)]
            if read[0] & read[1]:
                found.append(at)
    return found


def _storage(graph: Graph, call: Call, request: Request) -> str | None:
    """The storage that a request is for, None for a temporary."""
    name = None if request.output is None else call.implementation.outputs[request.output]
    return None if name is None else graph.storage(name)


def _masks(graph: Graph) -> dict[str, int]:
    """Storage of each dropout's mask → its bytes in eager, which multiplies by it where a plan has one byte an
    element."""
    if graph.device.type != "cpu":
        return {}
    found = {}
    for op in graph.forward:
        if op.target is aten.native_dropout.default and op.outputs[1] is not None:
            mask, (given,) = graph.values[op.outputs[1]], references(op.args[0])
            found[mask.storage] = aligned(mask.numel * graph.values[given].dtype.itemsize)
    return found


def _uses_mask(op: Operator, graph: Graph, masks: Mapping[str, int]) -> bool:
    """Whether a plan makes the wide mask for as long as this operator takes."""
    if op.target is aten.native_dropout.default:
        return op.outputs[1] is not None and graph.storage(op.outputs[1]) in masks
    if op.target is not aten.native_dropout_backward.default:
        return False
    return any(graph.storage(name) in masks for name in references(op.args[1]))


def _copied_bytes(graph: Graph, call: Call) -> int:
    """Of a sum of gradients that a plan makes in place: what autograd makes anew, where the first term is a view."""
    run = call.implementation
    if call.kind != "backward" or run.overwrites is None or run.call is not aten.add_.Tensor:
        return 0
    return graph.values[run.overwrites].storage_bytes if graph.storage(run.overwrites) != run.overwrites else 0

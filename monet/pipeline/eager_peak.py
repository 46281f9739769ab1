"""What PyTorch's own step holds at most, as far as its operators tell."""

from __future__ import annotations

import numpy as np
import torch

from monet.graph import Graph, references
from monet.measurement import Request
from monet.pipeline.lowering import Lowered
from monet.pipeline.schedule import Call, calls
from monet.pipeline.unrolling import unroll
from monet.planner.layout.load import load_over_time
from monet.planner.solution import Solution
from monet.plans.plan import aligned

aten = torch.ops.aten


def eager_peak_bytes(eager: Solution, lowered: Lowered) -> int:
    """The peak of eager's step, in bytes: a plan counts outputs and gradients from the beginning, since its arena is
    there until the end, and eager has each from when it is made.

    ``eager`` is a solution of ``lowered``, which keeps what autograd does. Freed is what no operator reads any more;
    what the model's own variables still hold is not seen, so that a measured peak can be a little above. Where
    gradients add up over batches, the sums of the batches before are there all the time, as are gradients that the
    loop keeps.

    Where a plan's kernels differ, eager's count: on the CPU a dropout mask is as wide as its input, and a sum of
    gradients that begins with a view gets memory of its own.
    """
    graph = lowered.catalogue.graph
    gradients = {graph.storage(n) for n in graph.gradients.values()}
    schedule = calls(eager.runs, lowered)
    unrolled = unroll(schedule, lowered)
    masks = _masks(graph)
    alive = [(buffer.begin, buffer.end, masks.get(buffer.value, buffer.bytes)) for buffer in unrolled.buffers]
    end = max(step.begin for step in unrolled.steps) + max(call.measured.ticks for call in schedule)
    for call, step in zip(schedule, unrolled.steps, strict=True):
        for request, id in zip(call.measured.requests, step.requests, strict=True):
            if id is None and _storage(graph, call, request) not in gradients:
                alive.append((step.begin + request.begin, end, request.bytes))
        alive.append((step.begin, step.begin + call.measured.ticks, _copied_bytes(graph, call)))
    backward = next((step.begin for step in unrolled.steps if step.kind != "forward"), 0)
    alive.append((backward, end, lowered.fixed["output_gradients"]))
    held = lowered.problem.fixed_bytes - sum(lowered.fixed[k] for k in ("outputs", "output_gradients"))
    _, load = load_over_time(*np.array(alive, np.int64).T)
    return held + int(load.max())


def _storage(graph: Graph, call: Call, request: Request) -> str | None:
    """The storage that a request is for, None for a temporary."""
    name = None if request.output is None else call.implementation.outputs[request.output]
    return None if name is None else graph.storage(name)


def _masks(graph: Graph) -> dict[str, int]:
    """Storage of each dropout's mask → its bytes in eager, which multiplies by it where a plan has one byte an
    element."""
    found = {}
    for op in graph.forward:
        if op.target is aten.native_dropout.default and graph.device.type == "cpu" and op.outputs[1] is not None:
            mask, (given,) = graph.values[op.outputs[1]], references(op.args[0])
            found[mask.storage] = aligned(mask.numel * graph.values[given].dtype.itemsize)
    return found


def _copied_bytes(graph: Graph, call: Call) -> int:
    """Of a sum of gradients that a plan makes in place: what autograd makes anew, where the first term is a view."""
    run = call.implementation
    if call.kind != "backward" or run.overwrites is None or run.call is not aten.add_.Tensor:
        return 0
    return graph.values[run.overwrites].storage_bytes if graph.storage(run.overwrites) != run.overwrites else 0

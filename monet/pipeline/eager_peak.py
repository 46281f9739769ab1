"""What PyTorch's own step holds at most, as far as its operators tell."""

from __future__ import annotations

import numpy as np

from monet.graph import TOTAL
from monet.pipeline.lowering import Lowered
from monet.pipeline.schedule import calls
from monet.pipeline.unrolling import unroll
from monet.planner.layout.load import load_over_time
from monet.planner.solution import Solution


def eager_peak_bytes(eager: Solution, lowered: Lowered) -> int:
    """The peak of eager's step, in bytes: a plan counts outputs and gradients from the beginning, since its arena is
    there until the end, and eager has each from when it is made.

    ``eager`` is a solution of ``lowered``, which keeps what autograd does. Freed is what no operator reads any more;
    what the model's own variables still hold is not seen, so that a measured peak can be a little above. Where
    gradients add up over batches, the sums of the batches before are there all the time.
    """
    schedule = calls(eager.runs, lowered)
    unrolled = unroll(schedule, lowered)
    alive = [(buffer.begin, buffer.end, buffer.bytes) for buffer in unrolled.buffers]
    end = max(step.begin for step in unrolled.steps) + max(call.measured.ticks for call in schedule)
    for call, step in zip(schedule, unrolled.steps, strict=True):
        for request, id in zip(call.measured.requests, step.requests, strict=True):
            if id is None:
                alive.append((step.begin + request.begin, end, request.bytes))
    backward = next((step.begin for step in unrolled.steps if step.kind != "forward"), 0)
    alive.append((backward, end, lowered.fixed["output_gradients"]))
    held = lowered.problem.fixed_bytes - sum(lowered.fixed[k] for k in ("outputs", "output_gradients", "gradients"))
    graph = lowered.catalogue.graph
    sums = {graph.storage(source.value) for source in graph.sources if source.kind == TOTAL}
    held += sum(graph.values[storage].storage_bytes for storage in sums)
    _, load = load_over_time(*np.array(alive, np.int64).T)
    return held + int(load.max())

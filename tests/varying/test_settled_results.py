"""Results of kernels that ask in another order than at the largest shape, which the plan knows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch.export import Dim

from monet.capture import capture
from monet.capture.varying_inputs import ranges_of
from monet.executor.varying import CallShape, Varying
from monet.native.allocator import Arena


@dataclass
class _Memory:
    """As an arena says what is in it."""

    held: torch.Tensor

    def contains(self, pointer: int) -> bool:
        return 0 <= self.offset(pointer) < self.held.nbytes

    def offset(self, pointer: int) -> int:
        return pointer - self.held.data_ptr()


def test_a_result_in_another_requests_place_is_moved_out_of_it() -> None:
    memory = _Memory(torch.zeros(64))
    model, x = torch.nn.Linear(4, 4), torch.randn(8, 4)
    ranges = ranges_of(model, (x,), {}, {"input": {0: Dim("batch", min=1, max=8)}})
    captured = capture(model, (x,), ranges=ranges)
    varying = Varying(ranges, CallShape(captured.graph, ranges), cast(Arena, memory), places={(3, "y"): 64})
    own, others, elsewhere = memory.held[16:20], memory.held[32:36].fill_(7), torch.ones(4)
    assert varying.settled(3, "y", own) is own
    assert varying.settled(3, "y", elsewhere) is elsewhere  # nobody else is given that memory
    moved = varying.settled(3, "y", others)
    assert torch.equal(moved, others) and not memory.contains(moved.data_ptr())
    varying.arena = None
    assert varying.settled(3, "y", others) is others

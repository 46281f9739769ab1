"""The requests of a whole plan, as its steps make them, in an arena for CUDA around a made-up GPU."""

from __future__ import annotations

import pytest
import torch
from cuda_machine import Machine, MadeUp
from small_models import Residual

import monet
from monet.executor.arena_requests import arena_requests
from monet.plans.plan import Plan


@pytest.fixture(scope="module")
def plan() -> Plan:
    torch.manual_seed(0)
    return monet.plan(Residual(16), (torch.randn(8, 3, 32, 32),), budget="96%", accumulate=True, time_limit_s=10.0)


def test_every_request_of_a_plan_has_its_place(machine: Machine, plan: Plan) -> None:
    asked = arena_requests(plan)
    assert plan.arena_bytes > 0 and not asked.with_crew
    arena = machine.arena(asked.own, plan.arena_bytes, asked.leaves)
    outside = machine.allocate(plan.fixed_bytes)
    for _ in range(2):
        assert arena.ready() == 0
        one_step(machine, plan, arena)
    assert arena.statistics().misses == 0
    assert machine.peak_bytes == plan.fixed_bytes + plan.arena_bytes == plan.peak_bytes
    outside.free()
    arena.close()


def one_step(machine: Machine, plan: Plan, arena: monet.native.cuda_allocator.CudaArena) -> None:
    """Every request of every operator; a temporary is freed before what the plan has after it, and what a step makes
    after the last step that uses it."""
    buffers = {buffer.id: buffer for buffer in plan.buffers}
    held: dict[int, MadeUp] = {}
    base = int(machine.lib.monet_arena_base(arena.handle))
    for number, step in enumerate(plan.steps):
        arena.enter(number)
        for size, buffer in zip(step.request_bytes, step.requests, strict=True):
            if buffer is None:
                continue  # an output, which the fixed bytes count
            for over in [b for b in held if buffers[b].end <= buffers[buffer].begin]:
                held.pop(over).free()
            tensor = held[buffer] = machine.allocate(size)
            assert tensor.address == base + buffers[buffer].offset
        for buffer in [b for b in held if buffers[b].last == number]:
            held.pop(buffer).free()
    arena.leave()
    for tensor in held.values():
        tensor.free()

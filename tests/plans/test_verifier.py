"""Every corrupted plan is rejected, every valid one accepted, and overlap agrees with brute force."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import fields, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_corruptions import CORRUPTIONS, with_buffer, with_step
from random_plans import random_plan

from monet.errors import InvalidPlan
from monet.plans.format import Buffer, PlanStep
from monet.plans.plan import Plan
from monet.plans.verifier import verify

seeds = st.integers(0, 10**6)


@given(seeds)
@settings(max_examples=100, deadline=None)
def test_valid_plans_are_accepted(seed: int) -> None:
    verify(random_plan(seed, steps=1 + seed % 30))


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_every_corruption_is_rejected(name: str) -> None:
    applied = 0
    for seed in range(60):
        corrupted = CORRUPTIONS[name](random_plan(seed, steps=2 + seed % 12), random.Random(seed))
        if corrupted is None:
            continue
        applied += 1
        with pytest.raises(InvalidPlan):
            verify(corrupted)
    assert applied >= 5, "the generator hardly makes plans that this corruption applies to"


def test_every_field_has_a_corruption() -> None:
    free = {"step_node", "step_implementation", "plan_model", "plan_environment", "plan_solver"}  # no meaning here
    names = {
        f"{kind}_{f.name}" for kind, of in (("plan", Plan), ("step", PlanStep), ("buffer", Buffer)) for f in fields(of)
    }
    assert {name for name in names if not any(c.startswith(name + "_") for c in CORRUPTIONS)} == free


def conflicts(plan: Plan) -> bool:
    """Overlap by brute force: who uses each byte at each tick."""
    horizon = max((b.end for b in plan.buffers), default=0)
    used: set[tuple[int, int]] = set()
    for b in plan.buffers:
        end = b.end
        for k, step in enumerate(plan.steps):
            if b.id in (*step.reads.values(), *step.writes.values()):
                end = max(end, plan.steps[k + 1].begin if k + 1 < len(plan.steps) else horizon)
        cells = {(tick, byte) for tick in range(b.begin, end) for byte in range(b.offset, b.offset + b.bytes, 1)}
        if used & cells:
            return True
        used |= cells
    return False


@given(seeds, st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_overlap_agrees_with_brute_force(seed: int, rng: random.Random) -> None:
    plan = random_plan(seed, steps=6)
    plan = replace(plan, arena_bytes=plan.arena_bytes + 2048, budget_bytes=plan.budget_bytes + 2048)
    for n in range(len(plan.buffers)):
        if rng.random() < 0.3:
            plan = with_buffer(plan, n, offset=64 * rng.randrange((plan.arena_bytes - plan.buffers[n].bytes) // 64 + 1))
    if conflicts(plan):
        with pytest.raises(InvalidPlan, match="overlap by"):
            verify(plan)
    else:
        verify(plan)


def test_input_stays_until_its_step_ends() -> None:
    """A buffer that ends in the middle of the step that reads it must not be reused within that step."""

    def plan(temporary_offset: int) -> Plan:
        steps = (
            PlanStep("forward", "a", "aten", {}, {"a": 0}, (0,), (64,), 0),
            PlanStep("backward", "b", "aten", {"a": 0}, {}, (None, 1), (8, 64), 1),
        )
        buffers = (Buffer(0, "a", 64, 0, 0, 2, 0, 1), Buffer(1, "t", 64, temporary_offset, 2, 3, 1, 1))
        return Plan(128, 128, 64, 0, {}, steps, buffers)

    verify(plan(64))
    with pytest.raises(InvalidPlan, match="buffers 0 and 1 overlap by 64 bytes at tick 2"):
        verify(plan(0))


def two_buffers() -> Plan:
    """Both in use at tick 1, the second to outlive the step."""
    steps = (
        PlanStep("backward", "a", "aten", {}, {"a": 0}, (0,), (64,), 0),
        PlanStep("backward", "b", "aten", {"a": 0}, {"b": 1}, (1,), (128,), 1),
    )
    buffers = (Buffer(0, "a", 64, 0, 0, 2, 0, 1), Buffer(1, "b", 128, 64, 1, 3, 1, 1, leaves=True))
    return Plan(192, 192, 192, 0, {}, steps, buffers)


def test_messages_say_by_how_much() -> None:
    plan = two_buffers()
    verify(plan)
    said = {
        r"buffers 0 and 1 overlap by 64 bytes at tick 1: \[0, 64\) and \[0, 128\)": with_buffer(plan, 1, offset=0),
        "arena_bound_bytes is 128, 64 under the load": replace(plan, arena_bound_bytes=128),
        "arena_bound_bytes is 256, above the arena's 192 bytes": replace(plan, arena_bound_bytes=256),
        "buffer 1: ends 64 bytes above the arena's 128 bytes": replace(plan, arena_bytes=128, arena_bound_bytes=128),
        "buffer 1: outlives the step, but ends at tick 3, 2 before the last one": with_buffer(plan, 0, end=5),
        "needs 0 fixed and 192 arena bytes, 92 more than the budget of 100": replace(plan, budget_bytes=100),
    }
    for message, corrupted in said.items():
        with pytest.raises(InvalidPlan, match=message):
            verify(corrupted)


def test_more_bytes_than_the_arena_has() -> None:
    """Where nothing overlaps, since the offsets are beyond it, the arena's end is what is said."""
    plan = with_buffer(two_buffers(), 1, offset=192)
    with pytest.raises(InvalidPlan, match="buffer 1: ends 128 bytes above the arena's 192 bytes"):
        verify(plan)


def test_a_request_of_no_bytes_is_pytorchs_own() -> None:
    plan = two_buffers()
    for size in (0, -1):
        asked = with_step(plan, 1, requests=(1, None), request_bytes=(128, size))
        if size == 0:
            verify(asked)
        else:
            with pytest.raises(InvalidPlan, match="request 1: asks for -1 bytes"):
                verify(asked)


def test_a_step_without_requests_may_be_handed_its_output() -> None:
    steps = (PlanStep("forward", "a", "out", {}, {"a": 0}, (), (), 0),)
    plan = Plan(64, 64, 64, 0, {}, steps, (Buffer(0, "a", 64, 0, 0, 1, 0, 0),))
    verify(plan)
    with pytest.raises(InvalidPlan, match="none of the step's requests is for that buffer"):
        verify(with_step(plan, 0, requests=(None,), request_bytes=(8,)))


def test_the_empty_plan_is_valid() -> None:
    verify(Plan(0, 0, 0, 0, {}, (), ()))


def chain(length: int, slots: int) -> Iterator[tuple[PlanStep, Buffer]]:
    """Steps that each make a value and read the one made ``slots`` - 1 steps before."""
    for k in range(length):
        back = k - slots + 1
        reads = {f"v{back}": back} if back >= 0 else {}
        step = PlanStep("forward", f"n{k}", "aten", reads, {f"v{k}": k}, (k,), (64,), k)
        last = min(k + slots - 1, length - 1)
        yield step, Buffer(k, f"v{k}", 64, k % slots * 64, k, last + 1, k, last)


def test_twenty_thousand_buffers_are_quick() -> None:
    slots = 2000
    steps, buffers = zip(*chain(20_000, slots), strict=True)
    plan = Plan(64 * slots, 64 * slots, 64 * slots, 0, {}, steps, buffers)
    start = time.perf_counter()
    verify(plan)
    assert time.perf_counter() - start < 5
    with pytest.raises(InvalidPlan, match="overlap"):
        verify(with_buffer(plan, 10_000, offset=64 * 7))

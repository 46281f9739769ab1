"""Plans that move tensors: whatever would touch what is on its way is refused."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest
from copy_corruptions import (
    FREE,
    REFUSED,
    at,
    copy_of_two_values,
    in_order,
    in_place_write_under_way,
    index_of,
    moved_step,
    moved_value,
    nothing_waits_for_a_read,
    place_of,
    source_of,
    wait_after_its_reader,
    with_new_step,
    with_place,
)
from module_cases import costs_by_bytes
from moved_steps import CASES, case_inputs, case_model, unmoved_plan
from plan_contents import EAGER, LAZY, Seen, contents_seen
from plan_corruptions import with_buffer, with_step
from plan_mutations import assert_refused_or_harmless

import monet
from monet.errors import InvalidPlan
from monet.plans.copies import check_copies
from monet.plans.format import COPY_ALIGNMENT, READ, WAIT, WRITE, Buffer, PlanStep
from monet.plans.plan import Plan
from monet.plans.verifier import verify

MUTATIONS = 600


def _planned(case: str) -> Plan:
    """For a memory of which only the rates are known: no disk is needed. Not all that is large has room in it."""
    full = unmoved_plan(case)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("monet.pipeline.preparation.profile", costs_by_bytes)
        return monet.plan(
            case_model(case), case_inputs(case, 0), budget=full.fixed_bytes + int(CASES[case][2] * full.arena_bytes),
            exact=True, offload="bandwidth=8GB/s,limit=5.5MB", time_limit_s=20,
        )  # fmt: skip


@pytest.fixture(scope="module")
def plan() -> Plan:
    """Three tensors or more are moved; each step has one tick, so that steps can be put elsewhere."""
    plan = _planned("layers")
    assert sum(step.kind == READ for step in plan.steps) >= 3
    assert [step.begin for step in plan.steps] == list(range(len(plan.steps)))
    return replace(plan, budget_bytes=plan.budget_bytes + FREE, arena_bytes=plan.arena_bytes + FREE)


def test_the_plan_is_valid(plan: Plan) -> None:
    verify(plan)
    verify(in_order(plan, plan.steps))


# What is refused


@pytest.mark.parametrize(("change", "message"), REFUSED, ids=[change.__name__ for change, _ in REFUSED])
def test_refused(plan: Plan, change: Callable[[Plan], Plan], message: str) -> None:
    with pytest.raises(InvalidPlan, match=message):
        verify(change(plan))


def test_the_check_of_copies_counts_on_no_other(plan: Plan) -> None:
    """What the replay of contents refuses, too."""
    with pytest.raises(InvalidPlan, match=r"changes buffer .*, whose .* is being copied"):
        check_copies(in_place_write_under_way(plan))
    with pytest.raises(InvalidPlan, match=r"uses buffer .*, into which .* is still being read"):
        check_copies(wait_after_its_reader(plan))
    with pytest.raises(InvalidPlan, match="a copy is of one value and one buffer"):
        check_copies(copy_of_two_values(plan))
    value = moved_value(plan)
    size = next(b.bytes for b in plan.buffers if b.id == source_of(plan, value))
    other = next(b.id for b in plan.buffers if b.id != source_of(plan, value) and b.bytes == size)
    with pytest.raises(InvalidPlan, match=r"buffer \d+ is not the one that is copied, which is \d+"):
        check_copies(with_step(plan, at(plan, WAIT, value), reads={value: other}))
    two = nothing_waits_for_a_read(plan)
    with pytest.raises(InvalidPlan, match="nothing waits for its read before the step ends"):
        check_copies(two)
    with pytest.raises(InvalidPlan, match="is being read into buffer"):
        check_copies(with_new_step(two, len(two.steps), two.steps[-1]))


# What is accepted gives every operator what it had


def _expected(plan: Plan) -> Seen:
    return contents_seen(plan, EAGER)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.sampled(2)
def test_operators_find_the_same_however_copies_are_timed(case: str) -> None:
    plan = _planned(case)
    expected = _expected(plan)
    assert all(content for _, reads in expected for _, content in reads)
    for timing in (LAZY, 1, 2, 3):
        assert contents_seen(plan, timing) == expected


def _mutated(plan: Plan, rng: random.Random) -> Plan:
    """Another value in one field of a copy or of a buffer that is copied, or a copy in another place of the order."""
    copies = [k for k, step in enumerate(plan.steps) if step.kind in (WRITE, READ, WAIT)]
    k = rng.choice(copies)
    what = rng.choice(("step", "step", "buffer", "order", "order", "place", "beside"))
    if what == "place":
        place = place_of(plan, moved_value(plan, rng.randrange(3))) + rng.choice((-COPY_ALIGNMENT, 0, COPY_ALIGNMENT))
        return with_place(plan, moved_value(plan, rng.randrange(3)), place)
    if what == "beside":
        n, m = rng.randrange(len(plan.buffers)), rng.randrange(len(plan.buffers))
        return with_buffer(plan, n, offset=-(-(plan.buffers[m].offset + plan.buffers[m].bytes) // 64) * 64)
    if what == "order":
        return moved_step(plan, k, min(len(plan.steps) - 1, max(0, k + rng.choice((-9, -4, -2, -1, 1, 2, 3, 5, 12)))))
    if what == "step":
        return with_step(plan, k, **_other_field(plan, plan.steps[k], rng))
    step = plan.steps[k]
    id = next(id for id in (*step.reads.values(), *step.writes.values(), *step.requests) if id is not None)
    n = index_of(plan, id)
    name = rng.choice([f.name for f in fields(Buffer) if f.name not in ("value", "leaves")])
    other = getattr(rng.choice(plan.buffers), name)
    changes = (other, getattr(plan.buffers[n], name) + rng.choice((-4096, -64, -2, -1, 1, 2, 64, 4096)))
    return with_buffer(plan, n, **{name: rng.choice(changes)})


def _other_field(plan: Plan, step: PlanStep, rng: random.Random) -> dict[str, Any]:
    other = rng.choice([s for s in plan.steps if s.place is not None])
    id = rng.choice(plan.buffers).id
    return rng.choice(
        [
            {"kind": rng.choice((WRITE, READ, WAIT, "forward", "backward"))},
            {"node": other.node},
            {"place": rng.choice((None, other.place, (step.place or 0) + rng.choice((-4096, 64, 4096))))},
            {"reads": rng.choice((other.reads, {v: id for v in step.reads}, {}))},
            {"writes": rng.choice((other.writes, {v: id for v in step.writes}, {}))},
            {"requests": rng.choice((other.requests, tuple(id for _ in step.requests), ()))},
            {"request_bytes": rng.choice((other.request_bytes, tuple(n + 64 for n in step.request_bytes)))},
            {"begin": step.begin + rng.choice((-1, 1))},
            {"workers": True},
        ]
    )


def test_mutations_are_refused_or_change_nothing(plan: Plan) -> None:
    assert_refused_or_harmless(plan, _mutated, MUTATIONS, contents_seen)


def test_two_mutations_are_refused_or_change_nothing(plan: Plan) -> None:
    """Of the order of steps: most of these that are accepted hide a copy behind other operators."""
    expected = _expected(plan)
    same = 0
    for seed in range(MUTATIONS // 2):
        rng = random.Random(10_000 + seed)
        mutated = _mutated(plan, rng)
        try:
            mutated = _mutated(mutated, rng)
            verify(mutated)
        except (InvalidPlan, LookupError, StopIteration):
            continue
        same += 1
        for timing in (EAGER, LAZY, seed):
            assert contents_seen(mutated, timing) == expected, f"mutations {seed} change what operators find"
    assert same


def test_many_copies_are_checked_quickly() -> None:
    """A thousand tensors under way beside ten thousand operators."""
    count, size = 3000, COPY_ALIGNMENT
    steps, buffers = [], []
    for n in range(count):
        steps.append(PlanStep("forward", f"v{n}", "aten", {}, {f"v{n}": n}, (n,), (size,), 2 * n))
        steps.append(PlanStep(WRITE, f"v{n}", "copy", {f"v{n}": n}, {}, (), (), 2 * n + 1, place=n * size))
        buffers.append(Buffer(n, f"v{n}", size, n * size, 2 * n, 3 * count, 2 * n, 3 * count - 1))
    for n in range(count):
        steps.append(PlanStep(WAIT, f"v{n}", "copy", {f"v{n}": n}, {}, (), (), 2 * count + n, place=n * size))
    total = count * size
    verify(Plan(total, total, total, 0, {}, tuple(steps), tuple(buffers), second_bytes=total))

"""Ways to corrupt a valid plan, at least one for each field that means something, each surely invalid."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from monet.plans.format import Buffer, PlanStep
from monet.plans.plan import Plan

Corruption = Callable[[Plan, random.Random], Plan | None]
CORRUPTIONS: dict[str, Corruption] = {}


def corrupts(function: Corruption) -> Corruption:
    """Register a corruption; it returns None when the plan has nothing to corrupt that way."""
    CORRUPTIONS[function.__name__] = function
    return function


def with_step(plan: Plan, k: int, **changes: Any) -> Plan:
    return replace(plan, steps=(*plan.steps[:k], replace(plan.steps[k], **changes), *plan.steps[k + 1 :]))


def with_buffer(plan: Plan, n: int, **changes: Any) -> Plan:
    return replace(plan, buffers=(*plan.buffers[:n], replace(plan.buffers[n], **changes), *plan.buffers[n + 1 :]))


def a_step(plan: Plan, rng: random.Random, condition: Callable[[PlanStep], object]) -> int | None:
    found = [k for k, step in enumerate(plan.steps) if condition(step)]
    return rng.choice(found) if found else None


def a_buffer(plan: Plan, rng: random.Random, condition: Callable[[Buffer], object] = lambda _: True) -> int | None:
    found = [n for n, buffer in enumerate(plan.buffers) if condition(buffer)]
    return rng.choice(found) if found else None


def new_writes(step: PlanStep) -> dict[str, int]:
    return {value: id for value, id in step.writes.items() if id not in step.reads.values()}


# The plan's own fields


@corrupts
def plan_budget_bytes_under_peak(plan: Plan, rng: random.Random) -> Plan | None:
    return replace(plan, budget_bytes=plan.peak_bytes - 1)


@corrupts
def plan_second_bytes_without_a_place(plan: Plan, rng: random.Random) -> Plan | None:
    return replace(plan, second_bytes=plan.second_bytes + 4096)


@corrupts
def step_place_of_an_operator(plan: Plan, rng: random.Random) -> Plan | None:
    k = a_step(plan, rng, lambda step: step.place is None)
    return None if k is None else with_step(plan, k, place=4096)


@corrupts
def plan_arena_bytes_under_top(plan: Plan, rng: random.Random) -> Plan | None:
    top = max((b.offset + b.bytes for b in plan.buffers), default=0)
    return replace(plan, arena_bytes=top - 1, arena_bound_bytes=0) if top else None


@corrupts
def plan_arena_bound_bytes_above_arena(plan: Plan, rng: random.Random) -> Plan | None:
    return replace(plan, arena_bound_bytes=plan.arena_bytes + 1)


@corrupts
def plan_arena_bound_bytes_under_load(plan: Plan, rng: random.Random) -> Plan | None:
    return replace(plan, arena_bound_bytes=max(b.bytes for b in plan.buffers) - 1) if plan.buffers else None


@corrupts
def plan_fixed_bytes_off(plan: Plan, rng: random.Random) -> Plan | None:
    change = rng.choice((-1, 1))
    return replace(plan, fixed_bytes=plan.fixed_bytes + change, budget_bytes=plan.budget_bytes + 1)


@corrupts
def plan_fixed_off(plan: Plan, rng: random.Random) -> Plan | None:
    return replace(plan, fixed={**plan.fixed, "parameters": plan.fixed["parameters"] + rng.choice((-1, 1, 1000))})


@corrupts
def plan_fixed_negative(plan: Plan, rng: random.Random) -> Plan | None:
    return replace(plan, fixed={**plan.fixed, "reserve": -1, "more": 1})


@corrupts
def plan_steps_last_dropped(plan: Plan, rng: random.Random) -> Plan | None:
    last = len(plan.steps) - 1
    if not any(b.last == last for b in plan.buffers):
        return None
    return replace(plan, steps=plan.steps[:-1])


@corrupts
def plan_steps_repeated(plan: Plan, rng: random.Random) -> Plan | None:
    k = a_step(plan, rng, lambda step: any(id is not None for id in step.requests))
    return None if k is None else replace(plan, steps=(*plan.steps[: k + 1], *plan.steps[k:]))


@corrupts
def plan_buffers_one_dropped(plan: Plan, rng: random.Random) -> Plan | None:
    n = a_buffer(plan, rng)
    return None if n is None else replace(plan, buffers=plan.buffers[:n] + plan.buffers[n + 1 :])


@corrupts
def plan_buffers_one_unused(plan: Plan, rng: random.Random) -> Plan | None:
    arena = plan.arena_bytes
    step = plan.steps[-1]
    extra = Buffer(10**6, "unused", 64, arena, step.begin, step.begin + 1, len(plan.steps) - 1, len(plan.steps) - 1)
    return replace(plan, buffers=(*plan.buffers, extra), arena_bytes=arena + 64, budget_bytes=plan.budget_bytes + 64)


# Steps


@corrupts
def step_kind_unknown(plan: Plan, rng: random.Random) -> Plan | None:
    return with_step(plan, rng.randrange(len(plan.steps)), kind=rng.choice(("", "optimizer", "Forward")))


@corrupts
def step_kind_forward_after_backward(plan: Plan, rng: random.Random) -> Plan | None:
    k = a_step(plan, rng, lambda step: step.kind == "forward" and step is not plan.steps[0])
    return None if k is None else with_step(plan, rng.randrange(k), kind=rng.choice(("recompute", "backward")))


@corrupts
def step_begin_after_next(plan: Plan, rng: random.Random) -> Plan | None:
    k = rng.randrange(len(plan.steps) - 1)
    return with_step(plan, k, begin=plan.steps[k + 1].begin + 1)


@corrupts
def step_begin_negative(plan: Plan, rng: random.Random) -> Plan | None:
    return with_step(plan, 0, begin=-1)


@corrupts
def step_begin_after_its_buffer(plan: Plan, rng: random.Random) -> Plan | None:
    n = a_buffer(plan, rng)
    if n is None:
        return None
    return with_step(plan, plan.buffers[n].first, begin=plan.buffers[n].begin + 1)


@corrupts
def step_reads_value_that_nobody_makes(plan: Plan, rng: random.Random) -> Plan | None:
    k = a_step(plan, rng, lambda step: step.reads)
    if k is None:
        return None
    value, id = rng.choice(list(plan.steps[k].reads.items()))
    others = {v: b for v, b in plan.steps[k].reads.items() if v != value}
    return with_step(plan, k, reads={**others, "nobody's": id})


@corrupts
def step_reads_from_missing_buffer(plan: Plan, rng: random.Random) -> Plan | None:
    k = a_step(plan, rng, lambda step: step.reads)
    if k is None:
        return None
    value = rng.choice(list(plan.steps[k].reads))
    return with_step(plan, k, reads={**plan.steps[k].reads, value: rng.choice((-1, 10**6))})


@corrupts
def step_reads_from_buffer_that_never_holds_it(plan: Plan, rng: random.Random) -> Plan | None:
    k = a_step(plan, rng, lambda step: step.reads)
    if k is None:
        return None
    value = rng.choice(list(plan.steps[k].reads))
    holders = {step.writes[value] for step in plan.steps if value in step.writes}
    n = a_buffer(plan, rng, lambda b: b.id not in holders)
    return None if n is None else with_step(plan, k, reads={**plan.steps[k].reads, value: plan.buffers[n].id})


@corrupts
def step_reads_before_it_is_written(plan: Plan, rng: random.Random) -> Plan | None:
    k = a_step(plan, rng, new_writes)
    if k is None:
        return None
    value, id = rng.choice(list(new_writes(plan.steps[k]).items()))
    early = rng.randint(0, k)
    return with_step(plan, early, reads={**plan.steps[early].reads, value: id})


@corrupts
def step_reads_after_the_buffer_ends(plan: Plan, rng: random.Random) -> Plan | None:
    written = {id for step in plan.steps for id in step.writes.values()}
    n = a_buffer(plan, rng, lambda b: b.id in written and b.last < len(plan.steps) - 1)
    if n is None:
        return None
    buffer = plan.buffers[n]
    value = [v for step in plan.steps for v, id in step.writes.items() if id == buffer.id][-1]
    late = rng.randrange(buffer.last + 1, len(plan.steps))
    return with_step(plan, late, reads={**plan.steps[late].reads, value: buffer.id})


@corrupts
def step_reads_what_was_overwritten_in_place(plan: Plan, rng: random.Random) -> Plan | None:
    for k, step in enumerate(plan.steps):
        for new, id in step.writes.items():
            old = next((v for v, b in step.reads.items() if b == id), None)
            for later in range(k + 1, len(plan.steps)):
                reads = dict(plan.steps[later].reads)
                if old is not None and reads.get(new) == id:
                    del reads[new]
                    return with_step(plan, later, reads={**reads, old: id})
    return None


@corrupts
def step_writes_to_missing_buffer(plan: Plan, rng: random.Random) -> Plan | None:
    k = a_step(plan, rng, lambda step: step.writes)
    if k is None:
        return None
    value = rng.choice(list(plan.steps[k].writes))
    return with_step(plan, k, writes={**plan.steps[k].writes, value: rng.choice((-1, 10**6))})


@corrupts
def step_writes_over_a_buffer_it_does_not_read(plan: Plan, rng: random.Random) -> Plan | None:
    n = a_buffer(plan, rng, lambda b: b.first < b.last)
    if n is None:
        return None
    buffer = plan.buffers[n]
    k = rng.randint(buffer.first + 1, buffer.last)
    if buffer.id in plan.steps[k].reads.values():
        return None
    return with_step(plan, k, writes={**plan.steps[k].writes, "clobber": buffer.id})


@corrupts
def step_writes_two_values_to_one_buffer(plan: Plan, rng: random.Random) -> Plan | None:
    k = a_step(plan, rng, lambda step: step.writes)
    if k is None:
        return None
    id = rng.choice(list(plan.steps[k].writes.values()))
    return with_step(plan, k, writes={**plan.steps[k].writes, "second": id})


@corrupts
def step_writes_in_place_without_renaming(plan: Plan, rng: random.Random) -> Plan | None:
    k = a_step(plan, rng, lambda step: step.reads)
    if k is None:
        return None
    value, id = rng.choice(list(plan.steps[k].reads.items()))
    if id in plan.steps[k].writes.values():
        return None
    return with_step(plan, k, writes={**plan.steps[k].writes, value: id})


@corrupts
def step_writes_drops_what_is_read(plan: Plan, rng: random.Random) -> Plan | None:
    read = {(value, id) for step in plan.steps for value, id in step.reads.items()}
    k = a_step(plan, rng, lambda step: any(item in read for item in step.writes.items()))
    if k is None:
        return None
    value = next(item[0] for item in plan.steps[k].writes.items() if item in read)
    return with_step(plan, k, writes={v: id for v, id in plan.steps[k].writes.items() if v != value})


@corrupts
def step_writes_another_name(plan: Plan, rng: random.Random) -> Plan | None:
    k = a_step(plan, rng, new_writes)
    if k is None:
        return None
    value = rng.choice(list(new_writes(plan.steps[k])))
    return with_step(plan, k, writes={(f"{v}?" if v == value else v): id for v, id in plan.steps[k].writes.items()})


@corrupts
def step_requests_one_dropped(plan: Plan, rng: random.Random) -> Plan | None:
    k = a_step(plan, rng, lambda step: step.requests)
    return None if k is None else with_step(plan, k, requests=plan.steps[k].requests[:-1])


@corrupts
def step_requests_null_for_a_buffer(plan: Plan, rng: random.Random) -> Plan | None:
    k = a_step(plan, rng, lambda step: any(id is not None for id in step.requests))
    if k is None:
        return None
    requests = list(plan.steps[k].requests)
    requests[rng.choice([n for n, id in enumerate(requests) if id is not None])] = None
    return with_step(plan, k, requests=tuple(requests))


@corrupts
def step_workers_share_what_it_writes(plan: Plan, rng: random.Random) -> Plan | None:
    k = a_step(plan, rng, lambda step: step.requests and step.requests[-1] in step.writes.values())
    return None if k is None else with_step(plan, k, workers=True)


@corrupts
def step_workers_without_a_buffer(plan: Plan, rng: random.Random) -> Plan | None:
    k = a_step(plan, rng, lambda step: not step.requests or step.requests[-1] is None)
    return None if k is None else with_step(plan, k, workers=True)


@corrupts
def step_requests_buffer_twice(plan: Plan, rng: random.Random) -> Plan | None:
    n = a_buffer(plan, rng)
    if n is None:
        return None
    buffer, k = plan.buffers[n], rng.randrange(len(plan.steps))
    step = plan.steps[k]
    return with_step(plan, k, requests=(*step.requests, buffer.id), request_bytes=(*step.request_bytes, buffer.bytes))


@corrupts
def step_requests_missing_buffer(plan: Plan, rng: random.Random) -> Plan | None:
    k = a_step(plan, rng, lambda step: step.requests)
    return None if k is None else with_step(plan, k, requests=(*plan.steps[k].requests[:-1], 10**6))


@corrupts
def step_requests_moved_to_another_step(plan: Plan, rng: random.Random) -> Plan | None:
    k = a_step(plan, rng, lambda step: step.requests and step.requests[-1] is not None)
    if k is None or len(plan.steps) < 2:
        return None
    step, other = plan.steps[k], rng.choice([j for j in range(len(plan.steps)) if j != k])
    moved = with_step(plan, k, requests=step.requests[:-1], request_bytes=step.request_bytes[:-1])
    target = plan.steps[other]
    return with_step(
        moved,
        other,
        requests=(*target.requests, step.requests[-1]),
        request_bytes=(*target.request_bytes, step.request_bytes[-1]),
    )


@corrupts
def step_request_bytes_off(plan: Plan, rng: random.Random) -> Plan | None:
    k = a_step(plan, rng, lambda step: any(id is not None for id in step.requests))
    if k is None:
        return None
    sizes = list(plan.steps[k].request_bytes)
    sizes[rng.choice([n for n, id in enumerate(plan.steps[k].requests) if id is not None])] += rng.choice((-1, 1))
    return with_step(plan, k, request_bytes=tuple(sizes))


@corrupts
def step_request_bytes_negative(plan: Plan, rng: random.Random) -> Plan | None:
    k = a_step(plan, rng, lambda step: None in step.requests)
    if k is None:
        return None
    sizes = list(plan.steps[k].request_bytes)
    sizes[plan.steps[k].requests.index(None)] = -1
    return with_step(plan, k, request_bytes=tuple(sizes))


# Buffers


@corrupts
def buffer_id_twice(plan: Plan, rng: random.Random) -> Plan | None:
    if len(plan.buffers) < 2:
        return None
    one, other = rng.sample(range(len(plan.buffers)), 2)
    return with_buffer(plan, one, id=plan.buffers[other].id)


@corrupts
def buffer_id_unknown(plan: Plan, rng: random.Random) -> Plan | None:
    n = a_buffer(plan, rng)
    return None if n is None else with_buffer(plan, n, id=10**6)


@corrupts
def buffer_value_renamed(plan: Plan, rng: random.Random) -> Plan | None:
    written = {id for step in plan.steps for id in step.writes.values()}
    n = a_buffer(plan, rng, lambda b: b.id in written)
    return None if n is None else with_buffer(plan, n, value=plan.buffers[n].value + "?")


@corrupts
def buffer_bytes_off(plan: Plan, rng: random.Random) -> Plan | None:
    n = a_buffer(plan, rng)
    return None if n is None else with_buffer(plan, n, bytes=plan.buffers[n].bytes + rng.choice((-1, 1)))


@corrupts
def buffer_bytes_zero(plan: Plan, rng: random.Random) -> Plan | None:
    n = a_buffer(plan, rng)
    return None if n is None else with_buffer(plan, n, bytes=0)


@corrupts
def buffer_offset_not_aligned(plan: Plan, rng: random.Random) -> Plan | None:
    n = a_buffer(plan, rng)
    if n is None:
        return None
    roomy = replace(plan, arena_bytes=plan.arena_bytes + 64, budget_bytes=plan.budget_bytes + 64)
    return with_buffer(roomy, n, offset=plan.buffers[n].offset + rng.randint(1, 63))


@corrupts
def buffer_offset_negative(plan: Plan, rng: random.Random) -> Plan | None:
    n = a_buffer(plan, rng)
    return None if n is None else with_buffer(plan, n, offset=-64)


@corrupts
def buffer_offset_outside_arena(plan: Plan, rng: random.Random) -> Plan | None:
    n = a_buffer(plan, rng)
    return None if n is None else with_buffer(plan, n, offset=plan.arena_bytes // 64 * 64)


@corrupts
def buffer_offset_on_another(plan: Plan, rng: random.Random) -> Plan | None:
    pairs = [
        (n, other.offset)
        for n, one in enumerate(plan.buffers)
        for other in plan.buffers
        if one is not other and one.begin < other.end and other.begin < one.end
    ]
    if not pairs:
        return None
    n, offset = rng.choice(pairs)
    roomy = replace(plan, arena_bytes=plan.arena_bytes + 1024, budget_bytes=plan.budget_bytes + 1024)
    return with_buffer(roomy, n, offset=offset)


@corrupts
def buffer_begin_at_end(plan: Plan, rng: random.Random) -> Plan | None:
    n = a_buffer(plan, rng)
    return None if n is None else with_buffer(plan, n, begin=plan.buffers[n].end + rng.choice((0, 1)))


@corrupts
def buffer_begin_before_first_step(plan: Plan, rng: random.Random) -> Plan | None:
    n = a_buffer(plan, rng)
    return None if n is None else with_buffer(plan, n, begin=plan.steps[plan.buffers[n].first].begin - 1)


@corrupts
def buffer_end_after_last_step(plan: Plan, rng: random.Random) -> Plan | None:
    n = a_buffer(plan, rng, lambda b: b.last + 1 < len(plan.steps))
    return None if n is None else with_buffer(plan, n, end=plan.steps[plan.buffers[n].last + 1].begin + 1)


@corrupts
def buffer_end_before_last_step(plan: Plan, rng: random.Random) -> Plan | None:
    n = a_buffer(plan, rng, lambda b: b.last > b.first)
    return None if n is None else with_buffer(plan, n, end=plan.steps[plan.buffers[n].last].begin)


@corrupts
def buffer_first_off(plan: Plan, rng: random.Random) -> Plan | None:
    n = a_buffer(plan, rng)
    return None if n is None else with_buffer(plan, n, first=plan.buffers[n].first + rng.choice((-1, 1)))


@corrupts
def buffer_last_off(plan: Plan, rng: random.Random) -> Plan | None:
    n = a_buffer(plan, rng)
    return None if n is None else with_buffer(plan, n, last=plan.buffers[n].last + rng.choice((-1, 1)))


@corrupts
def buffer_last_of_a_temporary_later(plan: Plan, rng: random.Random) -> Plan | None:
    written = {id for step in plan.steps for id in step.writes.values()}
    n = a_buffer(plan, rng, lambda b: b.id not in written and b.last + 1 < len(plan.steps))
    if n is None:
        return None
    # Moved above everything, so that no overlap gives it away.
    offset = -(-plan.arena_bytes // 64) * 64
    roomy = replace(plan, arena_bytes=offset + 1024, budget_bytes=plan.budget_bytes + 2048)
    last = plan.buffers[n].last + 1
    return with_buffer(roomy, n, last=last, end=plan.steps[last].begin + 1, offset=offset)


@corrupts
def buffer_leaves_before_the_last_step(plan: Plan, rng: random.Random) -> Plan | None:
    n = a_buffer(plan, rng, lambda b: not b.leaves and b.last + 1 < len(plan.steps))
    return None if n is None else with_buffer(plan, n, leaves=True)


@corrupts
def buffer_leaves_and_ends_before_the_last_tick(plan: Plan, rng: random.Random) -> Plan | None:
    n = a_buffer(plan, rng, lambda b: b.leaves and b.end - 1 > max(b.begin, plan.steps[-1].begin))
    if n is None or sum(b.end == plan.buffers[n].end for b in plan.buffers) == 1:
        return None
    return with_buffer(plan, n, end=plan.buffers[n].end - 1)


@corrupts
def buffer_leaves_that_the_forward_pass_makes(plan: Plan, rng: random.Random) -> Plan | None:
    end = max((b.end for b in plan.buffers), default=0)
    n = a_buffer(plan, rng, lambda b: not b.leaves and plan.steps[b.first].kind in ("forward", "recompute"))
    if n is None:
        return None
    # Moved above everything, so that no overlap gives it away.
    offset = -(-plan.arena_bytes // 64) * 64
    roomy = replace(plan, arena_bytes=offset + 1024, budget_bytes=plan.budget_bytes + 2048)
    return with_buffer(roomy, n, last=len(plan.steps) - 1, end=end, offset=offset, leaves=True)


@corrupts
def buffer_leaves_that_nothing_writes(plan: Plan, rng: random.Random) -> Plan | None:
    written = {id for step in plan.steps for id in step.writes.values()}
    end = max((b.end for b in plan.buffers), default=0)
    n = a_buffer(plan, rng, lambda b: b.id not in written and plan.steps[b.first].kind == "backward")
    if n is None:
        return None
    offset = -(-plan.arena_bytes // 64) * 64
    roomy = replace(plan, arena_bytes=offset + 1024, budget_bytes=plan.budget_bytes + 2048)
    return with_buffer(roomy, n, last=len(plan.steps) - 1, end=end, offset=offset, leaves=True)

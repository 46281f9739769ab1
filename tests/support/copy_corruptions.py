"""Ways to corrupt a plan that moves tensors, in which each step has one tick, and what the verifier says of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from plan_corruptions import with_buffer, with_step

from monet.plans.format import COPY_ALIGNMENT, READ, WAIT, WRITE, Buffer, PlanStep
from monet.plans.plan import Plan

FREE = 1 << 22
"""Bytes at the arena's end in which no buffer lies."""


def at(plan: Plan, kind: str, value: str | None = None, *, back: bool = False) -> int:
    """The first step of that kind, of that value; of waits, one for a write or for a read."""
    return next(
        k
        for k, step in enumerate(plan.steps)
        if step.kind == kind and value in (None, step.node) and (kind != WAIT or back == bool(step.writes))
    )


def moved_value(plan: Plan, n: int = 0) -> str:
    return [step.node for step in plan.steps if step.kind == WRITE][n]


def in_order(plan: Plan, steps: Sequence[PlanStep]) -> Plan:
    """``plan`` with other steps, a tick each; each buffer lives from its first to its last use."""
    steps = tuple(replace(step, begin=k) for k, step in enumerate(steps))
    uses: dict[int, list[int]] = {}
    for k, step in enumerate(steps):
        for id in (*step.reads.values(), *step.writes.values(), *step.requests):
            if id is not None:
                uses.setdefault(id, []).append(k)
    lives = {id: (used[0], len(steps) - 1 if _leaves(plan, id) else used[-1]) for id, used in uses.items()}
    buffers = [
        replace(b, first=lives[b.id][0], last=lives[b.id][1], begin=lives[b.id][0], end=lives[b.id][1] + 1)
        for b in plan.buffers
        if b.id in lives
    ]
    return replace(plan, steps=steps, buffers=tuple(buffers))


def _leaves(plan: Plan, id: int) -> bool:
    return any(b.leaves for b in plan.buffers if b.id == id)


def moved_step(plan: Plan, k: int, to: int) -> Plan:
    """Step ``k`` comes right after the step that is at ``to`` now."""
    steps = list(plan.steps)
    step = steps.pop(k)
    steps.insert(to if to > k else to + 1, step)
    return in_order(plan, steps)


def without_step(plan: Plan, k: int) -> Plan:
    return in_order(plan, [*plan.steps[:k], *plan.steps[k + 1 :]])


def with_new_step(plan: Plan, k: int, step: PlanStep) -> Plan:
    return in_order(plan, [*plan.steps[:k], step, *plan.steps[k:]])


def place_of(plan: Plan, value: str) -> int:
    place = plan.steps[at(plan, WRITE, value)].place
    assert place is not None
    return place


def with_place(plan: Plan, value: str, place: int) -> Plan:
    """All copies of a value go elsewhere."""
    steps = [replace(s, place=place) if s.place is not None and s.node == value else s for s in plan.steps]
    return replace(plan, steps=tuple(steps))


def source_of(plan: Plan, value: str) -> int:
    return plan.steps[at(plan, WRITE, value)].reads[value]


def index_of(plan: Plan, id: int) -> int:
    return next(n for n, buffer in enumerate(plan.buffers) if buffer.id == id)


def wait_after_its_reader(plan: Plan) -> Plan:
    k = at(plan, WAIT, back=True)
    reader = next(n for n in range(k + 1, len(plan.steps)) if plan.steps[k].node in plan.steps[n].reads)
    return moved_step(plan, k, reader)


def source_freed_before_its_wait(plan: Plan) -> Plan:
    k = at(plan, WAIT)
    n = index_of(plan, next(iter(plan.steps[k].reads.values())))
    return with_buffer(plan, n, end=k, last=k - 1)


def source_freed_before_its_wait_by_ticks(plan: Plan) -> Plan:
    k = at(plan, WAIT)
    return with_buffer(plan, index_of(plan, next(iter(plan.steps[k].reads.values()))), end=k)


def destination_begins_at_its_wait(plan: Plan) -> Plan:
    k = at(plan, WAIT, back=True)
    return with_buffer(plan, index_of(plan, next(iter(plan.steps[k].writes.values()))), first=k, begin=k)


def read_before_the_writes_wait(plan: Plan) -> Plan:
    value = plan.steps[at(plan, READ)].node
    return moved_step(plan, at(plan, WAIT, value), at(plan, READ, value))


def places_overlap(plan: Plan) -> Plan:
    one, other = moved_value(plan), moved_value(plan, 1)
    return with_place(plan, other, place_of(plan, one) + COPY_ALIGNMENT)


def place_below_all_others(plan: Plan) -> Plan:
    """The third place begins before the two that are there, and ends in the lower one."""
    lower, upper, new = (moved_value(plan, n) for n in range(3))
    size, new_size = (plan.buffers[index_of(plan, source_of(plan, value))].bytes for value in (lower, new))
    assert new_size > COPY_ALIGNMENT
    above = COPY_ALIGNMENT + -(-size // COPY_ALIGNMENT) * COPY_ALIGNMENT
    return with_place(with_place(with_place(plan, lower, COPY_ALIGNMENT), upper, above), new, 0)


def one_place_for_two(plan: Plan) -> Plan:
    return with_place(plan, moved_value(plan, 1), place_of(plan, moved_value(plan)))


def in_place_write_under_way(plan: Plan) -> Plan:
    value = moved_value(plan)
    reader = next(n for n in range(at(plan, WRITE, value), at(plan, WAIT, value)) if plan.steps[n].kind == "forward")
    writes = {**plan.steps[reader].writes, "clobbered": source_of(plan, value)}
    reads = {**plan.steps[reader].reads, value: source_of(plan, value)}
    return with_step(plan, reader, reads=reads, writes=writes)


def place_not_aligned(plan: Plan) -> Plan:
    return with_place(plan, moved_value(plan), 64)


def place_negative(plan: Plan) -> Plan:
    return with_place(plan, moved_value(plan), -COPY_ALIGNMENT)


def offset_not_aligned(plan: Plan) -> Plan:
    n = index_of(plan, source_of(plan, moved_value(plan)))
    return with_buffer(plan, n, offset=plan.buffers[n].offset + 64)


def offset_of_a_destination_not_aligned(plan: Plan) -> Plan:
    n = index_of(plan, plan.steps[at(plan, READ)].requests[0] or 0)
    return with_buffer(plan, n, offset=plan.buffers[n].offset + 64)


def nothing_waits_for_a_write(plan: Plan) -> Plan:
    """Of a tensor that stays in memory, too."""
    moved = {step.node for step in plan.steps if step.kind == WRITE}
    last = {id: (k, v) for k, step in enumerate(plan.steps) for v, id in step.writes.items()}
    id, (k, value) = next(
        (i, kv) for i, kv in last.items() if plan.steps[kv[0]].kind == "forward" and kv[1] not in moved
    )
    new = PlanStep(WRITE, value, "copy", {value: id}, {}, (), (), 0, place=plan.second_bytes)
    size = next(buffer.bytes for buffer in plan.buffers if buffer.id == id)
    return replace(with_new_step(plan, k + 1, new), second_bytes=plan.second_bytes + -(-size // 4096) * 4096)


def nothing_waits_for_a_read(plan: Plan) -> Plan:
    """Once more at the step's end, into memory of its own."""
    value, k = moved_value(plan), at(plan, READ, moved_value(plan))
    size = plan.steps[k].request_bytes[0]
    offset = -(-(plan.arena_bytes - FREE) // COPY_ALIGNMENT) * COPY_ALIGNMENT
    buffer = Buffer(10**6, value, size, offset, 0, 1, 0, 0)
    new = PlanStep(READ, value, "copy", {}, {}, (10**6,), (size,), 0, place=place_of(plan, value))
    return with_new_step(replace(plan, buffers=(*plan.buffers, buffer)), len(plan.steps), new)


def read_while_it_is_read(plan: Plan) -> Plan:
    more = nothing_waits_for_a_read(plan)
    value = moved_value(plan)
    return moved_step(more, len(more.steps) - 1, at(more, READ, value))


def write_without_a_wait(plan: Plan) -> Plan:
    return without_step(plan, at(plan, WAIT))


def read_without_a_wait(plan: Plan) -> Plan:
    return without_step(plan, at(plan, WAIT, back=True))


def wait_without_a_write(plan: Plan) -> Plan:
    return without_step(plan, at(plan, WRITE))


def wait_without_a_read(plan: Plan) -> Plan:
    return without_step(plan, at(plan, READ))


def two_waits_for_one_write(plan: Plan) -> Plan:
    k = at(plan, WAIT)
    return with_new_step(plan, k, plan.steps[k])


def wait_for_another_place(plan: Plan) -> Plan:
    return with_step(plan, at(plan, WAIT), place=place_of(plan, moved_value(plan, 1)))


def place_above_the_second_memory(plan: Plan) -> Plan:
    return replace(plan, second_bytes=plan.second_bytes - 1)


def copy_of_two_values(plan: Plan) -> Plan:
    """No plan that the replay of contents would take: two values are hardly there together when one is written."""
    k = at(plan, WRITE)
    step = plan.steps[k]
    return with_step(plan, k, reads={**step.reads, "another": plan.buffers[0].id})


def copy_of_another_value(plan: Plan) -> Plan:
    k = at(plan, WRITE)
    return with_step(plan, k, node=plan.steps[k].node + "?")


def copy_that_requests(plan: Plan) -> Plan:
    return with_step(plan, at(plan, WRITE), requests=(None,), request_bytes=(64,))


def read_outside_the_arena(plan: Plan) -> Plan:
    k = at(plan, READ)
    return with_step(without_buffer(plan, plan.steps[k].requests[0]), k, requests=(None,))


def without_buffer(plan: Plan, id: int | None) -> Plan:
    steps = [replace(s, reads={v: b for v, b in s.reads.items() if b != id}) for s in plan.steps]
    kept = [s for s in steps if id not in s.writes.values()]
    return in_order(replace(plan, buffers=tuple(b for b in plan.buffers if b.id != id)), kept)


def read_of_fewer_bytes(plan: Plan) -> Plan:
    """As many blocks, and not the tensor."""
    k = at(plan, READ)
    size = plan.steps[k].request_bytes[0] - 64
    fewer = with_step(plan, k, request_bytes=(size,))
    return with_buffer(fewer, index_of(plan, plan.steps[k].requests[0] or 0), bytes=size)


def write_after_the_forward_pass(plan: Plan) -> Plan:
    value = plan.steps[at(plan, READ)].node
    later = next(v for v in reversed([s.node for s in plan.steps if s.kind == WRITE]) if v != value)
    reader = at(plan, READ, value)
    waited = moved_step(plan, at(plan, WAIT, later), reader)
    return moved_step(waited, at(waited, WRITE, later), at(waited, READ, value))


def written_twice(plan: Plan) -> Plan:
    k = at(plan, WRITE)
    again = replace(plan.steps[k], place=plan.second_bytes)
    return replace(with_new_step(plan, k, again), second_bytes=plan.second_bytes + (2 << 20))


def operator_with_a_place(plan: Plan) -> Plan:
    return with_step(plan, 0, place=0)


def copy_without_a_place(plan: Plan) -> Plan:
    return with_step(plan, at(plan, READ), place=None)


def neighbour_in_the_last_block(plan: Plan) -> Plan:
    """It begins where a tensor ends that is read back, in the block that the copy fills."""
    k = at(plan, READ)
    n = index_of(plan, plan.steps[k].requests[0] or 0)
    offset = -(-(plan.arena_bytes - FREE) // COPY_ALIGNMENT) * COPY_ALIGNMENT
    apart = with_buffer(plan, n, offset=offset)
    neighbour = next(m for m, b in enumerate(plan.buffers) if b.first == k + 1)
    end = offset + plan.buffers[n].bytes
    assert end % COPY_ALIGNMENT and end % 64 == 0
    return with_buffer(apart, neighbour, offset=end)


REFUSED: list[tuple[Callable[[Plan], Plan], str]] = [
    (wait_after_its_reader, "nothing was written there yet"),
    (source_freed_before_its_wait, "it is in use during steps .* only"),
    (source_freed_before_its_wait_by_ticks, "last tick .* is not one of its last step"),
    (destination_begins_at_its_wait, "request 0: buffer .* begins in step"),
    (read_before_the_writes_wait, "is issued before the wait for the write of"),
    (places_overlap, "its place overlaps that of .* by"),
    (place_below_all_others, "its place overlaps that of .* by"),
    (one_place_for_two, "its place overlaps that of .* by"),
    (in_place_write_under_way, "it holds 'clobbered' by then"),
    (place_not_aligned, "place 64 is not a multiple of 4096 bytes"),
    (place_negative, "place -4096 is not a multiple of 4096 bytes"),
    (offset_not_aligned, "is at no multiple of 4096 bytes"),
    (offset_of_a_destination_not_aligned, "is at no multiple of 4096 bytes"),
    (nothing_waits_for_a_write, "nothing waits for its write before the step ends"),
    (nothing_waits_for_a_read, "reads into it, and nothing waits for it"),
    (read_while_it_is_read, "is being read into buffer .* already|nothing waits for it"),
    (write_without_a_wait, "is issued before the wait for the write of"),
    (read_without_a_wait, "nothing was written there yet"),
    (wait_without_a_write, "nothing was written to its place"),
    (wait_without_a_read, "none of the step's requests is for that buffer"),
    (two_waits_for_one_write, "no write of .* is under way"),
    (wait_for_another_place, "nothing was written to its place|its place holds"),
    (place_above_the_second_memory, "its place ends 1 bytes above the second memory's"),
    (copy_of_another_value, "a copy is of one value and one buffer"),
    (copy_that_requests, "a copy is of one value and one buffer"),
    (read_outside_the_arena, "its buffer is not in the arena"),
    (read_of_fewer_bytes, "its place holds .* bytes of .*, and it copies"),
    (write_after_the_forward_pass, "writes after the forward pass"),
    (written_twice, "is written to the second memory already"),
    (operator_with_a_place, "has a place in the second memory, and copies nothing"),
    (copy_without_a_place, "has no place in the second memory"),
    (neighbour_in_the_last_block, r"overlap by \d+ bytes"),
]

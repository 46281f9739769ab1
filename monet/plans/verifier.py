"""The checker of plans: replays the steps and the ticks. Shares no code with what makes a plan.

What it proves of a plan: every value is read from a buffer that holds it at that time, no two buffers
in use at the same tick share a byte, every memory request gets the buffer of its size, everything
lies in the arena, and arena and fixed bytes together fit the budget; of copies to and from a second memory, that
nothing touches what is on its way (``copies.py``); of sizes that vary, that none takes more than at the largest shape
(``sizes.py``). What it cannot know: that
the steps are the right ones for the model, and that an operator requests what its record says.

Only the standard library and plain integers: written to be read next to ``docs/plan-format.md``.
"""

from __future__ import annotations

from bisect import bisect_left

from monet.errors import InvalidPlan
from monet.plans.copies import carried_places, check_copies
from monet.plans.format import READ, WAIT, WRITE, Buffer, PlanData, whole_blocks
from monet.plans.sizes import check_sizes

ALIGNMENT = 64  # bytes
OPERATORS = ("forward", "recompute", "backward", "update")
COPIES = (WRITE, READ, WAIT)
KINDS = (*OPERATORS, *COPIES)


def verify(plan: PlanData) -> None:
    """Return when ``plan`` is valid; raise InvalidPlan naming the step or buffer, and by how much, otherwise.

    O((steps + buffers) log buffers): about 0.3 s for 20k steps and buffers.
    """
    buffers = _check_buffers(plan)
    _check_steps(plan)
    _check_ticks(plan)
    _check_leaving(plan)
    makers = _check_requests(plan, buffers)
    _check_contents(plan, buffers, makers)
    check_copies(plan)
    check_sizes(plan)
    _check_overlap(plan)
    _check_totals(plan)


def _check_buffers(plan: PlanData) -> dict[int, Buffer]:
    """Ids are unique; each buffer has bytes and ticks, is aligned, and lies in the arena."""
    buffers: dict[int, Buffer] = {}
    for buffer in plan.buffers:
        name = f"buffer {buffer.id}"
        if buffer.id in buffers:
            raise InvalidPlan(f"{name}: the id occurs twice")
        buffers[buffer.id] = buffer
        if buffer.bytes <= 0:
            raise InvalidPlan(f"{name}: has {buffer.bytes} bytes")
        if not 0 <= buffer.begin < buffer.end:
            raise InvalidPlan(f"{name}: ticks [{buffer.begin}, {buffer.end}) hold no tick, or a negative one")
        if not 0 <= buffer.first <= buffer.last < len(plan.steps):
            raise InvalidPlan(
                f"{name}: steps {buffer.first} to {buffer.last} are not steps of this plan, which has {len(plan.steps)}"
            )
        if buffer.offset < 0 or buffer.offset % ALIGNMENT:
            raise InvalidPlan(f"{name}: offset {buffer.offset} is not a multiple of {ALIGNMENT} bytes in the arena")
        excess = buffer.offset + buffer.bytes - plan.arena_bytes
        if excess > 0:
            raise InvalidPlan(f"{name}: ends {excess} bytes above the arena's {plan.arena_bytes} bytes")
    return buffers


def _check_steps(plan: PlanData) -> None:
    """Kinds are known, and in order unless the step is whole (it has updates); begin ticks do not decrease."""
    whole = any(step.kind == "update" for step in plan.steps)
    carried = carried_places(plan)
    forward_is_over, tick = False, 0
    for k, step in enumerate(plan.steps):
        if step.kind not in KINDS:
            raise InvalidPlan(f"{_name(plan, k)}: kind {step.kind!r} is none of {', '.join(KINDS)}")
        if step.kind == "forward" and forward_is_over and not whole:
            raise InvalidPlan(f"{_name(plan, k)}: a forward step after the first recompute or backward step")
        back = step.kind == READ and step.place not in carried
        ends_forward = back or step.kind in ("recompute", "backward", "update")
        if forward_is_over and step.kind == WRITE and step.place not in carried:
            raise InvalidPlan(f"{_name(plan, k)}: writes after the forward pass")
        forward_is_over = forward_is_over or ends_forward
        if step.begin < tick:
            raise InvalidPlan(f"{_name(plan, k)}: begins at tick {step.begin}, before tick {tick} of the step before")
        tick = step.begin


def _check_ticks(plan: PlanData) -> None:
    """A buffer's first and last ticks lie in its first and last steps.

    Step k covers the ticks [begin of k, begin of k+1); the last step has no end.
    """
    begins = [step.begin for step in plan.steps]
    for buffer in plan.buffers:
        for what, tick, k in (("first", buffer.begin, buffer.first), ("last", buffer.end - 1, buffer.last)):
            stop = begins[k + 1] if k + 1 < len(begins) else None
            if tick < begins[k] or (stop is not None and tick >= stop):
                raise InvalidPlan(
                    f"buffer {buffer.id}: {what} tick {tick} is not one of its {what} step {k}, "
                    f"which covers [{begins[k]}, {'end' if stop is None else stop})"
                )


def _check_leaving(plan: PlanData) -> None:
    """What outlives the step is in use until its last tick, so nothing that comes later shares a byte with it."""
    end = max((buffer.end for buffer in plan.buffers), default=0)
    for buffer in plan.buffers:
        if not buffer.leaves:
            continue
        if buffer.last != len(plan.steps) - 1:
            raise InvalidPlan(f"buffer {buffer.id}: outlives the step, but its last step is {buffer.last}")
        if buffer.end != end:
            raise InvalidPlan(
                f"buffer {buffer.id}: outlives the step, but ends at tick {buffer.end}, {end - buffer.end} before the "
                "last one"
            )
        if plan.steps[buffer.first].kind not in ("backward", "update"):
            raise InvalidPlan(
                f"buffer {buffer.id}: outlives the step, but {_name(plan, buffer.first)} makes it before the backward "
                "pass, when what an earlier step left may still be there"
            )


def _check_requests(plan: PlanData, buffers: dict[int, Buffer]) -> dict[int, int]:
    """Each buffer serves one request, of its size, in its first step.

    Returns buffer id → the step that requests it. Only a step without any request (one whose
    implementation is handed its outputs) may write buffers that nobody requests: they are absent.
    """
    makers: dict[int, int] = {}
    for k, step in enumerate(plan.steps):
        if len(step.requests) != len(step.request_bytes):
            raise InvalidPlan(
                f"{_name(plan, k)}: {len(step.requests)} requests, but {len(step.request_bytes)} request sizes"
            )
        if step.workers and (not step.requests or step.requests[-1] is None):
            raise InvalidPlan(f"{_name(plan, k)}: has memory for worker threads, but its last request has no buffer")
        if step.workers and step.requests[-1] in step.writes.values():
            raise InvalidPlan(f"{_name(plan, k)}: writes a value to the memory of its worker threads")
        for n, (id, size) in enumerate(zip(step.requests, step.request_bytes, strict=True)):
            where = f"{_name(plan, k)}, request {n}"
            if size < 0:
                raise InvalidPlan(f"{where}: asks for {size} bytes")
            if id is None:
                continue
            if id not in buffers:
                raise InvalidPlan(f"{where}: there is no buffer {id}")
            if id in makers:
                raise InvalidPlan(f"{where}: buffer {id} already serves a request of {_name(plan, makers[id])}")
            makers[id] = k
            if buffers[id].first != k:
                raise InvalidPlan(f"{where}: buffer {id} begins in step {buffers[id].first}")
            if buffers[id].bytes != size:
                raise InvalidPlan(f"{where}: asks for {size} bytes, and buffer {id} has {buffers[id].bytes}")
    return makers


def _check_contents(plan: PlanData, buffers: dict[int, Buffer], makers: dict[int, int]) -> None:
    """Replay: every read finds its value in the buffer it names; every write is to a new or in-place buffer."""
    made = {value for step in plan.steps for value in step.writes}
    contents: dict[int, str] = {}
    for k, step in enumerate(plan.steps):
        for value, id in step.reads.items():
            where = f"{_name(plan, k)} reads {value!r} from buffer {id}"
            _check_alive(where, k, id, buffers)
            if value not in made:
                raise InvalidPlan(f"{where}: no step makes that value")
            if id not in contents:
                raise InvalidPlan(f"{where}: nothing was written there yet")
            if contents[id] != value:
                raise InvalidPlan(f"{where}: it holds {contents[id]!r} by then")
        read, written = set(step.reads.values()), set[int]()
        for value, id in step.writes.items():
            where = f"{_name(plan, k)} writes {value!r} to buffer {id}"
            _check_alive(where, k, id, buffers)
            if id in written:
                raise InvalidPlan(f"{where}: the step writes two values there")
            written.add(id)
            if id in read:
                if value in step.reads:
                    raise InvalidPlan(f"{where}: an in-place step must give the new content a name of its own")
            elif buffers[id].first != k and step.kind != WAIT:
                raise InvalidPlan(f"{where}: it is not read by the step, and begins in step {buffers[id].first}")
            elif buffers[id].value != value:
                raise InvalidPlan(f"{where}: it is said to hold {buffers[id].value!r} first")
            elif id not in makers and (step.requests or step.kind == WAIT):
                raise InvalidPlan(f"{where}: none of the step's requests is for that buffer")
            contents[id] = value
    for id, buffer in buffers.items():
        if id in contents:
            continue
        if id not in makers:
            raise InvalidPlan(f"buffer {id}: no step requests it and none writes it")
        if plan.steps[makers[id]].kind == READ:
            raise InvalidPlan(f"buffer {id}: {_name(plan, makers[id])} reads into it, and nothing waits for it")
        if buffer.leaves:
            raise InvalidPlan(f"buffer {id}: outlives the step, and no step writes it")
        if buffer.last != buffer.first:
            raise InvalidPlan(
                f"buffer {id}: no step writes it, so it is a temporary of step {buffer.first}, "
                f"but it is in use up to step {buffer.last}"
            )


def _check_alive(where: str, k: int, id: int, buffers: dict[int, Buffer]) -> None:
    if id not in buffers:
        raise InvalidPlan(f"{where}: there is no such buffer")
    if not buffers[id].first <= k <= buffers[id].last:
        raise InvalidPlan(f"{where}: it is in use during steps {buffers[id].first} to {buffers[id].last} only")


def _check_overlap(plan: PlanData) -> None:
    """Sweep over the ticks: no two buffers in use at the same tick share a byte.

    A buffer that a step reads or writes is in use until that step ends, whatever its own end says: the
    operator may still touch it while a later request of the step is served.
    """
    copied = {id for step in plan.steps if step.kind == READ for id in step.requests}  # whole blocks are read
    ends = {buffer.id: buffer.end for buffer in plan.buffers}
    stops = [step.begin for step in plan.steps[1:]] + [max(ends.values(), default=0)]
    for step, stop in zip(plan.steps, stops, strict=False):
        for id in (*step.reads.values(), *step.writes.values()):
            ends[id] = max(ends[id], stop)

    active: list[tuple[int, int, int]] = []  # (offset, top, id), disjoint, hence sorted by top too
    for _, begins, buffer in _events(plan, ends):
        size = whole_blocks(buffer.bytes) if buffer.id in copied else buffer.bytes
        place = (buffer.offset, buffer.offset + size, buffer.id)
        at = bisect_left(active, place)
        if not begins:
            del active[at]
            continue
        for offset, top, id in active[max(at - 1, 0) : at + 1]:
            shared = min(top, place[1]) - max(offset, place[0])
            if shared > 0:
                raise InvalidPlan(
                    f"buffers {id} and {buffer.id} overlap by {shared} bytes at tick {buffer.begin}: "
                    f"[{offset}, {top}) and [{place[0]}, {place[1]})"
                )
        active.insert(at, place)


def _events(plan: PlanData, ends: dict[int, int]) -> list[tuple[int, bool, Buffer]]:
    """(tick, whether the buffer begins, buffer), in order; at a tick, ends come first (half-open)."""
    events = [(ends[buffer.id], False, buffer) for buffer in plan.buffers]
    events += [(buffer.begin, True, buffer) for buffer in plan.buffers]
    return sorted(events, key=lambda event: event[:2])


def _check_totals(plan: PlanData) -> None:
    """Load <= bound <= arena; the breakdown of the fixed bytes adds up; fixed and arena fit the budget."""
    load = most = 0
    for _, begins, buffer in _events(plan, {buffer.id: buffer.end for buffer in plan.buffers}):
        load += buffer.bytes if begins else -buffer.bytes
        most = max(most, load)
    if most > plan.arena_bytes:
        raise InvalidPlan(f"{most} bytes are in use at one tick, {most - plan.arena_bytes} more than the arena has")
    if plan.arena_bound_bytes < most:
        raise InvalidPlan(
            f"arena_bound_bytes is {plan.arena_bound_bytes}, {most - plan.arena_bound_bytes} under the load"
        )
    if plan.arena_bound_bytes > plan.arena_bytes:
        raise InvalidPlan(f"arena_bound_bytes is {plan.arena_bound_bytes}, above the arena's {plan.arena_bytes} bytes")
    for name, size in plan.fixed.items():
        if size < 0:
            raise InvalidPlan(f"fixed[{name!r}] is {size} bytes")
    total = sum(plan.fixed.values())
    if total != plan.fixed_bytes:
        raise InvalidPlan(f"fixed_bytes is {plan.fixed_bytes}, but its breakdown adds up to {total}")
    excess = plan.fixed_bytes + plan.arena_bytes - plan.budget_bytes
    if excess > 0:
        raise InvalidPlan(
            f"needs {plan.fixed_bytes} fixed and {plan.arena_bytes} arena bytes, "
            f"{excess} more than the budget of {plan.budget_bytes}"
        )


def _name(plan: PlanData, k: int) -> str:
    step = plan.steps[k]
    return f"step {k} ({step.kind} {step.node})"

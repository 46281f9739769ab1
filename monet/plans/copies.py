"""The part of the verifier that knows copies: what is under way is neither changed, nor read, nor given away.

Of each place in the second memory the steps tell a story, which must be this one::

    write ── wait ── read ── wait ── read ── wait …
    from its buffer   into a buffer of its own each time

A place whose story begins with a ``read`` holds a parameter or state from one step to the next. It is read as often as
it is used, into a buffer of its own each time. Where an update changes what was read last, that must be written back,
and ends the story::

    read ── wait ── read ── wait ── update ── write ── wait
    into a buffer           …       in place  from that buffer

Public code has got each of these edges wrong: a read before its write was over, memory given away under a write, a
value used before it was back. Nothing raises then, and the loss still falls.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

from monet.errors import InvalidPlan
from monet.plans.format import COPY_ALIGNMENT, READ, WAIT, WRITE, PlanData, PlanStep, whole_blocks

_THERE = "there"


@dataclass(slots=True)
class _Place:
    """``value``, of ``bytes`` bytes, at [begin, end) of the second memory; ``buffer``: which is copied from or to,
    while one is."""

    value: str
    bytes: int
    begin: int
    end: int
    state: str
    buffer: int
    carried: bool = False
    changed: str | None = None  # of what is carried: the name of its content once its update has changed it
    written: bool = False  # and that has been issued to be written back


def check_copies(plan: PlanData) -> None:
    """Raises ``InvalidPlan``, which names the step, where a copy does not belong or something interferes with it."""
    buffers = {buffer.id: buffer for buffer in plan.buffers}
    carried = carried_places(plan)
    held: dict[int, _Place] = {}  # by each buffer that what is carried was read into
    places: dict[int, _Place] = {}
    taken: list[tuple[int, int]] = []  # of places, in order
    moved: set[str] = set()
    under_way: dict[int, _Place] = {}  # by the buffer that is copied
    for k, step in enumerate(plan.steps):
        name = f"step {k} ({step.kind} {step.node})"
        if step.kind not in (WRITE, READ, WAIT):
            if step.place is not None:
                raise InvalidPlan(f"{name}: has a place in the second memory, and copies nothing")
            _check_apart(step, name, under_way)
            _follow_updates(step, name, held)
            continue
        begin = _checked_place(plan, step, name)
        buffer = _buffer_of(step, name)
        size = buffers[buffer].bytes
        end = begin + whole_blocks(size)
        if end > plan.second_bytes:
            raise InvalidPlan(f"{name}: its place ends {end - plan.second_bytes} bytes above the second memory's")
        if buffers[buffer].offset % COPY_ALIGNMENT:
            raise InvalidPlan(f"{name}: buffer {buffer} is at no multiple of {COPY_ALIGNMENT} bytes")
        place = places.get(begin)
        if step.kind == READ and place is None and begin in carried:
            if step.node in moved:
                raise InvalidPlan(f"{name}: has another place in the second memory already")
            _check_new(name, begin, end, places, taken)
            moved.add(step.node)
            places[begin] = under_way[buffer] = held[buffer] = _Place(step.node, size, begin, end, READ, buffer, True)
        elif step.kind == WRITE and place is not None and place.carried:
            _check_written_back(step, name, place, buffer)
            place.state, place.value, place.written = WRITE, step.node, True
            under_way[buffer] = place
        elif step.kind == WRITE:
            if step.node in moved:
                raise InvalidPlan(f"{name}: is written to the second memory already")
            _check_new(name, begin, end, places, taken)
            moved.add(step.node)
            places[begin] = under_way[buffer] = _Place(step.node, size, begin, end, WRITE, buffer)
        elif place is None:
            raise InvalidPlan(f"{name}: nothing was written to its place")
        elif place.value != step.node or place.bytes != size:
            raise InvalidPlan(f"{name}: its place holds {place.bytes} bytes of {place.value!r}, and it copies {size}")
        elif step.kind == READ:
            if place.carried:
                if place.changed is not None:
                    raise InvalidPlan(f"{name}: {place.value!r} has changed in buffer {place.buffer} since it was read")
                held[buffer] = place
            if place.state == WRITE:
                raise InvalidPlan(f"{name}: is issued before the wait for the write of {place.value!r}")
            if place.state == READ:
                raise InvalidPlan(f"{name}: {place.value!r} is being read into buffer {place.buffer} already")
            place.state, place.buffer = READ, buffer
            under_way[buffer] = place
        else:
            _check_wait(step, name, place, buffer)
            place.state = _THERE
            del under_way[buffer]
    top = max((place.end for place in places.values()), default=0)
    if plan.second_bytes != top:
        raise InvalidPlan(f"second_bytes is {plan.second_bytes}, and the places in the second memory end at {top}")
    for place in places.values():
        if place.state != _THERE:
            raise InvalidPlan(f"{place.value!r}: nothing waits for its {place.state} before the step ends")
    for place in held.values():
        if place.changed is not None and not place.written:
            raise InvalidPlan(f"{place.value!r}: is changed by an update, and not written back for the next step")


def carried_places(plan: PlanData) -> frozenset[int]:
    """Places that hold something when the step begins: the first copy of each reads it."""
    first: dict[int, str] = {}
    for step in plan.steps:
        if step.kind in (WRITE, READ) and step.place is not None:
            first.setdefault(step.place, step.kind)
    return frozenset(place for place, kind in first.items() if kind == READ)


def _follow_updates(step: PlanStep, name: str, held: dict[int, _Place]) -> None:
    """What is carried is changed by every update that reads it, and by nothing else."""
    if step.kind == "update":
        for value, buffer in step.reads.items():
            if buffer in held and buffer not in step.writes.values():
                raise InvalidPlan(
                    f"{name}: reads {value!r} and leaves it as it was, and an update changes what it reads"
                )
    for value, buffer in step.writes.items():
        place = held.get(buffer)
        if place is None:
            continue
        if place.buffer != buffer:
            raise InvalidPlan(f"{name}: changes buffer {buffer}, and {place.value!r} was read again since")
        if step.kind != "update" or step.reads.get(place.value) != buffer:
            raise InvalidPlan(f"{name}: changes buffer {buffer} with {place.value!r}, which an update alone may change")
        place.changed, place.written = value, False


def _check_written_back(step: PlanStep, name: str, place: _Place, buffer: int) -> None:
    if place.state != _THERE:
        raise InvalidPlan(f"{name}: a {place.state} of {place.value!r} is under way")
    if place.buffer != buffer:
        raise InvalidPlan(f"{name}: buffer {buffer} is not that of {place.value!r}, which is {place.buffer}")
    if place.changed is None:
        raise InvalidPlan(f"{name}: no update has changed {place.value!r} since it was read")
    if step.node != place.changed:
        raise InvalidPlan(f"{name}: writes {step.node!r}, and the update left {place.changed!r}")


def _checked_place(plan: PlanData, step: PlanStep, name: str) -> int:
    if step.place is None:
        raise InvalidPlan(f"{name}: has no place in the second memory")
    if step.place < 0 or step.place % COPY_ALIGNMENT:
        raise InvalidPlan(f"{name}: place {step.place} is not a multiple of {COPY_ALIGNMENT} bytes")
    return step.place


def _buffer_of(step: PlanStep, name: str) -> int:
    """The one buffer that a copy is about."""
    maps = {WRITE: (1, 0, 0), READ: (0, 0, 1)}.get(step.kind)
    counts = len(step.reads), len(step.writes), len(step.requests)
    right = counts == maps if maps is not None else counts in ((1, 0, 0), (0, 1, 0))
    value = next(iter((*step.reads, *step.writes)), step.node)
    if not right or value != step.node:
        raise InvalidPlan(f"{name}: a copy is of one value and one buffer")
    buffer = next(iter((*step.reads.values(), *step.writes.values(), *step.requests)))
    if buffer is None:
        raise InvalidPlan(f"{name}: its buffer is not in the arena")
    return buffer


def _check_new(name: str, begin: int, end: int, places: dict[int, _Place], taken: list[tuple[int, int]]) -> None:
    """The place is apart from all others; ``taken`` has it then, too."""
    at = bisect_left(taken, (begin, end))
    for other, stop in taken[max(at - 1, 0) : at + 1]:
        shared = min(end, stop) - max(begin, other)
        if shared > 0:
            raise InvalidPlan(f"{name}: its place overlaps that of {places[other].value!r} by {shared} bytes")
    taken.insert(at, (begin, end))


def _check_wait(step: PlanStep, name: str, place: _Place, buffer: int) -> None:
    expected = WRITE if step.reads else READ
    if place.state != expected:
        raise InvalidPlan(f"{name}: no {expected} of {place.value!r} is under way")
    if place.buffer != buffer:
        raise InvalidPlan(f"{name}: buffer {buffer} is not the one that is copied, which is {place.buffer}")


def _check_apart(step: PlanStep, name: str, under_way: dict[int, _Place]) -> None:
    """An operator may read what is being written to the second memory, and do nothing else to what is on its way."""
    for buffer in (*step.reads.values(), *step.writes.values()):
        place = under_way.get(buffer)
        if place is None:
            continue
        if place.state == READ:
            raise InvalidPlan(f"{name}: uses buffer {buffer}, into which {place.value!r} is still being read")
        if buffer in step.writes.values():
            raise InvalidPlan(f"{name}: changes buffer {buffer}, whose {place.value!r} is being copied")

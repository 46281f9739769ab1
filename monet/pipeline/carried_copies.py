"""When parameters and state that the second memory holds between steps are read and written, for a schedule's calls."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from monet.pipeline.lowering import Lowered
from monet.pipeline.schedule import Call, Copy
from monet.pipeline.unrolling import Unrolled, unroll
from monet.planner.channel import Channel, Traffic
from monet.planner.streaming import Streamed, streamed
from monet.plans.format import READ, WAIT, WRITE, whole_blocks


def with_carried_copies(
    schedule: Sequence[Call | Copy], lowered: Lowered, capacity_bytes: int
) -> tuple[Call | Copy, ...]:
    """The schedule with copies of all that ``lowered`` carries, within an arena of so many bytes; where that is less
    than the operators need, as few as possible."""
    second = lowered.problem.second
    assert second is not None
    calls = [call for call in schedule if isinstance(call, Call)]
    loads = _loads(schedule, unroll(schedule, replace(lowered, carried=frozenset())))
    stays = streamed(
        _tensors(calls, lowered),
        [call.measured.time_s for call in calls],
        (capacity_bytes - loads).tolist(),
        second.undivided,
    )
    before: dict[int, list[Copy]] = defaultdict(list)
    after: dict[int, list[Copy]] = defaultdict(list)
    for stay in stays:
        before[stay.issue].append(Copy(READ, stay.id))
    for stay in stays:
        before[stay.first].append(Copy(WAIT, stay.id, back=True))
        if stay.release is not None:
            after[stay.last].append(Copy(WRITE, stay.id))
    for stay in stays:
        if stay.release is not None:
            after[stay.release].append(Copy(WAIT, stay.id))
    found: list[Call | Copy] = []
    position = 0
    for each in schedule:
        if isinstance(each, Call):
            found += [*before[position], each, *after[position]]
            position += 1
        else:
            found.append(each)
    return tuple(found)


def _tensors(calls: Sequence[Call], lowered: Lowered) -> list[Streamed]:
    """What is carried, with the calls that use it. An update changes its parameter and the state that it reads."""
    offers, uses = lowered.catalogue, defaultdict(list)
    changed: set[str] = set()
    for position, call in enumerate(calls):
        used = {offers.storage(name) for name in call.implementation.inputs()} & lowered.carried
        for name in used:
            uses[name].append(position)
        changed |= used if call.kind == "update" else set()
    sizes = {name: offers.values[name].storage_bytes for name in uses}
    return [
        Streamed(name, size, whole_blocks(size), tuple(uses[name]), name in changed)
        for name, size in sorted(sizes.items())
    ]


def _loads(schedule: Sequence[Call | Copy], unrolled: Unrolled) -> NDArray[np.int64]:
    """Bytes in the arena at each call, and in copies after it, until the next one."""
    ticks = max((buffer.end for buffer in unrolled.buffers), default=0) + 1
    change = np.zeros(ticks + 1, dtype=np.int64)
    for buffer in unrolled.buffers:
        size = whole_blocks(buffer.bytes)
        change[buffer.begin] += size
        change[buffer.end] -= size
    load = np.cumsum(change)
    begins = [step.begin for each, step in zip(schedule, unrolled.steps, strict=True) if isinstance(each, Call)]
    ends = [*begins[1:], ticks]
    return np.array(
        [load[begin : max(begin + 1, end)].max() for begin, end in zip(begins, ends, strict=True)], dtype=np.int64
    )


def copied(schedule: Sequence[Call | Copy], lowered: Lowered) -> Traffic:
    """What the schedule's copies cost, by one channel."""
    second, values = lowered.problem.second, lowered.catalogue.values
    assert second is not None
    channel, now_s = Channel(second.undivided), 0.0
    for each in schedule:
        if isinstance(each, Call):
            now_s += each.measured.time_s
        elif each.kind == WAIT:
            now_s += channel.wait(each.storage, now_s)
        else:
            issue = channel.read if each.kind == READ else channel.write
            now_s += issue(each.storage, values[each.storage].storage_bytes, now_s)
    return channel.traffic()

"""Tensors that live in the second memory between steps: when each is read for the operators that use it, and written.

Of parameters and of an optimiser's state the step knows every use in advance, and so of each stay in memory::

    read issued ── waited for ── used … used ── (written ── waited for)
    issue          first              last       release

That is paging with a known future. Three rules, in this order, with the memory that a schedule of operators leaves:

* what an operator uses is there while it runs;
* between two uses a tensor stays where there is room, the shortest time first (each such stay saves a read);
* reads are issued in the order of their uses, as early as the channel is free for them, and there is room, but not
  earlier than need be; what is written holds its memory until that is over, or the step waits for it.

As in ZeRO-Infinity (Rajbhandari et al., SC 2021), whose schedule is written by hand for layers; here it follows the
operators, recomputation included.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

from monet.planner.channel import Channel
from monet.planner.problem import SYNCHRONOUS, SecondMemory

SLACK = 0.25
"""Of a copy's time: by how much earlier a read is issued than need be."""


@dataclass(frozen=True, slots=True)
class Streamed:
    """A tensor of ``bytes`` bytes, in the second memory between steps, that takes ``held_bytes`` of the first.
    ``uses``: positions of the operators that use it, in order. ``changed``: by the last of them."""

    id: str
    bytes: int
    held_bytes: int
    uses: tuple[int, ...]
    changed: bool


@dataclass(frozen=True, slots=True)
class Stay:
    """Positions of operators: the read is issued before ``issue`` and waited for before ``first``; ``last`` is the last
    that uses it here. ``release``: after which a write is waited for that is issued after ``last``; None: it has not
    changed, and is not written."""

    id: str
    issue: int
    first: int
    last: int
    release: int | None


@dataclass(slots=True)
class _Stay:
    tensor: Streamed
    earliest: int  # position to issue its read at: after the stay before
    first: int
    last: int
    changed: bool
    issue: int = -1
    release: int | None = None

    @property
    def held_bytes(self) -> int:
        return self.tensor.held_bytes


def streamed(
    tensors: Sequence[Streamed], seconds: Sequence[float], free_bytes: Sequence[int], memory: SecondMemory
) -> tuple[Stay, ...]:
    """The stays of ``tensors``, in the order in which their reads are issued.

    ``seconds``: of each operator; ``free_bytes``: what it leaves of the memory, without ``tensors``. Where what the
    operators use does not fit, there is as much more as that takes.
    """
    left: NDArray[np.int64] = np.array(free_bytes, dtype=np.int64)
    for tensor in tensors:
        left[list(tensor.uses)] -= tensor.held_bytes
    left += max(0, -int(left.min(initial=0)))
    if memory.mode == SYNCHRONOUS:
        spare = [0]
    else:  # room for one that is on its way, or none: what is kept saves reads, what comes early hides them
        spare = sorted({0, max((tensor.held_bytes for tensor in tensors), default=0)})
    found = []
    for room in spare:
        remaining = left.copy()
        stays = _kept(tensors, seconds, remaining, room)
        found.append((_issued(stays, seconds, remaining, memory), stays))
    _, best = min(found, key=lambda each: each[0])
    ordered = sorted(best, key=lambda stay: (stay.issue, stay.first))
    return tuple(Stay(stay.tensor.id, stay.issue, stay.first, stay.last, stay.release) for stay in ordered)


def _kept(tensors: Sequence[Streamed], seconds: Sequence[float], left: NDArray[np.int64], room: int) -> list[_Stay]:
    """Stays by their first use, with the shortest gaps closed that leave ``room`` bytes; ``left`` is less by these."""
    begins = [0.0, *accumulate(seconds)]
    gaps = [
        (begins[after] - begins[before + 1], tensor.id, before, after, tensor.held_bytes)
        for tensor in tensors
        for before, after in pairwise(tensor.uses)
    ]
    closed: dict[str, set[int]] = defaultdict(set)
    for _, name, before, after, size in sorted(gaps):
        between = left[before + 1 : after]
        if len(between) == 0 or between.min() >= size + room:
            between -= size
            closed[name].add(before)
    stays = []
    for tensor in tensors:
        earliest, first = 0, tensor.uses[0]
        for use, following in pairwise((*tensor.uses, None)):
            assert use is not None
            if use not in closed[tensor.id]:
                changed = tensor.changed and following is None
                stays.append(_Stay(tensor, earliest, first, use, changed))
                earliest, first = use + 1, use if following is None else following
    return sorted(stays, key=lambda stay: (stay.first, stay.tensor.id))


def _issued(stays: Sequence[_Stay], seconds: Sequence[float], left: NDArray[np.int64], memory: SecondMemory) -> float:
    """Sets when each stay's read is issued, and its write over; returns the seconds of all, waiting included."""
    wanted = _latest(stays, seconds, memory)
    channel = Channel(memory)
    coming = deque(stays)
    needed: dict[int, list[_Stay]] = defaultdict(list)
    ends: dict[int, list[_Stay]] = defaultdict(list)
    for stay in stays:
        needed[stay.first].append(stay)
        ends[stay.last].append(stay)
    writing: list[_Stay] = []
    clock = free_s = 0.0
    for position, taken_s in enumerate(seconds):
        while coming:
            stay = coming[0]
            if stay.first > position:
                # The next chance comes after this operator, and after what it waits for.
                ready = max([clock, *(channel.done_s(each.tensor.id) for each in needed[position])]) + taken_s
                room = bool(left[position : stay.first].min() >= stay.held_bytes)
                early = memory.mode != SYNCHRONOUS and stay.earliest <= position
                early = early and wanted[id(stay)] < ready and free_s <= ready
                if not (early and room):
                    break
            left[position : stay.first] -= stay.held_bytes
            stay.issue = position
            clock += channel.read(stay.tensor.id, stay.tensor.bytes, clock)
            free_s = channel.done_s(stay.tensor.id)
            coming.popleft()
        for stay in needed[position]:
            clock += channel.wait(stay.tensor.id, clock)
        clock += taken_s
        for stay in ends[position]:
            if stay.changed:
                clock += channel.write(stay.tensor.id, stay.tensor.bytes, clock)
                free_s = channel.done_s(stay.tensor.id)
                writing.append(stay)
        following = position + 1
        held, writing = writing, []
        for stay in held:
            over = channel.done_s(stay.tensor.id) <= clock
            if over or following == len(seconds) or left[following] < stay.held_bytes:
                clock += channel.wait(stay.tensor.id, clock)
                stay.release = position
            else:
                left[following] -= stay.held_bytes
                writing.append(stay)
    return clock


def _latest(stays: Sequence[_Stay], seconds: Sequence[float], memory: SecondMemory) -> dict[int, float]:
    """When each stay's read has to begin, so that no operator waits for it or for those that come after it, by one
    channel; earlier by some of its time."""
    begins = [0.0, *accumulate(seconds)]
    following = begins[-1]
    found = {}
    for stay in reversed(stays):
        read_s = memory.read_s(stay.tensor.bytes)
        following = min(begins[stay.first], following) - read_s
        found[id(stay)] = following - SLACK * read_s
    return found

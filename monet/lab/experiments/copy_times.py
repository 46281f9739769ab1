"""What copies add to the seconds of a plan's steps: what a wait takes, and what operators lose beside a copy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from monet.planner.channel import Channel
from monet.planner.problem import ASYNCHRONOUS, SecondMemory
from monet.plans.format import READ, WAIT, WRITE
from monet.plans.plan import Plan


@dataclass(slots=True)
class _Copy:
    """``begin_s``, ``end_s``: when it runs, in seconds since the step began. ``issued``, ``waited``: by which steps."""

    begin_s: float
    end_s: float
    bytes: int
    issued: int
    waited: int


def seconds_with_copies(plan: Plan, alone_s: Sequence[float]) -> list[float]:
    """Seconds of every step as the plan predicts them; they add up to the plan's.

    ``alone_s``: of every step's operator by itself, 0 for copies. A wait takes what is left of its copy at that time.
    What operators lose beside a copy is theirs that run meanwhile, by time; of a copy beside which nothing runs it is
    the wait's. A plan without copies has nothing added.
    """
    found = list(alone_s)
    if plan.second_bytes == 0:
        return found
    memory = _memory(plan)
    channel = Channel(memory)
    sizes = {buffer.id: buffer.bytes for buffer in plan.buffers}
    begins: list[float] = []
    copies: list[_Copy] = []
    newest: dict[int | None, _Copy] = {}  # by place
    now = 0.0
    for k, step in enumerate(plan.steps):
        begins.append(now)
        place = str(step.place)
        if step.kind in (WRITE, READ):
            size = sum(sizes[number] for number in step.reads.values()) + sum(step.request_bytes)
            issue, seconds = (channel.write, memory.write_s) if step.kind == WRITE else (channel.read, memory.read_s)
            found[k] = issue(place, size, now)
            end = channel.done_s(place)
            newest[step.place] = _Copy(end - seconds(size), end, size, k, k)
            copies.append(newest[step.place])
        if step.kind == WAIT:
            newest[step.place].waited = k
            found[k] = channel.wait(place, now)
        now += found[k]
    if memory.mode == ASYNCHRONOUS:
        _add_slowdown(plan, begins, alone_s, found, copies, memory.slowdown_s)
    return found


def _add_slowdown(
    plan: Plan,
    begins: Sequence[float],
    alone_s: Sequence[float],
    found: list[float],
    copies: Sequence[_Copy],
    slowdown_s: float,
) -> None:
    """``slowdown_s``: for each byte that is copied."""
    for copy in copies:
        beside = {
            k: max(0.0, min(copy.end_s, begins[k] + alone_s[k]) - max(copy.begin_s, begins[k]))
            for k in range(copy.issued, copy.waited)
            if plan.steps[k].place is None
        }
        whole = sum(beside.values())
        shares = {k: share / whole for k, share in beside.items()} if whole > 0 else {copy.waited: 1.0}
        for k, share in shares.items():
            found[k] += slowdown_s * copy.bytes * share


def _memory(plan: Plan) -> SecondMemory:
    """As the plan's copies were timed. A field that an older plan has not is 0."""
    described = plan.environment["second_memory"]
    return SecondMemory(
        float(described["write_rate"]), float(described["read_rate"]),
        slowdown_s=float(described.get("slowdown_s", 0.0)), mode=described.get("mode", ASYNCHRONOUS),
    )  # fmt: skip

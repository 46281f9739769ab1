"""What the operators of a plan with copies find in memory, by cells of 64 bytes, however the copies are timed.

Shares nothing with the verifier: it knows no lifetimes and no states, only bytes, and a queue of copies.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field

import numpy as np

from monet.plans.format import Buffer, PlanStep
from monet.plans.plan import Plan

CELL = 64
BLOCK = 4096 // CELL
EAGER, LAZY = "eager", "lazy"
Seen = list[tuple[str, tuple[tuple[str, int], ...]]]


def _cells(size: int) -> int:
    return -(-size // CELL)


@dataclass
class _Machine:
    """``timing``: copies are over at once, not before they are waited for, or by chance from a seed."""

    plan: Plan
    timing: str
    memory: np.ndarray = field(init=False)
    disk: np.ndarray = field(init=False)
    queue: deque[tuple[int, PlanStep, Buffer]] = field(default_factory=deque)
    ticket: dict[int, int] = field(default_factory=dict)
    issued: int = 0
    garbage: int = 0

    def __post_init__(self) -> None:
        self.memory = np.zeros(_cells(self.plan.arena_bytes) + BLOCK, dtype=np.int64)
        self.disk = np.zeros(_cells(self.plan.second_bytes) + BLOCK, dtype=np.int64)
        for buffer, first in self.carried().values():
            at = (first.place or 0) // CELL
            self.disk[at : at + _cells(buffer.bytes)] = hash(("carried", first.node))

    def carried(self) -> dict[int, tuple[Buffer, PlanStep]]:
        """By place, what a step begins with a read of: the buffer and the read."""
        buffers = {buffer.id: buffer for buffer in self.plan.buffers}
        first: dict[int, PlanStep] = {}
        for step in self.plan.steps:
            if step.kind in ("write", "read") and step.place is not None:
                first.setdefault(step.place, step)
        return {p: (buffers[step.requests[0] or 0], step) for p, step in first.items() if step.kind == "read"}

    def left(self) -> list[tuple[str, int]]:
        """What the next step will find of what is carried; 0 where that is not one thing."""
        found = []
        for place, (buffer, first) in self.carried().items():
            cells = self.disk[place // CELL : place // CELL + _cells(buffer.bytes)]
            found.append((first.node, int(cells[0]) if (cells == cells[0]).all() else 0))
        return sorted(found)

    def fill(self, buffer: Buffer, content: int) -> None:
        first = buffer.offset // CELL
        self.memory[first : first + _cells(buffer.bytes)] = content

    def scribble(self, buffer: Buffer) -> None:
        self.garbage -= 1
        self.fill(buffer, self.garbage)

    def found(self, buffer: Buffer) -> int:
        """What is in all of the buffer; 0 where that is not one thing."""
        first = buffer.offset // CELL
        cells = self.memory[first : first + _cells(buffer.bytes)]
        return int(cells[0]) if (cells == cells[0]).all() else 0

    def issue(self, step: PlanStep, buffer: Buffer) -> None:
        assert step.place is not None
        self.issued += 1
        self.ticket[step.place] = self.issued
        self.queue.append((self.issued, step, buffer))

    def wait(self, place: int | None) -> None:
        ticket = self.ticket.get(-1 if place is None else place, 0)
        while self.queue and self.queue[0][0] <= ticket:
            self.copy()

    def copy(self) -> None:
        _, step, buffer = self.queue.popleft()
        assert step.place is not None
        count = -(-_cells(buffer.bytes) // BLOCK) * BLOCK
        here = slice(buffer.offset // CELL, buffer.offset // CELL + count)
        there = slice(step.place // CELL, step.place // CELL + count)
        if step.kind == "write":
            self.disk[there] = self.memory[here]
        else:
            self.memory[here] = self.disk[there]


def contents_seen(plan: Plan, timing: str | int) -> Seen:
    """Of each operator: its node, and what it finds of each value that it reads; at last, what leaves the step and
    what is carried to the next one.

    Raises ``LookupError`` or ``ValueError`` where a step cannot be executed at all.
    """
    machine = _Machine(plan, str(timing))
    rng = random.Random(timing)
    buffers = {buffer.id: buffer for buffer in plan.buffers}
    seen: Seen = []
    for step in plan.steps:
        for id in step.requests:
            if id is not None:
                machine.scribble(buffers[id])
        if step.kind in ("write", "read"):
            ids = [id for id in (*step.reads.values(), *step.requests) if id is not None]
            machine.issue(step, buffers[ids[0]])
        elif step.kind == "wait":
            machine.wait(step.place)
        else:
            reads = tuple(sorted((value, machine.found(buffers[id])) for value, id in step.reads.items()))
            seen.append((step.node, reads))
            for value, id in step.writes.items():
                machine.fill(buffers[id], hash((step.node, value, tuple(content for _, content in reads))))
        over = {EAGER: 1.0, LAZY: 0.0}.get(machine.timing, 0.3)
        while machine.queue and rng.random() < over:
            machine.copy()
    while machine.queue:
        machine.copy()
    seen.append(("leaving", tuple(sorted((b.value, machine.found(b)) for b in plan.buffers if b.leaves))))
    seen.append(("carried", tuple(machine.left())))
    return seen

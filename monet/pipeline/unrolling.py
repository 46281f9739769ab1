"""From a solution to a straight list of steps, and the lifetime of every buffer they use.

A *buffer* is one block of memory from the request that makes it to its last use. A storage that is
run again gets a new buffer; an in-place step hands its input's buffer on to its output.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from monet.errors import SolverError
from monet.measurement import Measurement
from monet.ops.catalogue import Catalogue
from monet.ops.offers.implementation import Implementation
from monet.pipeline.lowering import Lowered
from monet.pipeline.schedule import Call, placed_storages
from monet.plans.plan import Buffer, PlanStep


@dataclass(frozen=True, slots=True)
class Unrolled:
    """Steps, and buffers whose ``offset`` is still 0."""

    steps: tuple[PlanStep, ...]
    buffers: tuple[Buffer, ...]


@dataclass(slots=True)
class _Buffer:
    id: int
    value: str
    bytes: int
    begin: int
    first: int
    last: int
    end: int | None = None


@dataclass(slots=True)
class _Builder:
    catalogue: Catalogue
    placed: frozenset[str]  # storages that live in the arena
    steps: list[PlanStep] = field(default_factory=list)
    buffers: list[_Buffer] = field(default_factory=list)
    holder: dict[str, _Buffer] = field(default_factory=dict)  # storage → the buffer that has it now
    updated: set[str] = field(default_factory=set)  # parameters and states that have their new contents
    tick: int = 0

    def add(self, kind: str, node: str, implementation: Implementation, measured: Measurement) -> None:
        """Append one step. Raises ``SolverError`` where a read storage is nowhere: a planner's mistake."""
        position = len(self.steps)
        reads: dict[str, int] = {}
        for name in implementation.inputs():
            storage = self.catalogue.storage(name)
            if storage in self.updated:
                raise SolverError(f"internal: step {position} ({kind} {node}) reads {storage} after its update")
            if storage not in self.placed:
                continue
            if storage not in self.holder:
                raise SolverError(f"internal: step {position} ({kind} {node}) reads {storage}, which is not in memory")
            self.holder[storage].last = position
            reads[storage] = self.holder[storage].id
        if kind == "update":
            inputs = {self.catalogue.storage(name) for name in implementation.inputs()}
            self.updated |= inputs - self.placed
        writes: dict[str, int] = {}
        requests: list[int | None] = []
        results = implementation.outputs
        for request in measured.requests:
            held = results[request.output] if request.output is not None else None
            made_for = self.catalogue.storage(held) if held is not None else None
            if made_for is not None and made_for not in self.placed:
                requests.append(None)
                continue
            end = None if request.end is None else self.tick + request.end
            value = made_for if made_for is not None else f"{node}.temporary"
            made = _Buffer(len(self.buffers), value, request.bytes, self.tick + request.begin, position, position, end)
            self.buffers.append(made)
            requests.append(made.id)
            if made_for is not None:
                self.holder[made_for] = made
                writes[made_for] = made.id
        overwritten = implementation.overwrites
        old = None if overwritten is None else self.catalogue.storage(overwritten)
        if old is not None and old in self.placed:
            buffer = self.holder.pop(old)
            result = implementation.outputs[0]
            if result is None:
                raise SolverError(f"internal: in-place step {position} ({node}) has no result")
            new = self.catalogue.storage(result)
            self.holder[new] = buffer
            writes[new] = buffer.id
        self.steps.append(
            PlanStep(
                kind,
                node,
                implementation.name,
                reads,
                writes,
                tuple(requests),
                tuple(r.bytes for r in measured.requests),
                self.tick,
                any(r.workers for r in measured.requests),
            )
        )
        self.tick += measured.ticks

    def finish(self) -> Unrolled:
        """Buffers that outlive their step end with the last step that uses them."""
        begins = [*(step.begin for step in self.steps), self.tick]
        buffers = tuple(
            Buffer(
                b.id, b.value, b.bytes, 0, b.begin, b.end if b.end is not None else begins[b.last + 1], b.first, b.last
            )
            for b in self.buffers
        )
        return Unrolled(tuple(self.steps), buffers)


def unroll(schedule: Sequence[Call], lowered: Lowered) -> Unrolled:
    """The steps of a schedule in its order, and the lifetimes of the buffers that they need."""
    builder = _Builder(lowered.catalogue, placed_storages(lowered))
    for call in schedule:
        builder.add(call.kind, call.node, call.implementation, call.measured)
    return builder.finish()


def place(unrolled: Unrolled, offsets: tuple[int, ...]) -> tuple[Buffer, ...]:
    """The buffers at their offsets, in the same order."""
    return tuple(replace(buffer, offset=offset) for buffer, offset in zip(unrolled.buffers, offsets, strict=True))

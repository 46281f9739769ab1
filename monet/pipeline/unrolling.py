"""From a schedule to a straight list of steps, and the lifetime of every buffer that they use.

A *buffer* is one block of memory from the request that makes it to its last use. A storage that is
run again gets a new buffer; an in-place step hands its input's buffer on to its output.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from monet.base.measurement import Request
from monet.errors import SolverError
from monet.ops.catalogue import Catalogue
from monet.pipeline.lowering import Lowered
from monet.pipeline.schedule import Call, Copy, placed_storages
from monet.plans.format import READ, WRITE, Buffer, PlanStep, whole_blocks


@dataclass(frozen=True, slots=True)
class Unrolled:
    """Steps, and buffers whose ``offset`` is still 0. ``second_bytes``: what the steps copy to the second memory, each
    value to a place of its own: all that are moved are there at the end of the forward pass, and what is carried
    always."""

    steps: tuple[PlanStep, ...]
    buffers: tuple[Buffer, ...]
    second_bytes: int = 0


@dataclass(slots=True)
class _Buffer:
    """A buffer whose last use is not known yet. ``end`` is None where the buffer outlives the run that makes it."""

    id: int
    value: str
    bytes: int
    begin: int
    first: int
    last: int
    end: int | None = None


@dataclass(slots=True)
class _Builder:
    """Steps and buffers so far, and which buffer holds each storage after the last of the steps."""

    catalogue: Catalogue
    placed: frozenset[str]  # storages that live in the arena
    leaving: frozenset[str]  # those of them that outlive the step
    eager: bool  # what autograd keeps is in use until then, though it is not read
    carried: frozenset[str] = frozenset()  # parameters and state that the second memory holds between steps
    steps: list[PlanStep] = field(default_factory=list)
    buffers: list[_Buffer] = field(default_factory=list)
    holder: dict[str, _Buffer] = field(default_factory=dict)  # storage → the buffer that has it now
    sums: dict[str, int] = field(default_factory=dict)  # storage of a sum that grows → how many terms were added
    updated: set[str] = field(default_factory=set)  # parameters and states that have their new contents
    tick: int = 0
    places: dict[str, int] = field(default_factory=dict)  # storage → where it is in the second memory
    sizes: dict[str, int] = field(default_factory=dict)  # and how many bytes it has
    coming: dict[str, _Buffer] = field(default_factory=dict)  # storage → the buffer that it is being read into
    second_bytes: int = 0

    def add(self, call: Call) -> None:
        """Append one step. Raises ``SolverError`` where a read storage is nowhere: a planner's mistake."""
        reads = self._read(call)
        if call.kind == "update":
            self._note_update(call)
        requests, made = self._make(call)
        kept = self._keep_in_place(call)
        if call.kind == "update":
            kept |= self._change_carried(call)
        self.steps.append(
            PlanStep(
                kind=call.kind,
                node=call.node,
                implementation=call.implementation.name,
                reads=reads,
                writes={**made, **kept},
                requests=requests,
                request_bytes=tuple(request.bytes for request in call.measured.requests),
                begin=self.tick,
                workers=any(request.workers for request in call.measured.requests),
            )
        )
        self.tick += call.measured.ticks

    def copy(self, copy: Copy) -> None:
        """Append a step that issues a copy or waits for one."""
        position, storage = len(self.steps), copy.storage
        reads: dict[str, int] = {}
        writes: dict[str, int] = {}
        requests: list[Request] = []
        if copy.kind == READ:
            if storage in self.carried and storage not in self.places:
                self._hold(storage, self.catalogue.values[storage].storage_bytes)
            requests.append(Request(self.sizes[storage], 0, None, None))
            self.coming[storage] = self._new_buffer(requests[0], storage)
        elif copy.back:
            self.holder[storage] = self.coming.pop(storage)
            self.holder[storage].last = position
            writes[storage] = self.holder[storage].id
        else:
            buffer = self.holder[storage]
            buffer.last = position
            reads[self._content(storage)] = buffer.id
            if copy.kind == WRITE:
                if storage not in self.carried:
                    self._hold(storage, buffer.bytes)
            else:
                del self.holder[storage]
        requested = (self.coming[storage].id,) if copy.kind == READ else ()
        self.steps.append(
            PlanStep(
                kind=copy.kind,
                node=next(iter((*reads, *writes)), storage),
                implementation="copy",
                reads=reads,
                writes=writes,
                requests=requested,
                request_bytes=tuple(request.bytes for request in requests),
                begin=self.tick,
                place=self.places[storage],
            )
        )
        self.tick += 1

    def _hold(self, storage: str, size: int) -> None:
        """Give it a place in the second memory."""
        self.places[storage], self.sizes[storage] = self.second_bytes, size
        self.second_bytes += whole_blocks(size)

    def _read(self, call: Call) -> dict[str, int]:
        """Storage → the buffer that the call reads it from, which is in use until this step at least."""
        position = len(self.steps)
        reads: dict[str, int] = {}
        run = call.implementation
        for name in (*run.inputs(), *run.holds) if self.eager else run.inputs():
            storage = self.catalogue.storage(name)
            if storage in self.updated:
                raise SolverError(
                    f"internal: step {position} ({call.kind} {call.node}) reads {storage} after its update"
                )
            if storage not in self.placed:
                continue
            if storage not in self.holder:
                raise SolverError(
                    f"internal: step {position} ({call.kind} {call.node}) reads {storage}, which is not in memory"
                )
            self.holder[storage].last = position
            reads[self._content(storage)] = self.holder[storage].id
        return reads

    def _note_update(self, call: Call) -> None:
        """From here on the parameter and its state have their new contents."""
        read = {self.catalogue.storage(name) for name in call.implementation.inputs()}
        self.updated |= (read - self.placed) | (read & self.carried)

    def _make(self, call: Call) -> tuple[tuple[int | None, ...], dict[str, int]]:
        """The buffer of each request, or None where PyTorch's allocator serves it; and the results' storages, each with
        its buffer."""
        requests: list[int | None] = []
        writes: dict[str, int] = {}
        for request in call.measured.requests:
            result = None if request.output is None else call.implementation.outputs[request.output]
            storage = None if result is None else self.catalogue.storage(result)
            if storage is not None and storage not in self.placed:
                requests.append(None)
                continue
            buffer = self._new_buffer(request, f"{call.node}.temporary" if storage is None else storage)
            requests.append(buffer.id)
            if storage is not None:
                self.holder[storage] = buffer
                writes[storage] = buffer.id
        return tuple(requests), writes

    def _new_buffer(self, request: Request, value: str) -> _Buffer:
        """The buffer of one request of the step that is being added."""
        position = len(self.steps)
        end = None if request.end is None else self.tick + request.end
        buffer = _Buffer(len(self.buffers), value, request.bytes, self.tick + request.begin, position, position, end)
        self.buffers.append(buffer)
        return buffer

    def _keep_in_place(self, call: Call) -> dict[str, int]:
        """Where the call works in place: its result's storage → the buffer that the overwritten storage hands on."""
        overwritten = call.implementation.overwrites
        old = None if overwritten is None else self.catalogue.storage(overwritten)
        if old is None or old not in self.placed:
            return {}
        buffer = self.holder.pop(old)
        result = call.implementation.outputs[0]
        if result is None:
            raise SolverError(f"internal: in-place step {len(self.steps)} ({call.node}) has no result")
        new = self.catalogue.storage(result)
        self.holder[new] = buffer
        if new == old:  # gradients that add up in one memory, which is another content each time
            self.sums[new] = self.sums.get(new, 0) + 1
        return {self._content(new): buffer.id}

    def _change_carried(self, call: Call) -> dict[str, int]:
        """What an update leaves of its parameter and state that are carried: another content in the same buffer."""
        changed = {}
        for storage in dict.fromkeys(self.catalogue.storage(name) for name in call.implementation.inputs()):
            if storage in self.carried:
                self.sums[storage] = self.sums.get(storage, 0) + 1
                changed[self._content(storage)] = self.holder[storage].id
        return changed

    def _content(self, storage: str) -> str:
        """The name of what the storage holds now."""
        return f"{storage}+{self.sums[storage]}" if storage in self.sums else storage

    def finish(self) -> Unrolled:
        """Buffers that outlive the run that makes them end with the last run that uses them, or with the step."""
        begins = [*(step.begin for step in self.steps), self.tick]
        leaving = {self.holder[storage].id for storage in self.leaving if storage in self.holder}
        for buffer in self.buffers:
            if buffer.id in leaving:
                buffer.last, buffer.end = len(self.steps) - 1, self.tick
        buffers = tuple(
            Buffer(
                b.id, b.value, b.bytes, 0, b.begin, b.end if b.end is not None else begins[b.last + 1], b.first, b.last,
                b.id in leaving,
            )
            for b in self.buffers
        )  # fmt: skip
        return Unrolled(tuple(self.steps), buffers, self.second_bytes)


def unroll(schedule: Sequence[Call | Copy], lowered: Lowered) -> Unrolled:
    """The steps of a schedule in its order, and the lifetimes of the buffers that they need."""
    builder = _Builder(lowered.catalogue, placed_storages(lowered), lowered.leaving, lowered.eager, lowered.carried)
    for call in schedule:
        if isinstance(call, Copy):
            builder.copy(call)
        else:
            builder.add(call)
    return builder.finish()


def place(unrolled: Unrolled, offsets: tuple[int, ...]) -> tuple[Buffer, ...]:
    """The buffers at their offsets, in the same order."""
    return tuple(replace(buffer, offset=offset) for buffer, offset in zip(unrolled.buffers, offsets, strict=True))

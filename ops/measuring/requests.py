"""The memory requests of one run, from what the recorder saw."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from monet.base.measurement import Request
from monet.errors import ProfileError
from monet.native import allocator
from monet.ops.offers.implementation import Implementation
from monet.plans.format import ALIGNMENT


def own_requests(
    events: Sequence[allocator.Event],
    results: Sequence[torch.Tensor | None],
    implementation: Implementation,
    device: torch.device,
) -> tuple[tuple[Request, ...], int]:
    """What the operator asked for on its own thread, and how many ticks that is spread over: one tick a request. What
    is freed is free from the next one on. ``results``: of the call, in order, None for one that nobody reads; those on
    another device than ``device``, which ``events`` are of, have no request.

    Raises ``ProfileError`` where a result is not in memory that was asked for, where two share memory, where an
    implementation that is to overwrite an input does not, and where memory is kept that is no result.
    """
    begin: dict[int, int] = {}
    end: dict[int, int] = {}
    size: dict[int, int] = {}
    where: dict[int, int] = {}
    tick = 0
    for event in events:
        if event.bytes is None:
            end[event.index] = tick
        else:
            begin[event.index], size[event.index], where[event.pointer] = tick, event.bytes, event.index
            tick += 1
    output: dict[int, int] = {}
    for position, result in enumerate(results):
        if result is None or not in_memory_of(device, result):
            continue
        index = where.get(result.untyped_storage().data_ptr())
        if index is None or index in end:
            if implementation.overwrites is not None and position == 0:
                continue
            raise ProfileError(f"result {position} of {implementation.call_name} is not memory that it asked for")
        if index in output:
            raise ProfileError(f"results {output[index]} and {position} of {implementation.call_name} share memory")
        output[index] = position
    if implementation.overwrites is not None and 0 in output.values():
        raise ProfileError(f"{implementation.call_name} is recorded as in-place but makes a new tensor")
    requests = tuple(Request(size[i], begin[i], end.get(i), output.get(i)) for i in sorted(begin))
    leaked = [r for r in requests if r.end is None and r.output is None]
    if leaked:
        # Something keeps memory (a cache inside a library): it must not be given a place in an arena.
        raise ProfileError(f"{implementation.call_name} keeps {sum(r.bytes for r in leaked)} bytes after it returned")
    return requests, max(1, tick)


def in_memory_of(device: torch.device, result: torch.Tensor) -> bool:
    """Whether a result takes bytes of that device: a GPU's operators also return CPU tensors, a generator's state or
    the seed of an attention's dropout."""
    return result.device.type == device.type and result.untyped_storage().nbytes() > 0


def worker_requests(recording: allocator.Recording, ticks: int, implementation: Implementation) -> tuple[Request, ...]:
    """One request for all other threads, as long as the operator: how far each is at one time is never the same. None
    where they asked for nothing. Raises ``ProfileError`` where they kept memory.
    """
    if recording.worker_leaks:
        raise ProfileError(
            f"{implementation.call_name} keeps {recording.worker_leaks} blocks of memory that other threads asked for"
        )
    if not recording.worker_bytes:
        return ()
    return (Request(recording.worker_bytes * (torch.get_num_threads() - 1), 0, ticks, None, workers=True),)


def compact_offsets(requests: Sequence[Request], alignment: int = ALIGNMENT) -> tuple[list[int], int]:
    """An offset for each request, a multiple of ``alignment`` bytes, and the bytes of all. A block is used again once
    it is free, for an equal size; good enough to measure in, not to plan with."""
    free: dict[int, list[tuple[int, int]]] = {}
    offsets: list[int] = []
    size = 0
    for request in requests:
        aligned = -(-request.bytes // alignment) * alignment
        blocks = free.setdefault(aligned, [])
        usable = next((block for block in blocks if block[1] <= request.begin), None)
        if usable is not None:
            blocks.remove(usable)
            offset = usable[0]
        else:
            offset, size = size, size + aligned
        offsets.append(offset)
        if request.end is not None:
            blocks.append((offset, request.end))
    return offsets, size

"""The memory requests of one run, from what the recorder saw."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from monet.errors import ProfileError
from monet.measurement import Request
from monet.native import allocator
from monet.ops.offers.implementation import Implementation


def _requests(
    events: Sequence[allocator.Event], results: Sequence[torch.Tensor | None], implementation: Implementation
) -> tuple[tuple[Request, ...], int]:
    """Lifetimes of the requests in ticks: one tick a request, and frees take effect at the next one."""
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
        if result is None or result.untyped_storage().nbytes() == 0:
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


def _of_workers(recording: allocator.Recording, ticks: int, implementation: Implementation) -> tuple[Request, ...]:
    """One request for all other threads, as long as the operator: how far each is at one time is never the same."""
    if recording.worker_leaks:
        raise ProfileError(
            f"{implementation.call_name} keeps {recording.worker_leaks} blocks of memory that other threads asked for"
        )
    if not recording.worker_bytes:
        return ()
    return (Request(recording.worker_bytes * (torch.get_num_threads() - 1), 0, ticks, None, workers=True),)


def _compact(requests: Sequence[Request]) -> tuple[list[int], int]:
    """Offsets that reuse a block once it is free, among equal sizes; only for measuring."""
    free: dict[int, list[tuple[int, int]]] = {}
    offsets: list[int] = []
    size = 0
    for request in requests:
        aligned = (request.bytes + 63) // 64 * 64
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

"""A plan as a snapshot of memory in PyTorch's own form, which pytorch.org/memory_viz opens.

The form is that of ``torch.cuda.memory._snapshot``. Of its viewer is known (torch/utils/viz/MemoryViz.js): it reads
pickles of the protocols 2 to 4, every block must lie in a segment of its device, and categories are shown only where
one event is of the category ``unknown``.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterable, Iterator
from typing import Any

from monet.lab.views.contents import kinds
from monet.lab.views.origins import UNKNOWN, Origins
from monet.plans.format import Buffer
from monet.plans.plan import Plan

ARENA = 1 << 40
"""The address of the arena; the fixed bytes are at the next but one multiple of ``_SEGMENT`` above it."""
_SEGMENT = 1 << 21  # bytes: PyTorch's segments are multiples of it
_PROTOCOL = 4
_UNKNOWN = "unknown"


def snapshot_bytes(plan: Plan, origins: Origins = UNKNOWN) -> bytes:
    """The pickle, plain dictionaries, lists, strings and numbers."""
    return pickle.dumps(snapshot(plan, origins), protocol=_PROTOCOL)


def snapshot(plan: Plan, origins: Origins = UNKNOWN) -> dict[str, Any]:
    """Fixed parts are allocated first and stay; then buffers in the order of their ticks, which are the time."""
    parts = {name: size for name, size in plan.fixed.items() if size > 0}
    fixed_at = ARENA + (-(-plan.arena_bytes // _SEGMENT) + 1) * _SEGMENT
    begins = [_event("alloc", at, size, 0, [_frame("fixed", 0, name)], _UNKNOWN)
              for name, at, size in _stacked(parts, fixed_at)]  # fmt: skip
    # Without an event of that category the viewer has no place for others.
    named = list(kinds(plan)) if begins else [None] * len(plan.buffers)
    frames = {buffer.id: _frames(plan, buffer, origins) for buffer in plan.buffers}
    moments = [(buffer.begin, 1, k) for k, buffer in enumerate(plan.buffers)]
    moments += [(buffer.end, 0, k) for k, buffer in enumerate(plan.buffers) if not buffer.leaves]
    trace = begins
    for tick, is_begin, k in sorted(moments):
        buffer = plan.buffers[k]
        for action in ("alloc",) if is_begin else ("free_requested", "free_completed"):
            at = ARENA + buffer.offset
            trace.append(_event(action, at, buffer.bytes, tick, frames[buffer.id], named[k]))
    leaving = [(ARENA + b.offset, b.bytes, frames[b.id]) for b in plan.buffers if b.leaves]
    kept = [(at, size, [_frame("fixed", 0, name)]) for name, at, size in _stacked(parts, fixed_at)]
    segments = [_segment(ARENA, plan.arena_bytes, leaving), _segment(fixed_at, plan.fixed_bytes, kept)]
    return {"segments": [s for s in segments if s["total_size"]], "device_traces": [trace]}


def _stacked(parts: dict[str, int], address: int) -> Iterator[tuple[str, int, int]]:
    """Name, address and bytes of each part, one after the other."""
    for name, size in parts.items():
        yield name, address, size
        address += size


def _frames(plan: Plan, buffer: Buffer, origins: Origins) -> list[dict[str, Any]]:
    """What stands in the place of a stack: the value, the step that makes it, and the line of the model."""
    step = plan.steps[buffer.first]
    found = [_frame("buffer", buffer.id, buffer.value),
             _frame(f"{step.kind} step", buffer.first, f"{step.node} by {step.implementation}")]  # fmt: skip
    if origins.module(buffer.first):
        found.append(_frame("module", 0, origins.module(buffer.first)))
    line = origins.line(buffer.first)
    if line:
        match = re.match(r'File "(?P<file>[^"]*)", line (?P<line>\d+)(?:, in (?P<name>\S+))?', line)
        found.append(
            _frame(line, 0, "") if match is None else _frame(match["file"], int(match["line"]), match["name"] or "")
        )
    return found


def _frame(filename: str, line: int, name: str) -> dict[str, Any]:
    return {"filename": filename, "line": line, "name": name}


def _event(
    action: str, address: int, size: int, tick: int, frames: list[dict[str, Any]], category: str | None
) -> dict[str, Any]:
    event = {"action": action, "addr": address, "size": size, "stream": 0, "time_us": tick, "frames": frames}
    return event if category is None else {**event, "category": category}


def _segment(address: int, size: int, active: Iterable[tuple[int, int, list[dict[str, Any]]]]) -> dict[str, Any]:
    """Blocks that cover it without a gap: ``active`` (address, bytes, frames) is in use at the end of the step."""
    blocks: list[dict[str, Any]] = []
    at, used = address, 0
    for begin, count, frames in sorted(active, key=lambda block: block[0]):
        if begin > at:
            blocks.append(_block(at, begin - at, "inactive", []))
        blocks.append(_block(begin, count, "active_allocated", frames))
        at, used = begin + count, used + count
    if at < address + size:
        blocks.append(_block(at, address + size - at, "inactive", []))
    return {
        "device": 0, "address": address, "total_size": size, "stream": 0, "segment_type": "large",
        "segment_pool_id": (0, 0), "allocated_size": used, "active_size": used, "requested_size": used,
        "is_expandable": False, "frames": [], "blocks": blocks,
    }  # fmt: skip


def _block(address: int, size: int, state: str, frames: list[dict[str, Any]]) -> dict[str, Any]:
    return {"address": address, "size": size, "requested_size": size, "state": state, "frames": frames}

"""The steps of a plan as a Chrome trace, which Perfetto opens: steps by kind, memory as counters, and each copy to or
from a second memory from where it is issued to where it is waited for."""

from __future__ import annotations

import json
from itertools import accumulate
from typing import Any

from monet.lab.views.contents import FIXED, KINDS, last_tick, loads_by_step
from monet.lab.views.origins import UNKNOWN, Origins
from monet.plans.format import READ, WAIT, WRITE
from monet.plans.plan import Plan

_PROCESS = 1


def time_unit(origins: Origins) -> str:
    """What lengths in the timeline are: seconds where the steps' are known, ticks otherwise."""
    return "predicted seconds" if origins.predicted_s else "ticks"


def timeline_text(plan: Plan, origins: Origins = UNKNOWN) -> str:
    """The trace as JSON; a tick is a microsecond where the seconds of the steps are not known."""
    unit = time_unit(origins)
    if origins.predicted_s:
        times = [0.0, *accumulate(seconds * 1e6 for seconds in origins.predicted_s)]
    else:
        times = [float(step.begin) for step in plan.steps] + [float(last_tick(plan))]
    rows = list(dict.fromkeys(step.kind for step in plan.steps))
    name = f"one step, in {unit}" if origins.predicted_s else "one step, in ticks (1 µs is one tick)"
    events: list[dict[str, Any]] = [_metadata("process_name", 0, name)]
    events += [_metadata("thread_name", row + 1, kind) for row, kind in enumerate(rows)]
    for k, step in enumerate(plan.steps):
        told: dict[str, Any] = {
            "step": k,
            "implementation": step.implementation,
            "requested_bytes": sum(step.request_bytes),
        }
        told |= {name: text for name, text in (("line", origins.line(k)), ("module", origins.module(k))) if text}
        events.append({
            "ph": "X", "name": step.node, "cat": step.kind, "pid": _PROCESS, "tid": rows.index(step.kind) + 1,
            "ts": round(times[k], 3), "dur": round(times[k + 1] - times[k], 3),
            "args": told,
        })  # fmt: skip
    for number, (k, until) in enumerate(_copies(plan)):
        step = plan.steps[k]
        told = {"cat": "copy", "id": number, "name": f"{step.kind} {step.node}", "pid": _PROCESS}
        events.append({"ph": "b", **told, "ts": round(times[k], 3), "args": {"place": step.place}})
        events.append({"ph": "e", **told, "ts": round(times[until + 1], 3)})
    for k, counts in enumerate(loads_by_step(plan)):
        memory = {FIXED: plan.fixed_bytes, **dict(zip(KINDS, counts, strict=True))}
        events.append({"ph": "C", "name": "memory", "pid": _PROCESS, "ts": round(times[k], 3), "args": memory})
    document = {"displayTimeUnit": "ms", "otherData": {"time": unit}, "traceEvents": events}
    return json.dumps(document, separators=(",", ":")) + "\n"


def _copies(plan: Plan) -> list[tuple[int, int]]:
    """Of each copy, the step that issues it and the one that waits for it."""
    found: list[tuple[int, int]] = []
    under_way: dict[int | None, int] = {}
    for k, step in enumerate(plan.steps):
        if step.kind in (WRITE, READ):
            under_way[step.place] = k
        elif step.kind == WAIT:
            found.append((under_way.pop(step.place), k))
    return found


def _metadata(what: str, row: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": _PROCESS, "tid": row, "args": {"name": name}}

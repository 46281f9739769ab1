"""A plan as columns of numbers and one list of words: what the scripts of the page read."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from monet.lab.views.contents import KINDS, kinds, last_tick
from monet.lab.views.origins import UNKNOWN, Origins
from monet.lab.views.overview import overview
from monet.plans.plan import Plan


@dataclass(slots=True)
class _Words:
    """Each word once; a column holds its number."""

    numbers: dict[str, int] = field(default_factory=dict)

    def __call__(self, word: str) -> int:
        return self.numbers.setdefault(word, len(self.numbers))


def columns(plan: Plan, origins: Origins = UNKNOWN) -> dict[str, Any]:
    """About 60 bytes a buffer as JSON. ``uses``: for each buffer the steps that read or write it, in order, one buffer
    after the other; ``use_ends`` where each one's end."""
    words, found = _Words(), overview(plan)
    known = {buffer.id: position for position, buffer in enumerate(plan.buffers)}
    uses: list[list[int]] = [[] for _ in plan.buffers]
    for k, step in enumerate(plan.steps):
        for buffer in sorted({*step.reads.values(), *step.writes.values()}):
            uses[known[buffer]].append(k)
    ends, total = [], 0
    for of in uses:
        total += len(of)
        ends.append(total)
    steps = {
        "kind": [words(step.kind) for step in plan.steps],
        "node": [words(step.node) for step in plan.steps],
        "implementation": [words(step.implementation) for step in plan.steps],
        "begin": [step.begin for step in plan.steps],
        "line": [words(line) for line in origins.lines],
        "module": [words(module) for module in origins.modules],
        "predicted_s": [float(f"{seconds:.4g}") for seconds in origins.predicted_s],
        "measured_s": [float(f"{seconds:.4g}") for seconds in origins.measured_s],
    }
    buffers = {
        "value": [words(buffer.value) for buffer in plan.buffers],
        "kind": [KINDS.index(kind) for kind in kinds(plan)],
        **{name: [getattr(buffer, name) for buffer in plan.buffers]
           for name in ("id", "bytes", "offset", "begin", "end", "first", "last")},
        "leaves": [int(buffer.leaves) for buffer in plan.buffers],
        "uses": [k for of in uses for k in of],
        "use_ends": ends,
    }  # fmt: skip
    return {
        "name": found.name,
        "ticks": last_tick(plan),
        "budget_bytes": plan.budget_bytes,
        "peak_bytes": plan.peak_bytes,
        "arena_bytes": plan.arena_bytes,
        "arena_bound_bytes": plan.arena_bound_bytes,
        "fixed_bytes": plan.fixed_bytes,
        "second_bytes": plan.second_bytes,
        "fixed": dict(plan.fixed),
        "environment": {name: str(value) for name, value in plan.environment.items()},
        "overview": {
            "steps": dict(found.steps),
            "recomputed": dict(found.recomputed),
            "recomputed_bytes": found.recomputed_bytes,
            "moved": dict(found.moved),
            "implementations": {operator: dict(of) for operator, of in found.implementations.items()},
            **{name: getattr(found, name)
               for name in ("eager_peak_bytes", "eager_s", "predicted_s", "overhead", "bound_s", "gap", "bound_scope",
                            "status")},
        },
        "kinds": list(KINDS),
        "steps": steps,
        "buffers": buffers,
        "words": list(words.numbers),
    }  # fmt: skip


def embedded(content: dict[str, Any]) -> str:
    """JSON that may stand inside of a ``script`` element, whatever its strings hold: nothing in it ends the element."""
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")

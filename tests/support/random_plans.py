"""Random valid plans: steps with temporaries, in-place writes and recomputation, laid out by monet's layout."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from monet.planner.layout import Lifetime, layout
from monet.plans.format import Buffer, PlanStep
from monet.plans.plan import Plan


@dataclass
class _Draft:
    """A buffer whose end is not known yet; ``end`` stays None for one that lasts to the end of step ``last``."""

    value: str
    bytes: int
    begin: int
    first: int
    last: int
    end: int | None = None
    contents: list[str] = field(default_factory=list)
    leaves: bool = False


def random_plan(seed: int, steps: int = 12) -> Plan:
    """A valid plan of ``steps`` steps with slack in the budget; the same seed gives the same plan."""
    rng = random.Random(seed)
    drafts: list[_Draft] = []
    made: list[PlanStep] = []
    values: list[str] = []
    forwards, tick = rng.randint(1, steps), rng.choice((0, 3))
    for k in range(steps):
        kind = "forward" if k < forwards else rng.choice(("recompute", "backward"))
        begin, reads, writes = tick, dict[str, int](), dict[str, int]()
        readable = [b for b, draft in enumerate(drafts) if draft.contents]
        for b in rng.sample(readable, min(len(readable), rng.choice((0, 1, 1, 2, 3)))):
            if drafts[b].contents[-1] not in reads:
                reads[drafts[b].contents[-1]] = b
                drafts[b].last = k
        if reads and rng.random() < 0.4:  # in place
            b = rng.choice(list(reads.values()))
            writes[f"v{k}i"] = b
            drafts[b].contents.append(f"v{k}i")
        requests: list[int | None] = []
        sizes: list[int] = []
        for n in range(rng.randint(0, 4)):
            bytes_ = rng.randint(1, 1000)
            sizes.append(bytes_)
            kind_of_request = rng.choice(("temporary", "value", "value", "outside"))
            if kind_of_request == "outside":
                requests.append(None)
                continue
            requests.append(len(drafts))
            if kind_of_request == "temporary":
                drafts.append(_Draft(f"t{k}.{n}", bytes_, tick, k, k, end=tick + 1))
            else:
                again = kind == "recompute" and values and rng.random() < 0.7
                value = rng.choice(values) if again else f"v{k}.{n}"
                if value in writes or value in reads:
                    value = f"v{k}.{n}"
                values.append(value)
                writes[value] = len(drafts)
                drafts.append(_Draft(value, bytes_, tick, k, k, contents=[value]))
            tick += 1
        tick += 1
        made.append(PlanStep(kind, f"n{k}", "aten", reads, writes, tuple(requests), tuple(sizes), begin))
    for draft in drafts:
        if draft.contents and draft.first >= forwards and made[draft.first].kind == "backward" and rng.random() < 0.3:
            draft.leaves, draft.last = True, steps - 1
    ends = [step.begin for step in made[1:]] + [tick]
    lives = [
        Lifetime(b, draft.bytes, draft.begin, ends[draft.last] if draft.end is None else draft.end)
        for b, draft in enumerate(drafts)
    ]
    placed = layout(lives)
    buffers = tuple(
        Buffer(life.id, draft.value, life.bytes, offset, life.begin, life.end, draft.first, draft.last, draft.leaves)
        for life, draft, offset in zip(lives, drafts, placed.offsets, strict=True)
    )
    fixed = {"parameters": rng.randint(0, 5000), "inputs": rng.randint(0, 100)}
    total = sum(fixed.values())
    return Plan(
        budget_bytes=total + placed.arena_bytes + rng.randint(0, 100),
        arena_bytes=placed.arena_bytes,
        arena_bound_bytes=placed.bound_bytes,
        fixed_bytes=total,
        fixed=fixed,
        steps=tuple(made),
        buffers=buffers,
        model={"name": f"random {seed}"},
        environment={"torch": "2.13.0", "device": "cpu", "threads": 2},
        solver={"status": "optimal", "objective_s": 0.5, "gap": 0.0, "bound_s": None},
    )

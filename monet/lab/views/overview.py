"""What a plan does, counted: one value that the terminal, the page and the comparison show."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from monet.lab.views.plain_text import plain
from monet.plans.format import WRITE
from monet.plans.plan import Plan
from monet.plans.text import solver_number


@dataclass(frozen=True, slots=True)
class Overview:
    """Figures that a plan does not have, since its ``solver`` says nothing of them, are None.

    ``steps``: kind → how many, in the order in which kinds begin. ``recomputed``: node → how often it runs again;
    ``recomputed_bytes``: of all that it makes again. ``moved``: value → bytes, of what is copied to a second memory.
    ``implementations``: operator → implementation → how often. ``overhead``: 0.1 is 10 % more seconds than eager.
    """

    name: str
    steps: Mapping[str, int]
    recomputed: Mapping[str, int]
    recomputed_bytes: int
    moved: Mapping[str, int]
    implementations: Mapping[str, Mapping[str, int]]
    eager_peak_bytes: int | None
    eager_s: float | None
    predicted_s: float | None
    overhead: float | None
    bound_s: float | None
    gap: float | None
    bound_scope: str | None
    status: str | None

    @property
    def moved_bytes(self) -> int:
        return sum(self.moved.values())


def overview(plan: Plan) -> Overview:
    sizes = {buffer.id: buffer.bytes for buffer in plan.buffers}
    again = [step for step in plan.steps if step.kind == "recompute"]
    made = {number for step in again for number in set(step.writes.values()) - set(step.reads.values())}
    eager_s, predicted_s = solver_number(plan, "baseline_s"), solver_number(plan, "objective_s")
    eager_peak, bound_s = solver_number(plan, "eager_peak_bytes"), solver_number(plan, "bound_s")
    return Overview(
        name=_text(plan.model.get("name")) or "a model without a name",
        steps=Counter(step.kind for step in plan.steps),
        recomputed=Counter(step.node for step in again),
        recomputed_bytes=sum(sizes[number] for number in made),
        moved={step.node: sizes[number] for step in plan.steps if step.kind == WRITE for number in step.reads.values()},
        implementations=_implementations(plan),
        eager_peak_bytes=None if eager_peak is None else int(eager_peak),
        eager_s=eager_s,
        predicted_s=predicted_s,
        overhead=predicted_s / eager_s - 1.0 if predicted_s is not None and eager_s else None,
        bound_s=bound_s or None,
        gap=solver_number(plan, "gap") if bound_s else None,
        bound_scope=_text(plan.solver.get("bound_scope")),
        status=_text(plan.solver.get("status")),
    )


def operator_of(node: str) -> str:
    """The operator that a node is one of: ``convolution_12`` is a ``convolution``, ``relu_1.bits`` is ``relu.bits``,
    and ``convolution_backward_3_input``, a part of a gradient, is ``convolution_backward_input``."""
    name, point, what = node.partition(".")
    return re.sub(r"_\d+(?=$|_[a-z]+$)", "", name) + point + what


def _implementations(plan: Plan) -> dict[str, dict[str, int]]:
    counts: dict[str, Counter[str]] = {}
    for step in plan.steps:
        if step.place is None:
            counts.setdefault(operator_of(step.node), Counter())[step.implementation] += 1
    return {operator: dict(used.most_common()) for operator, used in sorted(counts.items())}


def _text(value: Any) -> str | None:
    return plain(value) if isinstance(value, str) else None

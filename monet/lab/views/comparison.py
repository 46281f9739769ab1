"""How two plans of one model differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from monet.errors import PlanMismatch
from monet.lab.views.overview import Overview, operator_of, overview
from monet.plans.plan import Plan


@dataclass(frozen=True, slots=True)
class OtherChoice:
    """``count`` operators of one kind that run by ``first`` in the first plan and by ``second`` in the second, in steps
    of that ``kind``."""

    kind: str
    operator: str
    first: str
    second: str
    count: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """``recomputed``: node → how often it runs again in the first plan and in the second, where that differs.
    ``moved``: value → its bytes in the second memory of the first plan and of the second, where one of them has none.
    ``choices``: the most frequent first."""

    plans: tuple[Plan, Plan]
    overviews: tuple[Overview, Overview]
    recomputed: Mapping[str, tuple[int, int]]
    moved: Mapping[str, tuple[int, int]]
    choices: tuple[OtherChoice, ...]


def comparison(first: Plan, second: Plan, *, force: bool = False) -> Comparison:
    """Raises ``PlanMismatch`` where the plans are of different models, unless ``force``."""
    prints = [str(plan.model.get("fingerprint")) for plan in (first, second)]
    if prints[0] != prints[1] and not force:
        names = [plan.model.get("name") for plan in (first, second)]
        raise PlanMismatch(
            f"the plans are of different steps: {names[0]} with the fingerprint {prints[0]:.16} and {names[1]} with "
            f"{prints[1]:.16}; another model, input shape, dtype or mode. To compare them all the same: --force"
        )
    one, other = overview(first), overview(second)
    return Comparison(
        (first, second),
        (one, other),
        _different(one.recomputed, other.recomputed),
        {name: sizes for name, sizes in _different(one.moved, other.moved).items() if 0 in sizes},
        _other_choices(first, second),
    )


def _different(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    pairs = {name: (one.get(name, 0), other.get(name, 0)) for name in (*one, *other)}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _other_choices(first: Plan, second: Plan) -> tuple[OtherChoice, ...]:
    one, other = _chosen(first), _chosen(second)
    counts = Counter(
        (kind, operator_of(node), one[kind, node], other[kind, node])
        for kind, node in one
        if (kind, node) in other and one[kind, node] != other[kind, node]
    )
    return tuple(OtherChoice(*choice, count) for choice, count in sorted(counts.items(), key=lambda c: (-c[1], c[0])))


def _chosen(plan: Plan) -> dict[tuple[str, str], str]:
    """By kind of step and node, the implementations that run it there."""
    found: dict[tuple[str, str], set[str]] = {}
    for step in plan.steps:
        if step.place is None:
            found.setdefault((step.kind, step.node), set()).add(step.implementation)
    return {key: ", ".join(sorted(names)) for key, names in found.items()}

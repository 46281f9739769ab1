"""A plan in a few lines, for whoever prints it. ``monet show`` says more."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from monet.base.amounts import format_bytes, format_exactly
from monet.plans.format import WRITE, PlanData


def named(plan: PlanData) -> str:
    """The model's name, as it may stand in a terminal."""
    name = plan.model.get("name")
    if not isinstance(name, str) or not name:
        return "a model without a name"
    return printable(name)


def printable(text: str) -> str:
    """With a mark in the place of what does not print."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)


def described(plan: PlanData) -> Iterator[str]:
    """Lines: budget and peak; seconds and the bound on them, where the solver says; what is run again and moved."""
    yield f"plan of {named(plan)}, {_counted(len(plan.steps), 'step')}"
    yield _line("budget", format_bytes(plan.budget_bytes))
    eager_bytes = solver_number(plan, "eager_peak_bytes")
    of_eager = "" if not eager_bytes else f", {plan.peak_bytes / eager_bytes:.1%} of eager's"
    yield _line("peak", format_exactly(plan.peak_bytes, "GB") + of_eager)
    yield _line("  of which", f"{format_bytes(plan.fixed_bytes)} fixed, {format_bytes(plan.arena_bytes)} arena")
    step_s, eager_s, bound_s = (solver_number(plan, name) for name in ("objective_s", "baseline_s", "bound_s"))
    if step_s is not None:
        beside = f", {compared(step_s / eager_s - 1)}" if eager_s else ""
        yield _line("predicted", f"{format_seconds(step_s)} a step{beside}")
    if bound_s:
        yield _line("bound", f"{format_seconds(bound_s)}, which holds for {held_for(plan.solver.get('bound_scope'))}")
    again = sum(step.kind == "recompute" for step in plan.steps)
    yield _line("run again", _counted(again, "run") if again else "nothing")
    sizes = {buffer.id: buffer.bytes for buffer in plan.buffers}
    moved = [sizes[number] for step in plan.steps if step.kind == WRITE for number in step.reads.values()]
    text = f"{_counted(len(moved), 'tensor')}, {format_bytes(sum(moved))}" if moved else "nothing"
    yield _line("moved", text)


def compared(overhead: float, other: str = "eager's") -> str:
    """An overhead in words, since a step may also be the shorter one: ``4.0% longer than eager's``."""
    length = compared_length(overhead)
    return f"{length} {'as' if length.startswith('as') else 'than'} {other}"


def compared_length(overhead: float) -> str:
    """``4.0% longer``, ``19.7% shorter`` or ``as long``."""
    share = f"{abs(overhead):.1%}"
    return "as long" if share == "0.0%" else f"{share} {'longer' if overhead > 0 else 'shorter'}"


def held_for(scope: object) -> str:
    """What a bound holds for, by the name of its program."""
    if not isinstance(scope, str):
        return "its problem"
    return "every plan" if scope == "full" else printable(scope)


def _line(label: str, text: str) -> str:
    return f"{label:<12}{text}"


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def format_seconds(seconds: float) -> str:
    """With three decimals, in seconds or milliseconds."""
    return f"{seconds:.3f} s" if seconds >= 1 else f"{seconds * 1e3:.3f} ms"


def solver_number(plan: PlanData, name: str) -> float | None:
    """A number of ``solver``, whose content is free."""
    value: Any = plan.solver.get(name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None

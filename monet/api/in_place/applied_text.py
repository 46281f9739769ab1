"""What stands in a model's slot, for whoever prints it: calls and plans so far, and why calls ran without one."""

from __future__ import annotations

from monet.api.in_place.training_calls import TrainingCalls
from monet.base.amounts import ByteBudget, PeakShare, format_exactly


def in_a_line(calls: TrainingCalls) -> str:
    """``<Applied to Net: 1 plan, 2 calls by plans and 1 without, peak 3,000 of 3,500 bytes>``."""
    family, plans = calls.family, len(calls.modules)
    text = (
        f"{_counted(plans, 'plan')}, {_counted(calls.planned_calls, 'call')} by plans and {calls.eager_calls} without"
    )
    if plans and family.budget_bytes is not None:
        text += f", peak {family.peak_bytes:,} of {family.budget_bytes:,} bytes"
    return f"<Applied to {family.name}: {text}>"


def in_lines(calls: TrainingCalls, budget: ByteBudget) -> str:
    """Budget, peak, plans and calls, a line each, and a line for each reason why calls ran without a plan.

    ``budget``: as it was asked for.
    """
    family, plans = calls.family, len(calls.modules)
    asked = str(budget)
    if isinstance(budget, PeakShare) and family.budget_bytes is not None:
        asked += f" in the first planned step, {format_exactly(family.budget_bytes, budget.unit)}"
    made = "none yet: the first is made at the first training call"
    if family.refusal is not None:
        made = f"none: {family.refusal}"
    lines = [
        f"{family.name}, its training calls by plans",
        _line("budget", asked),
        *([_line("peak", f"{format_exactly(family.peak_bytes, budget.unit)} promised")] if plans else []),
        _line("plans", f"{plans}, on_mismatch={family.rule!r}, max_plans={family.max_plans}" if plans else made),
        _line("calls", f"{calls.planned_calls} by a plan, {calls.eager_calls} without one"),
        *(_line("without one", reason) for reason in family.reasons),
    ]
    return "\n".join(lines)


def _line(label: str, text: str) -> str:
    return f"{label:<13}{text}"


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"

"""What a plan will be about like, said before the operators are measured, where that takes long."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from monet.base.amounts import format_bytes
from monet.base.silence import silence
from monet.cli.commands.planning.request import PlanRequest
from monet.errors import InfeasibleBudget, MonetError
from monet.plans.text import compared, format_seconds

if TYPE_CHECKING:
    from monet.pipeline.preparation import Look, Prepared

LIMIT_S = 3.0
"""Of planning by estimates, beside a measuring of at least ``preparation.LOOK_S``."""


def first_look(request: PlanRequest) -> Look | None:
    """Says a plan by estimates on stderr, and how long measuring will take; None where nobody looks."""
    return None if request.quiet else lambda prepared, seconds, count: _say(prepared, seconds, count, request)


def _say(prepared: Prepared, seconds: float, count: int, request: PlanRequest) -> None:
    from monet.pipeline.planning import plan_prepared
    from monet.planner.search import Solving

    assert request.budget is not None
    try:
        with silence(True):
            found = plan_prepared(prepared, request.budget, Solving(LIMIT_S), variant=request.variant).summary
    except InfeasibleBudget as refusal:
        text = "no plan fits"
        if refusal.smallest_bytes is not None:
            text += f", the smallest known takes {format_bytes(refusal.smallest_bytes, request.unit)}"
    except MonetError:  # whatever is wrong is said of the plan that was asked for
        text = "no plan was found"
    else:
        again = f"{found.recomputed} operators run again" if found.recomputed else "no operator runs again"
        peak = format_bytes(found.peak_bytes, request.unit)
        text = f"a plan of {peak}, {compared(found.objective_s / prepared.eager_s - 1)}, {again}"
    click.echo(
        f"by estimates: {text}; {count} operators are measured now, for about {format_seconds(seconds)}", err=True
    )

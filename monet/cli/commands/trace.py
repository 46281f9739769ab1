"""``monet trace``: where a plan's predicted and measured seconds differ."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from monet.cli.commands.exit_status import reports_errors

if TYPE_CHECKING:
    from monet.lab.experiments.step_trace import StepTrace

_SHOWN = 12


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("config")
@click.argument("plan", metavar="PLAN.json", type=click.Path(path_type=Path))
@click.option("--batch", type=click.IntRange(min=1), help="The batch that the plan was made with.")
@click.option("--runs", type=click.IntRange(min=1), default=5, show_default=True, help="Steps that are timed.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write every step's seconds there.")
@reports_errors
def trace(config: str, plan: Path, batch: int | None, runs: int, json_path: Path | None, quiet: bool) -> None:
    """Run the plan PLAN.json of CONFIG and time each of its steps in place.

    Predicted are the seconds that the planner has measured of each operator alone. In place an operator finds other
    things in the caches, and views and Python come on top. What differs most is listed first.
    """
    from monet.base.files.atomic import write_json
    from monet.cli.commands.options import check_target
    from monet.lab.experiments.step_trace import trace_config
    from monet.models.config import load_config
    from monet.plans.plan import Plan

    check_target(json_path, "--json", config, plan)
    loaded = load_config(config)
    found = trace_config(
        loaded if batch is None else loaded.with_batch(batch), Plan.load(plan), runs=runs, progress=not quiet
    )
    click.echo(_rendered(found))
    if json_path is not None:
        content = {key: value for key, value in asdict(found).items() if key != "steps"}
        write_json(json_path, {**content, "steps": [asdict(step) for step in found.steps]})


def _rendered(found: StepTrace) -> str:
    from monet.cli.commands.rendering import table_lines
    from monet.lab.experiments.step_trace import by

    rows = [("", "steps", "predicted", "in place", "ratio")]

    def row(name: str, count: int, predicted_s: float, measured_s: float) -> None:
        ratio = f"{measured_s / predicted_s:.3f}" if predicted_s else "-"
        rows.append((name, str(count) if count else "", _ms(predicted_s), _ms(measured_s), ratio))

    kinds = by(found.steps, lambda step: step.kind)
    for kind in ("forward", "recompute", "backward", "update", "write", "read", "wait"):
        if kind in kinds:
            row(kind, *kinds[kind])
    row("all steps", len(found.steps), sum(step.predicted_s for step in found.steps), found.measured_s)
    row("the whole step", 0, found.predicted_s, found.whole_s)
    lines = table_lines(rows)
    rows = [("operator", "steps", "predicted", "in place", "ratio")]
    for family, of in list(by(found.steps, lambda step: step.family).items())[:_SHOWN]:
        row(family, *of)
    lines += ["", *table_lines(rows), ""]
    most = sorted(found.steps, key=lambda step: -abs(step.excess_s))[:_SHOWN]
    table = [("step", "kind", "node", "implementation", "predicted", "in place")]
    table += [(str(s.step), s.kind, s.node, s.implementation, _ms(s.predicted_s), _ms(s.measured_s)) for s in most]
    return "\n".join([*lines, *table_lines(table, words=(1, 2, 3))])


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3f} ms"

"""Predicted against measured seconds: operators one by one, operators in the plan's own step, and the step itself.

python benchmarks/bench_seconds.py [--model bert] [--shares 70]

As ``monet plan --measure`` does it: a plan by operators that are measured one by one, the times of its operators in its
step, the plan that is made with these, and its step and eager's, each in a process of its own. ``ratio``: predicted by
measured seconds, of the first plan's step (``alone``), of the last plan's (``in_step``), and of eager's step without
and with what it waits for new memory.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import record
import torch
from bench_models import BATCHES

from monet.base.amounts import parse_budget
from monet.errors import InfeasibleBudget
from monet.lab.experiments.configured import prepare_config
from monet.lab.experiments.measured_again import planned_again
from monet.lab.experiments.measured_steps import measured_step
from monet.models.config import load_config
from monet.ops.offers.offering import Offering
from monet.pipeline.meter import silent
from monet.pipeline.planning import plan_prepared
from monet.pipeline.preparation import Preparing
from monet.planner.ablation import MONET
from monet.planner.search import Solving


def _rows(name: str, shares: tuple[int, ...], time_limit_s: float, path: Path) -> dict[str, Any]:
    config = load_config(f"{name}.yaml").with_batch(BATCHES[name])
    prepared, solving, threads = prepare_config(config, Preparing()), Solving(time_limit_s), torch.get_num_threads()
    eager_s = float(measured_step(config, None, threads, quiet=True).values["step_s"] or 0)
    rows: dict[str, Any] = {
        "eager": {
            "measured_s": eager_s, "operators_s": prepared.eager.objective_s, "memory_s": prepared.eager_memory_s,
            "ratio_of_operators": prepared.eager.objective_s / eager_s, "ratio": prepared.eager_s / eager_s,
        }
    }  # fmt: skip
    click.echo(f"{name:14} eager {eager_s:.3f} s, predicted {prepared.eager_s / eager_s:.2f} of it")
    for share in shares:
        budget = parse_budget(f"{share}%")
        try:
            first = plan_prepared(prepared, budget, solving)
        except InfeasibleBudget:
            continue
        first.plan.save(path)
        alone = measured_step(config, path, threads, in_place=True, quiet=True)
        last = planned_again(
            config, first, alone.seconds, budget, solving, Preparing(), Offering(), variant=MONET, meter=silent
        )
        last.plan.save(path)
        again = measured_step(config, path, threads, quiet=True)
        alone_s, again_s = float(alone.values["step_s"] or 0), float(again.values["step_s"] or 0)
        rows[f"{share}%"] = row = {
            "alone": {"predicted_s": first.summary.objective_s, "measured_s": alone_s,
                      "ratio": first.summary.objective_s / alone_s},
            "in_step": {"predicted_s": last.summary.objective_s, "measured_s": again_s,
                        "ratio": last.summary.objective_s / again_s},
            "another_plan": last.plan.steps != first.plan.steps,
            "faster": again_s / alone_s,
            "promised_bytes": last.plan.peak_bytes, "measured_bytes": again.values["allocator_peak_bytes"],
        }  # fmt: skip
        click.echo(f"{name:14} {share:3}%  alone {row['alone']['ratio']:.3f}  in step {row['in_step']['ratio']:.3f}")
    return rows


@click.command()
@click.option("--model", "models", multiple=True, type=click.Choice(list(BATCHES)), help="Only these; others are kept.")
@click.option("--shares", default="85,60", show_default=True, help="Budgets, in per cent of eager's peak.")
@click.option("--time-limit", default=20.0, show_default=True, help="Seconds to plan a budget.")
def main(models: tuple[str, ...], shares: str, time_limit: float) -> None:
    found: dict[str, Any] = record.known("seconds") if models else {}
    with TemporaryDirectory() as folder:
        for name in models or BATCHES:
            asked = tuple(int(share) for share in shares.split(","))
            found[name] = _rows(name, asked, time_limit, Path(folder) / "step.plan.json")
            record.write("seconds", found)
    for kind in ("alone", "in_step"):
        off = sorted(abs(row[kind]["ratio"] - 1) for rows in found.values() for row in rows.values() if kind in row)
        within = [sum(x <= limit for x in off) for limit in (0.05, 0.1)]
        click.echo(f"{kind}: {within[0]} of {len(off)} within 5 %, {within[1]} within 10 %")


if __name__ == "__main__":
    main()

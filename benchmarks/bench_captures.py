"""The planner on real captures: what plans of five models promise, and what their steps measure.

python benchmarks/bench_captures.py [--model resnet50]

Batches are small enough to measure eager and two plans of each model in minutes on two cores. Every step runs in a
process of its own: bytes are exact, seconds are of one step after a warm-up one.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import click
import record

from monet.base.amounts import parse_budget
from monet.errors import InfeasibleBudget
from monet.lab.experiments.measured_steps import measure_config
from monet.models.config import load_config
from monet.models.model_loading import build_model
from monet.models.sample_inputs import empty_inputs
from monet.pipeline.meter import on_stderr
from monet.pipeline.planning import plan_prepared
from monet.pipeline.preparation import Preparing, prepare
from monet.planner.search import Solving

BATCHES = {"resnet50": 8, "vgg16": 4, "googlenet": 16, "mobilenet_v2": 16, "unet": 1}
BUDGETS = ("70%", "45%")


@click.command()
@click.option("--model", "models", multiple=True, type=click.Choice(list(BATCHES)), help="Only these; writes no file.")
@click.option("--time-limit", default=20.0, show_default=True, help="Seconds to solve.")
def main(models: tuple[str, ...], time_limit: float) -> None:
    results: dict[str, Any] = {}
    for name in models or BATCHES:
        config = load_config(f"{name}.yaml").with_batch(BATCHES[name])
        model = build_model(config)
        args, kwargs = empty_inputs(config, model)
        prepared = prepare(model, args, kwargs, preparing=Preparing(seed=config.seed), progress=True)
        rows: list[dict[str, Any]] = []
        eager: dict[str, Any] | None = None
        for budget in BUDGETS:
            try:
                result = plan_prepared(
                    prepared,
                    parse_budget(budget),
                    Solving(time_limit_s=time_limit, prove=True),
                    meter=on_stderr,
                )
            except InfeasibleBudget as error:
                rows.append({"budget": budget, "infeasible": str(error)})
                continue
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "plan.json"
                result.plan.save(path)
                measured = measure_config(config, path, eager=eager is None)
            eager = eager or measured["eager"]
            planned = measured["planned"]
            wanted = ("objective_s", "bound_s", "gap", "bound_scope", "status", "build_s", "solve_s", "recomputed")
            row = {key: getattr(result.summary, key) for key in wanted} | {
                "budget": budget,
                "budget_bytes": result.plan.budget_bytes,
                "promised_peak_bytes": result.plan.peak_bytes,
                "measured_peak_bytes": planned["allocator_peak_bytes"],
                "measured_step_s": planned["step_s"],
                "operators": len(prepared.problem.forward) + len(prepared.problem.backward),
            }
            rows.append(row)
            click.echo(
                f"{name} batch {BATCHES[name]} at {budget}: promised {row['promised_peak_bytes']} B, measured "
                f"{row['measured_peak_bytes']} B; step {row['objective_s']:.3f} s predicted, "
                f"{row['measured_step_s']:.3f} s measured, eager {eager['step_s']:.3f} s; gap {row['gap']:.2%} to "
                f"{row['bound_scope']}, {row['solve_s']:.0f} s"
            )
        results[name] = {"batch": BATCHES[name], "eager": eager, "predicted_eager_s": prepared.eager.objective_s,
                         "eager_peak_bytes": prepared.eager.peak_bytes, "plans": rows}  # fmt: skip
    if not models:
        click.echo(f"wrote {record.write('captures', results)}")


if __name__ == "__main__":
    main()

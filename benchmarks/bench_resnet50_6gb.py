"""ResNet-50, batch 184, 6 GB: plan it, then an eager and a planned step, each in its own process.

python benchmarks/bench_resnet50_6gb.py
"""

from __future__ import annotations

import time
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import record

from monet.lab.experiments.measured_steps import measure_config
from monet.models.config import load_config
from monet.models.model_loading import build_model
from monet.models.sample_inputs import empty_inputs
from monet.pipeline.meter import on_stderr
from monet.pipeline.planning import plan_prepared
from monet.pipeline.preparation import prepare


@click.command()
@click.option("--config", default="resnet50.yaml", show_default=True)
@click.option("--budget", default="6GB", show_default=True)
def main(config: str, budget: str) -> None:
    loaded = load_config(config)
    model = build_model(loaded)
    args, kwargs = empty_inputs(loaded, model)
    start = time.perf_counter()
    result = plan_prepared(prepare(model, args, kwargs, progress=True), budget, meter=on_stderr)
    planning_s = time.perf_counter() - start
    with TemporaryDirectory() as folder:
        path = Path(folder) / "plan.json"
        result.plan.save(path)
        measured = measure_config(loaded, path)
    eager, planned = measured["eager"], measured["planned"]
    content = {"planning_s": planning_s, "summary": result.summary.as_json(), "measured": measured}
    if eager["step_s"] and planned["step_s"]:
        content["step_ratio"] = planned["step_s"] / eager["step_s"]
        content["prediction_ratio"] = result.summary.objective_s / planned["step_s"]
    for key, value in content.items():
        click.echo(f"{key}: {value}")
    stem = Path(config).stem
    click.echo(f"wrote {record.write(f'{stem}_{budget}'.lower(), content)}")


if __name__ == "__main__":
    main()

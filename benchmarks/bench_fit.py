"""Estimated against measured costs: eager's peak, and overheads at the same shares of it, of shipped configurations.

python benchmarks/bench_fit.py [--model bert] [--again] [--time-limit 30]

Each model three times, in processes of their own: with costs that are estimated (no weights, nothing run), with costs
that are measured, and one eager step. ``differences``: estimated less measured; of eager's peak as a share of the
peak that PyTorch's allocator measured, of overheads in points, at shares where both have a plan.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import record
from bench_models import BATCHES
from job_process import run_apart

MODELS = (
    "alexnet", "vgg16", "resnet50", "googlenet_aux", "mobilenet_v2", "densenet121", "efficientnet", "unet", "bert",
    "gpt2", "t5", "lstm",
)  # fmt: skip
SHARES = (90, 80, 70, 60, 50, 40)
PROCESS_LIMIT_S = 1800.0
_apart = partial(run_apart, __file__, limit_s=PROCESS_LIMIT_S)


def planned(job: Mapping[str, Any]) -> dict[str, Any]:
    """Eager's peak and seconds, and overheads by share; a plan of measured costs is saved at ``plan``."""
    from monet.errors import InfeasibleBudget, SolverError
    from monet.lab.experiments.configured import prepare_config
    from monet.models.config import load_config
    from monet.pipeline.calibration import calibrated_rates
    from monet.pipeline.planning import plan_prepared
    from monet.pipeline.preparation import Preparing
    from monet.planner.search import Solving

    config = load_config(f"{job['model']}.yaml").with_batch(BATCHES[job["model"]])
    costs = calibrated_rates() if job["estimate"] else None
    began = time.perf_counter()
    prepared = prepare_config(config, Preparing(costs=costs))
    prepared_s = time.perf_counter() - began
    overheads: dict[str, float | None] = {}
    for share in SHARES:
        try:
            result = plan_prepared(prepared, f"{share}%", Solving(time_limit_s=job["time_limit_s"]))
        except (InfeasibleBudget, SolverError):
            overheads[f"{share}%"] = None
            continue
        overheads[f"{share}%"] = result.summary.overhead
        if not job["estimate"] and not Path(job["plan"]).exists():
            result.plan.save(job["plan"])
    return {
        "prepared_s": prepared_s,
        "eager_peak_bytes": prepared.eager_peak_bytes,
        "eager_s": prepared.eager.objective_s,
        "overheads": overheads,
    }


def stepped(job: Mapping[str, Any]) -> dict[str, Any]:
    """One eager step; the plan tells its number of threads."""
    from monet.lab.experiments.measured_steps import measure_config
    from monet.models.config import load_config

    config = load_config(f"{job['model']}.yaml").with_batch(BATCHES[job["model"]])
    return measure_config(config, Path(job["plan"]), progress=False)


def calibrated(_: Mapping[str, Any]) -> dict[str, Any]:
    """Measures what estimates are made of, so that no model waits for it."""
    from monet.pipeline.calibration import calibrated_rates

    began = time.perf_counter()
    origin = calibrated_rates().origin
    return {"origin": origin, "seconds": time.perf_counter() - began}


def row_of(name: str, time_limit_s: float, folder: Path) -> dict[str, Any]:
    job = {"model": name, "time_limit_s": time_limit_s, "plan": str(folder / "plan.json")}
    estimated = _apart({"kind": "plan", "estimate": True, **job}, folder)
    measured = _apart({"kind": "plan", "estimate": False, **job}, folder)
    row = {"batch": BATCHES[name], "estimated": estimated, "measured": measured}
    if "error" in estimated or "error" in measured or not (folder / "plan.json").exists():
        return row
    row["steps"] = steps = _apart({"kind": "step", **job}, folder)
    if "error" in steps:
        return row
    there = steps["eager"]["allocator_peak_bytes"]
    both = {
        share: 100 * (overhead - measured["overheads"][share])
        for share, overhead in estimated["overheads"].items()
        if overhead is not None and measured["overheads"][share] is not None
    }
    row["differences"] = {"eager_peak": (estimated["eager_peak_bytes"] - there) / there, "overhead_points": both}
    return row


JOBS = {"plan": planned, "step": stepped, "calibrate": calibrated}


@click.command()
@click.option("--model", "models", multiple=True, type=click.Choice(list(BATCHES)), help="Only these.")
@click.option("--time-limit", default=30.0, show_default=True, help="Seconds to plan for one share.")
@click.option("--again", is_flag=True, help="Run models that have a row.")
@click.option("--job", hidden=True)
@click.option("--answer", hidden=True, type=click.Path(path_type=Path))
def main(models: tuple[str, ...], time_limit: float, again: bool, job: str | None, answer: Path | None) -> None:
    if job is not None and answer is not None:
        asked = json.loads(job)
        answer.write_text(json.dumps(JOBS[asked["kind"]](asked)))
        return
    path = record.RESULTS / "fit.json"
    result: dict[str, Any] = json.loads(path.read_text())["result"] if path.exists() else {"models": {}}
    with TemporaryDirectory() as folder:
        result["calibration"] = _apart({"kind": "calibrate"}, Path(folder))
    for name in models or MODELS:
        if name in result["models"] and not again:
            continue
        with TemporaryDirectory() as folder:
            result["models"][name] = row_of(name, time_limit, Path(folder))
        click.echo(f"{name}: {json.dumps(result['models'][name].get('differences', result['models'][name]))}")
        record.write("fit", result)


if __name__ == "__main__":
    main()

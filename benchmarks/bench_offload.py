"""Two memories: plans that recompute, that move, and that do both; on published costs, and run over a disk.

python benchmarks/bench_offload.py [--part published] [--part disk] [--part smallest] [--model bert] [--again]

* ``published``: the P100 profile of ResNet-50 under budgets and bandwidths each way, by recomputation alone, by moves
  alone and by both; the two are given to the third as plans to begin with, as a sweep does. Seconds are predictions.
* ``disk``: shipped models under shares of eager's peak, planned by recomputation alone and with moves to a folder on a
  disk, and again with the times of its own step and the rates of its copies, as ``monet plan --measure`` does it:
  ``alone`` and ``in_step`` have the predicted and the measured seconds of the first and of the last plan. Plans with
  moves are run. ``pairs``: eager's and planned steps alternate in one process, the figure is the
  median of the ratios. ``memory``: another process, whose anonymous and file-backed resident memory is sampled from
  outside while it runs planned steps; copies go past the page cache, and what of their file is in it is counted, too.
* ``smallest``: the smallest budgets of the same models, at any overhead, by recomputation alone and with moves; the
  plans with moves are run as above.

The profile (utsaslab/monet-schedules) is not part of this project; where it is missing, that part is left out.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import record
from instances import instances_option
from job_process import run_apart

from monet.errors import InfeasibleBudget, MonetError
from monet.planner.problem import SecondMemory
from monet.planner.published.profile import load_published
from monet.planner.replay import replay
from monet.planner.schedules import plan_variant
from monet.planner.search import Solving
from monet.planner.solution import Solution

GIB = 2**30
BUDGETS_GIB, RATES_GB = (4, 5, 6), (1, 4, 12, 50)
MODELS = {"bert": 8, "vit": 8, "gpt2": 2, "t5": 8, "unet": 1, "resnet50": 184}
SHARES, SHARES_OF = (70, 60), {"resnet50": (30,)}
"""Of eager's peak. ResNet-50 costs little to make again down to 37 % (6 GB)."""
PAIRS, PAIRS_OF, WARM_UP = 4, {"resnet50": 2}, 1
"""Pairs of steps; an eager one of ResNet-50 takes a minute."""
SMALLEST = ("bert", "vit", "unet")
"""Models whose smallest budgets are looked for."""
PROCESS_LIMIT_S = 1200.0
_apart = partial(run_apart, __file__, limit_s=PROCESS_LIMIT_S)


def published(path: Path, solving: Solving) -> list[dict[str, Any]]:
    """A row for each budget and bandwidth."""
    problem = load_published(path)
    fastest_s = plan_variant("pytorch", problem, 10**15).objective_s
    rows = []
    for gib in BUDGETS_GIB:
        alone = _planned("monet", problem, gib, solving)
        for rate in RATES_GB:
            whole = replace(problem, second=SecondMemory(rate * 1e9, rate * 1e9))
            moved = _planned("move-only", whole, gib, solving)
            plans = [p for p in (alone, moved) if p is not None]
            start = min(plans, key=lambda p: p.objective_s).runs if plans else None
            both = plan_variant("monet+move", whole, gib * GIB, solving, start=start)
            traffic = replay(whole, both.runs).traffic
            row = {
                "budget_gib": gib,
                "rate_gb": rate,
                "keep_everything_s": fastest_s,
                "recompute_s": None if alone is None else alone.objective_s,
                "move_s": None if moved is None else moved.objective_s,
                "both_s": both.objective_s,
                "bound_s": both.bound_s,
                "bound_scope": both.bound_scope,
                "moved": len(both.runs.moved),
                "recomputed": sum(len(stage.recompute) for stage in both.runs.stages),
                "traffic": None if traffic is None else asdict(traffic),
            }
            click.echo(json.dumps(row))
            rows.append(row)
    return rows


def _planned(variant: str, problem: Any, gib: float, solving: Solving) -> Solution | None:
    try:
        return plan_variant(variant, problem, int(gib * GIB), solving)
    except InfeasibleBudget:
        return None


def disk_cell(model: str, share: int | None, folder: Path, time_limit_s: float) -> dict[str, Any]:
    """Plans of one model under one budget (None: the smallest), the one with moves run."""
    plan = folder / f"{model}-{share}.plan.json"
    cell = _apart({"plan": str(plan), "model": model, "share": share, "time_limit_s": time_limit_s}, folder)
    if plan.is_file():
        cell["pairs"] = _apart({"pairs": str(plan), "model": model}, folder)
        cell["memory"] = _memory({"memory": str(plan), "model": model}, folder)
    return cell


def _memory(job: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The job's own figures, and its resident memory as seen from here."""
    answer = folder / "memory.json"
    answer.unlink(missing_ok=True)
    process = subprocess.Popen(
        [sys.executable, __file__, "--job", json.dumps(job), "--answer", str(answer)], stdout=subprocess.DEVNULL
    )
    anonymous = mapped = 0
    while process.poll() is None:
        try:
            status = dict(line.split(":", 1) for line in Path(f"/proc/{process.pid}/status").read_text().splitlines())
            anonymous = max(anonymous, int(status["RssAnon"].split()[0]) * 1024)
            mapped = max(mapped, int(status["RssFile"].split()[0]) * 1024)
        except (OSError, KeyError):
            pass
        time.sleep(0.01)
    found: dict[str, Any] = json.loads(answer.read_text()) if answer.is_file() else {"error": process.returncode}
    return {**found, "resident_anonymous_bytes": anonymous, "resident_file_bytes": mapped}


def _config(name: str) -> Any:
    from monet.models.config import load_config

    return load_config(f"{name}.yaml").with_batch(MODELS[name])


def job_plan(job: Mapping[str, Any]) -> dict[str, Any]:
    import torch
    from paired_steps import predicted_by_measured

    from monet.base.amounts import parse_budget
    from monet.lab.experiments.configured import prepare_config
    from monet.lab.experiments.measured_again import planned_again
    from monet.lab.experiments.measured_steps import measured_step
    from monet.ops.offers.offering import Offering
    from monet.pipeline.meter import silent
    from monet.pipeline.offloading import offloaded
    from monet.pipeline.planning import plan_prepared, plan_smallest
    from monet.pipeline.preparation import Preparing
    from monet.step.second_memory.offload import parse_offload

    config = _config(job["model"])
    prepared = prepare_config(config, Preparing())
    solving = Solving(time_limit_s=job["time_limit_s"])
    offload = parse_offload("disk")
    both = offloaded(prepared, offload)
    if job["share"] is None:
        alone, moving = plan_smallest(prepared, None, solving), plan_smallest(both, None, solving, variant="monet+move")
        moving.plan.save(job["plan"])
        return {
            "eager_peak_bytes": prepared.eager_peak_bytes,
            **{name: _smallest_row(made.summary) for name, made in (("recompute", alone), ("both", moving))},
        }
    budget = f"{job['share']}%"
    cell: dict[str, Any] = {"eager_peak_bytes": prepared.eager_peak_bytes}
    try:
        plain = plan_prepared(prepared, budget, solving).summary
        cell["recompute"] = {"overhead": plain.overhead, "gap": plain.gap}
    except InfeasibleBudget as error:
        cell["recompute"] = {"refused": str(error), "smallest_bytes": error.smallest_bytes}
    try:
        result = plan_prepared(both, budget, solving, variant="monet+move")
    except InfeasibleBudget as error:
        return {**cell, "both": {"refused": str(error), "smallest_bytes": error.smallest_bytes}}
    steps = partial(measured_step, config, Path(job["plan"]), torch.get_num_threads(), quiet=True)
    result.plan.save(job["plan"])
    alone = steps(in_place=True)
    cell["alone"] = predicted_by_measured(result.summary, alone)
    result = planned_again(
        config, result, alone, parse_budget(budget), solving, Preparing(), Offering(), offload=offload,
        variant="monet+move", meter=silent,
    )  # fmt: skip
    result.plan.save(job["plan"])
    cell["in_step"] = predicted_by_measured(result.summary, steps())
    summary = result.summary
    assert summary.second_memory is not None
    cell["both"] = {
        "budget_bytes": summary.budget_bytes,
        "peak_bytes": summary.peak_bytes,
        "overhead": summary.overhead,
        "gap": summary.gap,
        "bound_scope": summary.bound_scope,
        "recomputed": summary.recomputed,
        "objective_s": summary.objective_s,
        "second_memory": asdict(summary.second_memory),
    }
    return cell


def _smallest_row(summary: Any) -> dict[str, Any]:
    return {
        "peak_bytes": summary.peak_bytes,
        "bound_bytes": summary.bound_bytes,
        "bound_scope": summary.bound_scope,
        "overhead": summary.overhead,
        "recomputed": summary.recomputed,
        "objective_s": summary.objective_s,
        "second_memory": None if summary.second_memory is None else asdict(summary.second_memory),
    }


def _steps(job: Mapping[str, Any], path: str) -> tuple[Any, Any, Any]:
    from paired_steps import steps_of

    return steps_of(_config(job["model"]), Path(path), beside_eager="pairs" in job)


def _waited_s(planned: Any) -> float:
    """Of all its steps; a plan that moves nothing waits for nothing."""
    copies = planned._step.runner.copies
    return 0.0 if copies is None else float(copies.waits.seconds)


def job_pairs(job: Mapping[str, Any]) -> dict[str, Any]:
    step, eager, planned = _steps(job, job["pairs"])
    ratios, seconds, worst = [], [], 0.0
    for seed in range(WARM_UP + PAIRS_OF.get(job["model"], PAIRS)):
        began = time.perf_counter()
        expected = step(eager, seed)
        middle = time.perf_counter()
        waited = _waited_s(planned)
        found = step(planned, seed)
        ended = time.perf_counter()
        waited = _waited_s(planned) - waited
        whole = sum(float(other.norm()) ** 2 for other in expected) ** 0.5
        for one, other in zip(found, expected, strict=True):
            # Some gradients are zero but for rounding, as that of a bias before a normalization.
            worst = max(worst, float((one - other).norm()) / (float(other.norm()) + 1e-4 * whole))
        del found, expected, one, other  # gradients that are held over a forward pass make the arena move
        if seed >= WARM_UP:
            ratios.append((ended - middle) / (middle - began))
            seconds.append((ended - middle, waited))
    return {
        "time_ratio": statistics.median(ratios),
        "step_s": statistics.median(s for s, _ in seconds),
        "waited_s": statistics.median(w for _, w in seconds),
        "gradient_error": worst,
    }


def job_memory(job: Mapping[str, Any]) -> dict[str, Any]:
    from monet.native import allocator

    allocator.available()
    step, _, planned = _steps(job, job["memory"])
    step(planned, 0)
    allocator.reset_peak()
    step(planned, 1)
    peak_bytes, copies = allocator.peak_bytes(), planned._step.runner.copies
    if copies is None:  # a plan that moves nothing
        return {"allocator_peak_bytes": peak_bytes, "direct": None, "copied": None}
    copied = asdict(copies.channel.copied())
    return {"allocator_peak_bytes": peak_bytes, "direct": copies.channel.direct, "copied": copied}


@click.command()
@click.option(
    "--part", "parts", multiple=True, type=click.Choice(["published", "disk", "smallest"]), help="Only these."
)
@click.option("--model", "models", multiple=True, type=click.Choice(list(MODELS)), help="Only these.")
@click.option("--share", "shares", multiple=True, type=int, help="Of eager's peak, in percent; only these.")
@click.option("--time-limit", default=30.0, show_default=True, help="Seconds to plan a cell.")
@click.option("--again", is_flag=True, help="Run cells again that have a row.")
@instances_option("p100")
@click.option("--job", hidden=True)
@click.option("--answer", hidden=True, type=click.Path(path_type=Path))
def main(
    parts: tuple[str, ...], models: tuple[str, ...], shares: tuple[int, ...], time_limit: float, again: bool,
    instances: Path, job: str | None, answer: Path | None,
) -> None:  # fmt: skip
    if job is not None and answer is not None:
        asked = json.loads(job)
        run = job_plan if "plan" in asked else job_pairs if "pairs" in asked else job_memory
        try:
            answer.write_text(json.dumps(run(asked)))
        except MonetError as error:
            answer.write_text(json.dumps({"error": str(error)}))
        return
    result: dict[str, Any] = record.known("offload")
    profile = instances / "p100" / "resnet50.json"
    if "published" in (parts or ("published",)) and profile.is_file() and ("published" not in result or again):
        result["published"] = published(profile, Solving(time_limit_s=time_limit))
        record.write("offload", result)
    with TemporaryDirectory() as folder:
        for name in (models or MODELS) if "disk" in (parts or ("disk",)) else ():
            for share in shares or SHARES_OF.get(name, SHARES):
                cells = result.setdefault("disk", {}).setdefault(name, {})
                if f"{share}%" in cells and not again:
                    continue
                cells[f"{share}%"] = cell = disk_cell(name, share, Path(folder), time_limit)
                click.echo(f"{name} {share}%: {json.dumps(cell)}")
                record.write("offload", result)
        for name in (models or SMALLEST) if "smallest" in (parts or ("smallest",)) else ():
            if name not in result.setdefault("smallest", {}) or again:
                result["smallest"][name] = cell = disk_cell(name, None, Path(folder), time_limit)
                click.echo(f"{name} smallest: {json.dumps(cell)}")
                record.write("offload", result)


if __name__ == "__main__":
    main()

"""Predicted against measured seconds: operators one by one, operators in the plan's own step, and the step itself.

python benchmarks/bench_seconds.py [--model bert] [--shares 70]

As ``monet plan --measure`` does it: a plan by operators that are measured one by one, the times of its operators in its
step, the plan that is made with these, and its step and eager's, each in a process of its own. ``ratio``: predicted by
measured seconds, of the first plan's step (``alone``), of the last plan's (``in_step``), and of eager's step without
and with what it waits for new memory.

``paired``: the step by eager's as predicted, and as measured by steps that alternate in one process.

Rates of a shared machine change within minutes. So the same kernels are timed before and after each measurement
(``reference_s``: a matrix product, and a pass over memory); a cell in which either differs by more than ``STEADY`` is
run again, at most ``TRIES`` times, and the steadiest is kept.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import click
import record
import torch
from bench_models import BATCHES
from job_process import run_apart
from paired_steps import paired_ratio, predicted_by_measured

from monet.base.amounts import ByteBudget, parse_budget
from monet.errors import InfeasibleBudget
from monet.lab.experiments.configured import prepare_config
from monet.lab.experiments.measured_again import planned_again
from monet.lab.experiments.measured_steps import measured_step
from monet.models.config import Config, load_config
from monet.ops.offers.offering import Offering
from monet.pipeline.meter import silent
from monet.pipeline.planning import PlanResult, plan_prepared
from monet.pipeline.preparation import Preparing
from monet.planner.ablation import MONET
from monet.planner.search import Solving

STEADY, TRIES = 0.05, 2
PROCESS_LIMIT_S = 400.0
REFERENCE_RUNS = 25


def _reference_s() -> tuple[float, float]:
    """Median seconds of a matrix product, and of a pass over memory."""
    square, long = torch.ones(1024, 1024), torch.ones(16 << 20)

    def taken_s(kernel: Callable[[], object]) -> float:
        began = time.perf_counter()
        kernel()
        return time.perf_counter() - began

    pairs = [(taken_s(lambda: square @ square), taken_s(lambda: long + 1)) for _ in range(REFERENCE_RUNS)]
    product, memory = zip(*pairs, strict=True)
    return median(product), median(memory)


def _drift(references: list[tuple[float, float]]) -> float:
    """By how much the slowest of a kernel's times is longer than the fastest."""
    return max(max(times) / min(times) - 1 for times in zip(*references, strict=True))


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
        tries: list[dict[str, Any]] = []
        while len(tries) < TRIES and all(row["drift"] > STEADY for row in tries):
            tries.append(_cell(name, config, first, budget, solving, threads, path))
        rows[f"{share}%"] = row = min(tries, key=lambda each: each["drift"])
        click.echo(
            f"{name:14} {share:3}%  alone {row['alone']['ratio']:.3f}  in step {row['in_step']['ratio']:.3f}  "
            f"by eager's {row['paired']['ratio']:.3f}  "
            f"drift {row['drift']:.3f} of {len(tries)}"
        )
    return rows


def _cell(
    name: str, config: Config, first: PlanResult, budget: ByteBudget, solving: Solving, threads: int, path: Path
) -> dict[str, Any]:
    references = [_reference_s()]
    first.plan.save(path)
    alone = measured_step(config, path, threads, in_place=True, quiet=True)
    references.append(_reference_s())
    last = planned_again(config, first, alone, budget, solving, Preparing(), Offering(), variant=MONET, meter=silent)
    last.plan.save(path)
    references.append(_reference_s())
    again = measured_step(config, path, threads, quiet=True)
    references.append(_reference_s())
    paired = run_apart(__file__, {"model": name, "plan": str(path)}, path.parent, PROCESS_LIMIT_S)
    predicted = 1.0 + last.summary.overhead
    one_by_one, in_step = predicted_by_measured(first.summary, alone), predicted_by_measured(last.summary, again)
    return {
        "alone": one_by_one,
        "in_step": in_step,
        "paired": {"predicted": predicted, "measured": paired["ratio"], "pairs": paired["pairs"],
                   "ratio": predicted / paired["ratio"]},
        "another_plan": last.plan.steps != first.plan.steps,
        "faster": in_step["measured_s"] / one_by_one["measured_s"],
        "promised_bytes": last.plan.peak_bytes, "measured_bytes": again.values["allocator_peak_bytes"],
        "reference_s": references, "drift": _drift(references),
    }  # fmt: skip


@click.command()
@click.option("--model", "models", multiple=True, type=click.Choice(list(BATCHES)), help="Only these; others are kept.")
@click.option("--shares", default="85,60", show_default=True, help="Budgets, in per cent of eager's peak.")
@click.option("--time-limit", default=20.0, show_default=True, help="Seconds to plan a budget.")
@click.option("--job", hidden=True)
@click.option("--answer", hidden=True, type=click.Path(path_type=Path))
def main(models: tuple[str, ...], shares: str, time_limit: float, job: str | None, answer: Path | None) -> None:
    if job is not None and answer is not None:
        asked = json.loads(job)
        config = load_config(f"{asked['model']}.yaml").with_batch(BATCHES[asked["model"]])
        answer.write_text(json.dumps(paired_ratio(config, Path(asked["plan"]))))
        return
    found: dict[str, Any] = record.known("seconds") if models else {}
    with TemporaryDirectory() as folder:
        for name in models or BATCHES:
            asked = tuple(int(share) for share in shares.split(","))
            found[name] = _rows(name, asked, time_limit, Path(folder) / "step.plan.json")
            record.write("seconds", found)
    plans = [row for rows in found.values() for row in rows.values() if "in_step" in row]
    for said, chosen in (("all", plans), ("steady", [row for row in plans if row.get("drift", 1.0) <= STEADY])):
        for kind in ("alone", "in_step", "paired"):
            off = [abs(row[kind]["ratio"] - 1) for row in chosen]
            within = [sum(x <= limit for x in off) for limit in (0.05, 0.1)]
            click.echo(f"{said}, {kind}: {within[0]} of {len(off)} within 5 %, {within[1]} within 10 %")


if __name__ == "__main__":
    main()

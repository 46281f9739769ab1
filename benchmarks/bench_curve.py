"""Step time against peak: plans beside what PyTorch's users write, on eight networks. On the CPU.

python benchmarks/bench_curve.py [--model bert] [--contestant monet] [--time-limit 60]

Each contestant runs in a process of its own, paired with eager: their steps (forward, loss, backward) alternate, and
the figure is the median of the ratios, so that noise meets both. Peaks are PyTorch's allocator's, in bytes, before
eager's copy of the model is made: parameters, buffers, gradients and inputs included. The contestants are described in
``training_jobs.py``; ``monet`` runs at shares of eager's measured peak, and at the peak of each of the others, rounded
down to a percent; ``unlimited``: without a limit. What a compiler that fuses reaches: ``bench_compile.py``.

Rows are written as soon as they are there; ``--again`` runs those that have one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import matplotlib as mpl
import record
from job_process import run_apart
from matplotlib import pyplot
from training_jobs import answer_job, plan_row, result_line

PROCESS_LIMIT_S = 400.0
_apart = partial(run_apart, __file__, limit_s=PROCESS_LIMIT_S)
MODELS = ("bert", "gpt2", "llama", "vit", "swin", "convnext", "resnet50", "unet")
SHARES = (100, 70, 50, 33)
BUDGETS = (0.6, 0.2)
OURS = {"monet": ("monet", "unlimited"), "optimize": ("optimize",)}
"""Contestant → what its rows are called."""


def _contestants(
    name: str, wanted: Sequence[str], time_limit_s: float, folder: Path, known: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """``known``: earlier rows of the network; those of contestants that are not ``wanted`` stay."""
    rows: list[dict[str, Any]] = []

    def run(contestant: str, asked: Any = None, **more: Any) -> dict[str, Any]:
        job = {"kind": "run", "model": name, "contestant": contestant, "asked": asked, **more}
        return {"contestant": contestant, "asked": asked, **_apart(job, folder)}

    def add(row: dict[str, Any]) -> None:
        rows.append(row)
        click.echo(result_line(name, row, eager.get("peak_bytes")))

    eager = run("eager")
    add(eager)
    if "peak_bytes" not in eager:
        return rows
    jobs: list[tuple[str, Any]] = [("block", None), ("sqrt-n", None), ("selective", None)]
    jobs += [("memory_budget", budget) for budget in BUDGETS] + [("region", BUDGETS[0])]
    for contestant, asked in jobs:
        if not wanted or contestant in wanted:
            add(run(contestant, asked))
    if wanted:
        again = {"eager", *(label for one in wanted for label in OURS.get(one, (one,)))}
        rows += [row for row in known if row["contestant"] not in again]
    # Also at what each peer reaches, below eager's: the two are then compared at one peak.
    ours = {label for labels in OURS.values() for label in labels}
    peers = [r for r in rows if r["contestant"] not in ours]
    reached = {int(100 * r["peak_bytes"] / eager["peak_bytes"]) for r in peers if "peak_bytes" in r}
    shares_of_step = sorted({*SHARES, *(share for share in reached if share < 100)}, reverse=True)
    for whole, shares in ((False, (None, *shares_of_step)), (True, (50,))):
        label = "optimize" if whole else "monet"
        if wanted and label not in wanted:
            continue
        budgets = {str(share): None if share is None else eager["peak_bytes"] * share // 100 for share in shares}
        planning = {"kind": "plan", "model": name, "whole": whole, "budgets": budgets, "folder": str(folder),
                    "time_limit_s": time_limit_s}  # fmt: skip
        planned = _apart(planning, folder)
        for share in shares:
            add(plan_row(planned, "unlimited" if share is None else label, share, run))
    return rows


def draw(rows: Mapping[str, Any]) -> None:
    """Of each network: time against peak, both by eager's."""
    mpl.use("Agg")
    figure, axes = pyplot.subplots(2, 4, figsize=(14, 6.5), layout="constrained")
    styles = {"eager": "k*", "block": "C1s", "sqrt-n": "C1^", "selective": "C1D", "memory_budget": "C2x",
              "region": "C2+", "unlimited": "C0o", "monet": "C0o", "optimize": "C3o"}  # fmt: skip
    for axis, (name, results) in zip(axes.flat, rows.items(), strict=False):
        ran = [r for r in results if "time_ratio" in r]
        eager = next(r["peak_bytes"] for r in ran if r["contestant"] == "eager")
        ours = sorted(
            (r["peak_bytes"] / eager, r["time_ratio"]) for r in ran if r["contestant"] in ("monet", "unlimited")
        )
        axis.plot(*zip(*ours, strict=True), "C0-", alpha=0.5) if ours else None
        for contestant, style in styles.items():
            points = [(r["peak_bytes"] / eager, r["time_ratio"]) for r in ran if r["contestant"] == contestant]
            if points:
                axis.plot(*zip(*points, strict=True), style, label=contestant, alpha=0.8)
        axis.set_title(name, fontsize=10)
        axis.set_xlabel("peak, of eager's")
        axis.set_ylabel("step time, of eager's")
        axis.grid(alpha=0.3)
    for axis in axes.flat[len(rows) :]:
        axis.set_visible(False)
    handles, labels = axes.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False, fontsize=8)
    figure.savefig(record.RESULTS / "curve.png", dpi=130)


@click.command()
@click.option("--model", "models", multiple=True, type=click.Choice(MODELS), help="Only these.")
@click.option("--contestant", "contestants", multiple=True, help="Besides eager only these; others' rows stay.")
@click.option("--time-limit", default=60.0, show_default=True, help="Seconds to plan a budget.")
@click.option("--again", is_flag=True, help="Run networks again that have a row.")
@click.option("--job", hidden=True)
@click.option("--answer", hidden=True, type=click.Path(path_type=Path))
def main(
    models: tuple[str, ...], contestants: tuple[str, ...], time_limit: float, again: bool, job: str | None,
    answer: Path | None,
) -> None:  # fmt: skip
    if job is not None and answer is not None:
        answer.write_text(json.dumps(answer_job(json.loads(job))))
        return
    rows: dict[str, Any] = record.known("curve")
    with TemporaryDirectory() as folder:
        for name in models or MODELS:
            if name in rows and not again and not contestants:
                continue
            rows[name] = _contestants(name, contestants, time_limit, Path(folder), rows.get(name, []))
            record.write("curve", rows)
            draw(rows)


if __name__ == "__main__":
    main()

"""Step time against peak: plans beside ``torch.compile``, which fuses. On the CPU, eleven networks.

python benchmarks/bench_compile.py [--model llama] [--time-limit 60] [--fused-only]

As ``bench_curve.py``, with the networks of ``networks.py``, three of which have a realistic width. Contestants:
``compile`` (Inductor) alone and with ``activation_memory_budget``, around checkpointed blocks, and for the peak of each
of them, in bytes, two plans: ``monet``, and ``fused`` with regions that Inductor has compiled. Compilation and planning
stand beside it in seconds: the first from an empty cache of Inductor, the second with the operators measured.

What a step takes by eager's is measured in a process for each, and eager itself is up to a third faster in one process
than in another. So a contestant is also paired with the fused plan at its peak, in one process: a cell is won where
the plan takes no longer (``fused_by_it``: the middle of the pairs' ratios, and the quarters around it). The row
``eager`` of ``time_ratio`` is eager against itself, and shows the noise.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import record
from job_process import run_apart
from networks import MODELS
from training_jobs import answer_job, plan_row, result_line

PROCESS_LIMIT_S = 1200.0
_apart = partial(run_apart, __file__, limit_s=PROCESS_LIMIT_S)
CONTESTANTS: tuple[tuple[str, float | None], ...] = (
    ("compile", None), ("compile", 0.7), ("compile", 0.5), ("compile", 0.3), ("compile", 0.1), ("compile block", None),
)  # fmt: skip


def _rows(name: str, kinds: tuple[str, ...], time_limit_s: float, folder: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    of_plans = {"TORCHINDUCTOR_CACHE_DIR": str(folder / f"{name}-plans")}

    def kernels_of(contestant: str, asked: float | int | None) -> dict[str, str]:
        """Empty at first. No space in its name: Inductor's command of g++ does not quote it."""
        return {"TORCHINDUCTOR_CACHE_DIR": str(folder / f"{name}-{contestant}-{asked}".replace(" ", "-"))}

    def run(contestant: str, asked: float | int | None, **more: Any) -> dict[str, Any]:
        job = {"kind": "run", "model": name, "contestant": contestant, "asked": asked, **more}
        kernels = of_plans if "plan" in more else kernels_of(contestant, asked)
        return {"contestant": contestant, "asked": asked, **_apart(job, folder, environment=kernels)}

    def add(row: dict[str, Any]) -> None:
        rows.append(row)
        click.echo(result_line(name, row, eager.get("peak_bytes")))

    eager = run("eager", None)
    add(eager)
    if "peak_bytes" not in eager:
        return rows
    for contestant, asked in CONTESTANTS:
        add(run(contestant, asked))
    reached = sorted({row["peak_bytes"] for row in rows if row.get("peak_bytes")}, reverse=True)
    for contestant in kinds:
        planning = {"kind": "plan", "model": name, "whole": False, "folder": str(folder), "time_limit_s": time_limit_s,
                    "fused": contestant == "fused",
                    "budgets": {str(budget): budget for budget in (None, *reached)}}  # fmt: skip
        planned = _apart(planning, folder, environment=of_plans)
        for budget in (None, *reached):
            add({**plan_row(planned, "monet", budget, run), "contestant": contestant})
            rows[-1]["measuring_s"] = planned.get("measuring_s")
    plans = {(row["contestant"], row["asked"]): row for row in rows}
    for row in rows:  # beside each contestant, the plans for its peak
        if row["contestant"] in kinds or "time_ratio" not in row:
            continue
        for kind in kinds:
            row[f"{kind}_time_ratio"] = plans[kind, row["peak_bytes"]].get("time_ratio")
        made = planned.get("plans", {}).get(str(row["peak_bytes"]), {})  # the fused ones are planned last
        if "path" in made:
            job = {"kind": "pair", "model": name, "contestant": row["contestant"], "asked": row["asked"],
                   "plan": made["path"]}  # fmt: skip
            row["fused_by_it"] = _apart(job, folder, environment=kernels_of(row["contestant"], row["asked"]))
            click.echo(f"{name:12} fused by {row['contestant']} {row['asked'] or ''}: {row['fused_by_it']}")
    return rows


def _is_won(row: dict[str, Any]) -> bool:
    if "ratio" in row.get("fused_by_it", {}):
        return bool(row["fused_by_it"]["ratio"] <= 1.0)
    return row.get("fused_time_ratio") is not None and bool(row["fused_time_ratio"] <= row["time_ratio"])


@click.command()
@click.option("--model", "models", multiple=True, type=click.Choice(list(MODELS)), help="Only these.")
@click.option("--time-limit", default=60.0, show_default=True, help="Seconds to plan a budget.")
@click.option("--fused-only", is_flag=True, help="No plans of PyTorch's own kernels: half of the time.")
@click.option("--again", is_flag=True, help="Run networks again that have a row.")
@click.option("--job", hidden=True)
@click.option("--answer", hidden=True, type=click.Path(path_type=Path))
def main(
    models: tuple[str, ...], time_limit: float, fused_only: bool, again: bool, job: str | None, answer: Path | None
) -> None:
    if job is not None and answer is not None:
        answer.write_text(json.dumps(answer_job(json.loads(job))))
        return
    path = record.RESULTS / "compile.json"
    rows: dict[str, Any] = record.known("compile")
    kinds = ("fused",) if fused_only else ("monet", "fused")
    with TemporaryDirectory() as folder:
        for name in models or MODELS:
            if name not in rows or again:
                rows[name] = _rows(name, kinds, time_limit, Path(folder))
                record.write("compile", rows)
    cells = [r for found in rows.values() for r in found if r["contestant"].startswith("compile") and "time_ratio" in r]
    click.echo(f"plans are as fast or faster in {sum(map(_is_won, cells))} of {len(cells)} cells; wrote {path}")


if __name__ == "__main__":
    main()

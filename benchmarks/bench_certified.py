"""Planned runs in processes that may not have more memory than was promised: how many end, how many miss the promise?

python benchmarks/bench_certified.py [--only resnet] [--budgets 17] [--jobs 2] [--again]

Each of twenty-five networks (``certified_models.py``) with SGD, Adam and AdamW, on one thread and on two, with and
without a second memory on the disk, under budgets evenly from eager's peak down to the smallest that is known to work.
A run is two whole steps of ``monet.optimize`` under ``RLIMIT_DATA``: all private writable memory of the process. The
limit is what the process had before the first step without the step's own tensors (``share``: interpreter, torch,
libraries with their threads and compiled kernels, which one step of eager's has made, and what capturing and planning
left), the promise, and ``CONSTANT_BYTES``, the same for all.
A run is killed where the process ends by itself or an allocation fails; it misses where an operator asked for other
memory than its plan's, or the measured peak is not the promised one. The plan is made, and its peak printed, before any
step has run. ``control``: PyTorch's own step under the limit of the smallest budget, which should fail.

Resumable: networks that are in the record are not run again, but for ``--again``; what is done of one that is not is in
``build/certified_17.jsonl``. Ctrl-C loses the jobs under way.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import click
import record
from certified_models import CASES
from tqdm import tqdm

CONSTANT_BYTES = 16 << 20
"""With 4 MiB 7 of 1,411 runs ended: oneDNN compiles a convolution's kernels when it first runs, and those of chunks of
a batch are a plan's alone."""
BUDGETS = 17
STEPS = 2
PLANNING_S = 0.5
GAP = 0.2
LIMIT_S = 900.0
OPTIMIZERS = ("SGD", "Adam", "AdamW")
BUILD = Path(__file__).parents[1] / "build"


def _private_bytes() -> int:
    """What ``RLIMIT_DATA`` counts; the heap's free pages are given back before."""
    ctypes.CDLL(None).malloc_trim(0)
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmData:"))


def _limit(limit_bytes: int | None) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (hard if limit_bytes is None else limit_bytes, hard))


class _Job:
    """One network with one optimiser, threads and offloading, and its runs."""

    def __init__(self, job: Mapping[str, Any]) -> None:
        import torch

        from monet.native import allocator
        from monet.step.training_step.whole_step import capture_whole_step

        if not allocator.available():
            raise RuntimeError("peaks are measured by the allocator, which needs a C++ compiler")
        torch.set_num_threads(job["threads"])
        self.make, self.batch, self.loss = CASES[job["model"]]
        self.folder, self.offload = job["folder"], job["offload"]
        torch.manual_seed(0)
        self.model = self.make().train()
        self.optimizer = getattr(torch.optim, job["optimizer"])(self.model.parameters(), 1e-3)
        inputs, targets = self.batch(0)
        self.step = capture_whole_step(self.model, inputs, targets, loss_fn=self.loss, optimizer=self.optimizer)
        self.eager()

    def eager(self) -> None:
        """PyTorch's own steps."""
        self.optimizer.state.clear()
        for seed in range(STEPS):
            inputs, targets = self.batch(seed)
            outputs = self.model(**inputs) if isinstance(inputs, dict) else self.model(inputs)
            self.loss(outputs, targets).backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            del outputs

    def plans(self, count: int) -> list[Any]:
        """For ``count`` budgets, from eager's peak down; the smallest last."""
        from monet.errors import InfeasibleBudget, SolverError
        from monet.pipeline.offloading import offloaded
        from monet.pipeline.planning import plan_prepared
        from monet.pipeline.preparation import prepare_whole
        from monet.planner.ablation import MONET
        from monet.planner.search import Solving
        from monet.step.second_memory.offload import parse_offload, variant_with

        offload = parse_offload(f"disk:{self.folder},write=1GB/s,read=1GB/s") if self.offload else None
        prepared, variant = offloaded(prepare_whole(self.step), offload), variant_with(offload, MONET)
        solving = Solving(PLANNING_S, GAP, cores=1)

        def planned(budget: int) -> Any:
            try:
                return plan_prepared(prepared, budget, solving, variant=variant).plan
            except InfeasibleBudget as error:
                return error.smallest_bytes
            except SolverError:
                return None

        eager_bytes, smallest = prepared.eager_peak_bytes, planned(1)
        if not isinstance(smallest, int) or count < 2 or smallest >= eager_bytes:
            smallest = eager_bytes
        budgets = [eager_bytes - (eager_bytes - smallest) * i // max(count - 1, 1) for i in range(count)]
        return [planned(budget) for budget in budgets]

    def held_bytes(self) -> int:
        """Of the step's own tensors that are there before it: parameters, buffers and constants, each memory once."""
        held = (*self.model.parameters(), *self.model.buffers(), *self.step.captured.constants.values())
        return sum({t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in held}.values())

    def run(self, plan: Any) -> dict[str, Any]:
        """Two steps under the limit, by the trainer that ``monet.optimize`` gives for a plan; the step is captured once
        for all plans."""
        import gc

        from monet import Trainer
        from monet.native import allocator
        from monet.step.training_step.whole_step import plain_inputs

        step = self.step
        self.optimizer.state.clear()  # the first step makes it
        trainer = Trainer(step.module, plan, step.captured, step.updates, self.optimizer, plain_inputs)
        gc.collect()
        held_bytes = self.held_bytes()
        other, share = allocator.live_bytes() - held_bytes, _private_bytes() - held_bytes
        found: dict[str, Any] = {"promised_bytes": plan.peak_bytes, "share_bytes": share}
        peaks = []
        _limit(share + plan.peak_bytes + CONSTANT_BYTES)
        try:
            for seed in range(STEPS):
                batch = self.batch(seed)
                allocator.reset_peak()
                results = trainer(*batch)
                peaks.append(allocator.peak_bytes() - other)
                del batch, results
            found["grown_bytes"] = _private_bytes() - share
            found["misses"] = trainer._step.runner.arena.statistics().misses
        except (MemoryError, RuntimeError) as error:
            if not isinstance(error, MemoryError) and "allocate memory" not in str(error):
                raise
            found["killed"] = f"{type(error).__name__}: {error}"[:200]
        finally:
            _limit(None)
        return {**found, "off_bytes": max((abs(peak - plan.peak_bytes) for peak in peaks), default=None)}

    def control(self, promised_bytes: int) -> bool:
        """Whether PyTorch's own step fails under the same limit."""
        import gc

        self.optimizer.state.clear()
        gc.collect()
        _limit(_private_bytes() - self.held_bytes() + promised_bytes + CONSTANT_BYTES)
        try:
            self.eager()
        except (MemoryError, RuntimeError):
            return True
        finally:
            _limit(None)
        return False


def _work(job: Mapping[str, Any], answer: Path) -> None:
    """In a process of its own: a line before and after each run from ``job["first"]`` on."""
    with answer.open("a") as out:

        def say(line: Mapping[str, Any]) -> None:
            out.write(json.dumps(line) + "\n")
            out.flush()

        here = _Job(job)
        plans = here.plans(job["budgets"])
        made = [plan for plan in plans if plan is not None and not isinstance(plan, int)]
        say({"planned": len(made), "unplanned": len(plans) - len(made)})
        for number, plan in enumerate(made):
            if number >= job["first"]:
                say({"begins": number})
                say({"run": number, **here.run(plan)})
        if made and not job["offload"]:
            say({"begins": "control"})
            say({"control": here.control(made[-1].peak_bytes)})
        say({"ends": True})


def _job_rows(job: Mapping[str, Any]) -> dict[str, Any]:
    """All runs of a job, in as many processes as it takes."""
    runs: dict[int, dict[str, Any]] = {}
    found: dict[str, Any] = {"job": {key: job[key] for key in ("model", "optimizer", "threads", "offload")}}
    first = 0
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.jsonl"
        while True:
            asked = json.dumps({**job, "first": first, "folder": folder})
            command = [sys.executable, __file__, "--job", asked, "--answer", str(answer)]
            try:
                ended = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
            except subprocess.TimeoutExpired:
                return {**found, "runs": list(runs.values()), "error": f"stopped after {LIMIT_S:g} s"}
            lines = [json.loads(line) for line in answer.read_text().splitlines()] if answer.exists() else []
            for line in lines:
                found.update({key: line[key] for key in ("planned", "unplanned", "control") if key in line})
                if "run" in line:
                    runs[line["run"]] = line
            begun = max((line["begins"] for line in lines if isinstance(line.get("begins"), int)), default=None)
            if any("ends" in line for line in lines) or begun is None or {"begins": "control"} in lines:
                if not any("ends" in line for line in lines):  # the control ended the process, or nothing began
                    found["control"] = True
                    if begun is None:
                        found["error"] = ended.stderr[-600:]
                return {**found, "runs": list(runs.values())}
            if begun in runs:  # it ended between two runs
                return {**found, "runs": list(runs.values()), "error": ended.stderr[-600:]}
            killed = f"the process ended with {ended.returncode}: {ended.stderr[-200:]}"
            runs[begun] = {"run": begun, "killed": killed}
            first = begun + 1


def _summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    runs = [run for row in rows for run in row["runs"]]
    grown = [run["grown_bytes"] - run["promised_bytes"] for run in runs if "grown_bytes" in run]
    shares = sorted(run["share_bytes"] for run in runs if "share_bytes" in run)
    return {
        "runs": len(runs),
        "killed": sum("killed" in run for run in runs),
        "misses": sum(run.get("misses", 0) for run in runs),
        "off_bytes": max((run["off_bytes"] for run in runs if run.get("off_bytes") is not None), default=None),
        "most_beyond_the_promise_bytes": max(grown, default=None),
        "share_bytes": [shares[0], shares[len(shares) // 2], shares[-1]] if shares else [],
        "unplanned": sum(row.get("unplanned", 0) for row in rows),
        "controls": dict(Counter(str(row["control"]) for row in rows if "control" in row)),
        "errors": [{**row["job"], "error": row["error"]} for row in rows if "error" in row],
    }


def _all(models: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Over the networks of the record."""
    found: dict[str, Any] = {
        name: sum(row[name] for row in models.values()) for name in ("runs", "killed", "misses", "unplanned")
    }
    for name in ("off_bytes", "most_beyond_the_promise_bytes"):
        found[name] = max((row[name] for row in models.values() if row[name] is not None), default=None)
    found["controls"] = dict(sum((Counter(row["controls"]) for row in models.values()), Counter()))
    return found | {"errors": [error for row in models.values() for error in row["errors"]]}


@click.command()
@click.option("--only", multiple=True, help="Networks of this name.")
@click.option("--budgets", default=BUDGETS, show_default=True, help="Of each job; the record is of that number alone.")
@click.option("--jobs", default=os.cpu_count(), show_default=True, help="Processes at a time.")
@click.option("--again", is_flag=True, help="Networks that are in the record, too.")
@click.option("--job", hidden=True)
@click.option("--answer", hidden=True, type=click.Path(path_type=Path))
def main(only: tuple[str, ...], budgets: int, jobs: int, again: bool, job: str | None, answer: Path | None) -> None:
    if job is not None and answer is not None:
        _work(json.loads(job), answer)
        return
    path = record.RESULTS / "certified.json"
    models = json.loads(path.read_text())["result"]["models"] if path.exists() else {}
    names = [
        name for name in CASES if (not only or name in only) and (again or budgets != BUDGETS or name not in models)
    ]
    kept = BUILD / f"certified_{budgets}.jsonl"
    kept.parent.mkdir(exist_ok=True)
    done = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() and not again else []
    known = [row["job"] for row in done]
    asked = [
        {"model": model, "optimizer": optimizer, "threads": threads, "offload": offload}
        for model, optimizer, threads, offload in product(names, OPTIMIZERS, (1, 2), (False, True))
    ]
    left = [{**job, "budgets": budgets} for job in asked if job not in known]
    bar = tqdm(total=len(asked), initial=len(asked) - len(left))
    with ThreadPoolExecutor(jobs) as pool, kept.open("w" if again else "a") as out, bar:
        for row in pool.map(_job_rows, left):
            done.append(row)
            out.write(json.dumps(row) + "\n")
            out.flush()
            bar.update()
            name = row["job"]["model"]
            of_it = [other for other in done if other["job"]["model"] == name]
            so_far = _summary(of_it)
            bar.set_postfix({"network": name, **{key: so_far[key] for key in ("killed", "misses", "off_bytes")}})
            if budgets == BUDGETS and len(of_it) == sum(job["model"] == name for job in asked):
                models[name] = {**so_far, "commit": record.COMMIT}
                models = {name: models[name] for name in CASES if name in models}
                result = {"constant_bytes": CONSTANT_BYTES, "steps_a_run": STEPS, "networks": [len(models), len(CASES)]}
                record.write("certified", {**result, "all": _all(models), "models": models})
    click.echo(json.dumps(_summary([row for row in done if row["job"]["model"] in names]), indent=2))


if __name__ == "__main__":
    main()

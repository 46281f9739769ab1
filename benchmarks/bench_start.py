"""From a model to its first planned step: every shipped configuration, with an empty cache and with a full one.

python benchmarks/bench_start.py [--model bert] [--fused] [--again]

Seconds of each part, in a process of its own that has imported PyTorch and built the model: the capture, measuring,
solving with order and layout (70 % of eager's peak, or the smallest budget known where that does not fit), the planned
module, its first step. ``cold``: nothing is kept from before, native libraries excepted; ``warm``: the same again.
``--fused``: with fused regions, where Inductor has kept nothing either, not even its headers: ``measure`` has the
capture then, beside which it gets ready, and the kernels are compiled in it; warm, ``module`` loads them.
"""

from __future__ import annotations

import json
import os
import shutil
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

SHARE = 70
PROCESS_LIMIT_S = 400.0
_apart = partial(run_apart, __file__, limit_s=PROCESS_LIMIT_S)


def started(job: Mapping[str, Any]) -> dict[str, Any]:
    """Seconds of each part."""
    import torch
    import torch.utils._pytree as pytree

    import monet
    from monet.capture import capture_once
    from monet.errors import InfeasibleBudget
    from monet.models.config import load_config
    from monet.models.model_loading import build_model
    from monet.models.sample_inputs import make_inputs
    from monet.native import allocator
    from monet.ops.offers.offering import Offering
    from monet.pipeline.planning import plan_prepared
    from monet.pipeline.preparation import prepare
    from monet.planner.search import Solving

    config = load_config(f"{job['model']}.yaml").with_batch(BATCHES[job["model"]])
    model = build_model(config).train()
    args, kwargs = make_inputs(config, 0)
    allocator.available()
    seconds: dict[str, float] = {}
    began = time.perf_counter()

    def note(part: str) -> None:
        nonlocal began
        seconds[part] = time.perf_counter() - began
        began = time.perf_counter()

    if not job["fused"]:
        capture_once(model, args, kwargs, on_disk=True)
        note("capture")
    prepared = prepare(model, args, kwargs, offering=Offering(fused=job["fused"]))
    note("measure")
    solving = Solving(time_limit_s=job["time_limit_s"])
    try:
        plan = plan_prepared(prepared, f"{SHARE}%", solving).plan
    except InfeasibleBudget as error:
        note("refusal")
        assert error.smallest_bytes is not None
        plan = plan_prepared(prepared, error.smallest_bytes, solving).plan
    note("plan")
    module = monet.MonetModule(model, plan)
    note("module")
    outputs = [
        t for t in pytree.tree_leaves(module(*args, **kwargs)) if isinstance(t, torch.Tensor) and t.requires_grad
    ]
    torch.autograd.backward(outputs, [torch.ones_like(t) for t in outputs])
    note("first step")
    return {"seconds": seconds, "steps": len(plan.steps), "gap": plan.solver["gap"]}


@click.command()
@click.option("--model", "models", multiple=True, type=click.Choice(list(BATCHES)), help="Only these.")
@click.option("--time-limit", default=20.0, show_default=True, help="Seconds to plan.")
@click.option("--fused", is_flag=True, help="With fused regions.")
@click.option("--again", is_flag=True, help="Run models that have a row.")
@click.option("--job", hidden=True)
@click.option("--answer", hidden=True, type=click.Path(path_type=Path))
def main(
    models: tuple[str, ...], time_limit: float, fused: bool, again: bool, job: str | None, answer: Path | None
) -> None:
    if job is not None and answer is not None:
        answer.write_text(json.dumps(started(json.loads(job))))
        return
    from monet.base.files.cache import library_folder

    rows: dict[str, Any] = record.known("start")
    for name in models or BATCHES:
        row = f"{name}, fused" if fused else name
        if row in rows and not again:
            continue
        with TemporaryDirectory() as folder:
            cache = Path(folder) / "cache"
            cache.mkdir(mode=0o700)
            shutil.copytree(library_folder(), cache / "native")
            os.chmod(cache / "native", 0o700)
            asked = {"model": name, "time_limit_s": time_limit, "fused": fused}
            kept = {"MONET_CACHE": str(cache), "TMPDIR": folder, "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor"}
            rows[row] = {when: _apart(asked, Path(folder), environment=kept) for when in ("cold", "warm")}
        click.echo(f"{row}: {json.dumps(rows[row])}")
        record.write("start", rows)


if __name__ == "__main__":
    main()

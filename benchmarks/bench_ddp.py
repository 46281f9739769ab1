"""Planned against eager steps inside of DistributedDataParallel: two processes, gloo on the loopback device.

python benchmarks/bench_ddp.py [--rounds 15] [--threads 1]

Three replicas a model: eager's, a planned one whose backward pass gives its gradients away in parts, and one with the
same plan that gives all of them at the end. They take turns in the same processes. ``exposed_s`` is what is left to
wait for once the last gradient is there, which is when the last bucket is full, to the end of ``backward``.
"""

from __future__ import annotations

import copy
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import record
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import monet
from monet.executor import parallel
from monet.models.torchvision_schemas import with_torchvision_schemas

WORLD = 2
MODES = ("eager", "planned", "at_once")


def _resnet18() -> nn.Module:
    def made() -> nn.Module:
        from torchvision.models import resnet18

        model: nn.Module = resnet18()
        return model

    return with_torchvision_schemas(made)


def _perceptron(width: int, depth: int) -> nn.Module:
    layers = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.GELU())]
    return nn.Sequential(*layers, nn.Linear(width, 10))


CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], dict[str, Any]]] = {
    "resnet18": (_resnet18, (8, 3, 112, 112), {}),
    "perceptron": (lambda: _perceptron(2048, 8), (64, 2048), {}),
    "tiny": (lambda: _perceptron(128, 4), (16, 128), {"bucket_cap_mb": 0.1}),
}


BUDGETS = {"resnet18": "80%", "perceptron": "100%", "tiny": "100%"}
"""The memory of perceptrons is that of their parameters, of which nothing can be saved."""


class _Replica:
    """A model inside of DistributedDataParallel, in one of the modes."""

    def __init__(self, mode: str, model: nn.Module, options: dict[str, Any]) -> None:
        self.mode, self.model = mode, model
        self.around = DistributedDataParallel(model, gradient_as_bucket_view=True, **options)
        self.full: list[float] = []  # when each bucket of this step was
        # Without annotations: torch reads those of a hook.
        self.around.register_comm_hook(None, lambda _, bucket: self._reduce(bucket))

    def _reduce(self, bucket: Any) -> Any:
        self.full.append(time.perf_counter())
        buffer = bucket.buffer().div_(WORLD)
        return dist.all_reduce(buffer, async_op=True).get_future().then(lambda done: done.value()[0])

    def step(self, x: torch.Tensor) -> tuple[float, float]:
        """Seconds of the step, and those that are exposed. Both processes begin together."""
        self.model.zero_grad()
        self.full.clear()
        dist.barrier()
        began = time.perf_counter()
        out = self.around(x)
        out.backward(torch.ones_like(out))
        ended = time.perf_counter()
        # All at once: the last gradient is there before the first bucket is full.
        return ended - began, ended - self.full[0 if self.mode == "at_once" else -1]


def _run(rank: int, folder: str, name: str, rounds: int, threads: int, budget: str) -> None:
    torch.set_num_threads(threads)
    dist.init_process_group("gloo", init_method=f"file://{folder}/{name}.meeting", rank=rank, world_size=WORLD)
    make, shape, options = CASES[name]
    torch.manual_seed(0)
    model = make()
    x = torch.randn(shape, generator=torch.Generator().manual_seed(rank))
    replicas = [_Replica(mode, copy.deepcopy(model), options) for mode in MODES]
    _, planned, at_once = replicas
    monet.apply(planned.model, budget=budget, progress=rank == 0)
    planned.step(x)
    plan = monet.applied(planned.model).plans[0]
    monet.apply(at_once.model, plan)
    in_parts = parallel.part_bytes

    seconds: dict[str, list[tuple[float, float]]] = {mode: [] for mode in MODES}
    for n in range(rounds + 2):
        for replica in replicas[n % 3 :] + replicas[: n % 3]:
            parallel.part_bytes = (lambda: None) if replica.mode == "at_once" else in_parts
            taken = replica.step(x)
            if n >= 2:  # buckets are as the first step has shown them from the second on
                seconds[replica.mode].append(taken)
    parallel.part_bytes = in_parts
    runner = monet.applied(planned.model).calls.modules[0].module._step.runner
    result = {
        "shape": shape,
        "threads": threads,
        "parameter_bytes": plan.fixed["parameters"],
        "bucket_bytes": plan.fixed["buckets"],
        "budget": budget,
        "promised_bytes": plan.peak_bytes,
        "eager_bytes": plan.solver["eager_peak_bytes"],
        "buckets": len(planned.full),
        "parts": max((len(code.parts) for code in runner._code_in_parts.values()), default=1),
        "rounds": rounds,
        **{
            mode: {
                "step_s": statistics.median(step for step, _ in taken),
                "exposed_s": statistics.median(exposed for _, exposed in taken),
            }
            for mode, taken in seconds.items()
        },
        "ratio": statistics.median(p / e for (p, _), (e, _) in zip(seconds["planned"], seconds["eager"], strict=True)),
    }
    dist.barrier()
    dist.destroy_process_group()
    if rank == 0:
        (Path(folder) / f"{name}.json").write_text(json.dumps(result))


@click.command()
@click.option("--rounds", default=15, show_default=True, help="Steps of each replica.")
@click.option("--threads", default=1, show_default=True, help="Of torch, in each process.")
@click.option("--budget", help="Of eager's step, buckets included, instead of each model's own.")
@click.option("--model", "models", multiple=True, type=click.Choice(list(CASES)), help="Only these; writes no file.")
def main(rounds: int, threads: int, budget: str | None, models: tuple[str, ...]) -> None:
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in models or [name for name in CASES if name != "tiny"]:
            torch.multiprocessing.spawn(_run, (folder, name, rounds, threads, budget or BUDGETS[name]), nprocs=WORLD)
            results[name] = json.loads((Path(folder) / f"{name}.json").read_text())
            click.echo(f"{name}: {results[name]}")
    if not models:
        click.echo(f"wrote {record.write('ddp', results)}")


if __name__ == "__main__":
    main()

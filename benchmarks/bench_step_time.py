"""Planned against eager step time with an unlimited budget: medians of interleaved pairs in one process; and what it
takes to compare a model of 200 modules with what was planned, which each planned step does first.

python benchmarks/bench_step_time.py [--pairs 15]
"""

from __future__ import annotations

import copy
import statistics
import time
from typing import Any

import click
import record
import torch

import monet
from monet.capture.guards.model_guard import ModelGuard
from monet.models.config import InputSpec, load_config
from monet.models.model_loading import build_model
from monet.models.sample_inputs import make_inputs

CASES = {"resnet50": (8, 3, 224, 224), "mobilenet_v2": (8, 3, 224, 224), "vgg16": (4, 3, 224, 224), "tiny": None}


def _step(module: torch.nn.Module, args: Any, kwargs: Any) -> float:
    module.zero_grad(set_to_none=True)
    start = time.perf_counter()
    out = module(*args, **kwargs)
    out.backward(torch.ones_like(out))
    return time.perf_counter() - start


def _check_us(modules: int) -> dict[str, float]:
    """What comparing the model before a step takes, in microseconds: of a network of so many modules, right after the
    last time, and after 64 MiB of other memory were read, as between two steps."""
    blocks = [
        torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.1), torch.nn.ReLU()) for _ in range(modules // 4)
    ]
    guard = ModelGuard(torch.nn.Sequential(*blocks))
    other = torch.zeros(2**24)
    times: dict[str, list[float]] = {"again_us": [], "between_steps_us": []}
    for name, seen in times.items():
        for _ in range(201):
            if name == "between_steps_us":
                other.add_(1)
            start = time.perf_counter()
            assert guard.difference() is None
            seen.append(1e6 * (time.perf_counter() - start))
    return {
        "modules": 1 + 4 * (modules // 4),
        **{name: round(statistics.median(seen), 1) for name, seen in times.items()},
    }


@click.command()
@click.option("--pairs", default=15, show_default=True, help="Interleaved pairs a model.")
@click.option("--model", "models", multiple=True, type=click.Choice(list(CASES)), help="Only these; writes no file.")
def main(pairs: int, models: tuple[str, ...]) -> None:
    results: dict[str, dict[str, Any]] = {}
    for name, shape in CASES.items():
        if models and name not in models:
            continue
        config = load_config(f"{name}.yaml")
        if shape is not None:
            config = config.model_copy(update={"inputs": (InputSpec(shape=shape),)})
        model = build_model(config)
        args, kwargs = make_inputs(config, 0)
        plan = monet.plan(model, args, kwargs, budget="1000GB", progress=True)
        planned = monet.MonetModule(copy.deepcopy(model), plan)
        for module in (model, planned):
            _step(module, args, kwargs)
        times: list[tuple[float, float]] = []
        for i in range(pairs):
            order = (model, planned) if i % 2 == 0 else (planned, model)
            seconds = {id(module): _step(module, args, kwargs) for module in order}
            times.append((seconds[id(model)], seconds[id(planned)]))
        ratio = statistics.median(p / e for e, p in times)
        results[name] = {
            "shape": shape,
            "eager_s": statistics.median(e for e, _ in times),
            "planned_s": statistics.median(p for _, p in times),
            "predicted_s": plan.solver["objective_s"],
            "ratio": ratio,
        }
        click.echo(f"{name}: planned / eager {ratio:.3f}  {results[name]}")
    results["check before a step"] = _check_us(200)
    click.echo(f"check before a step: {results['check before a step']}")
    if not models:
        click.echo(f"wrote {record.write('step_time', results)}")


if __name__ == "__main__":
    main()

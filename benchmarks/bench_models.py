"""Every shipped model: the smallest budget, and what 70, 50 and 40 % of eager's measured peak cost.

python benchmarks/bench_models.py [--model gpt2] [--time-limit 15]

Each row is written as soon as it is measured, and a model that has one of these shares is not run again without
``--again``. Batches are small enough for a step of a few seconds on two cores. Steps run in processes of their own:
bytes are exact, seconds the median of steps after a warm-up one; gradients are compared with eager's for every
parameter. How far roundings alone move them is measured on eager itself: by weights that are off by one rounding, and
by PyTorch's other kernels.
"""

from __future__ import annotations

import multiprocessing
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import click
import record

from monet.errors import InfeasibleBudget
from monet.lab.experiments.measured_steps import measure_config
from monet.models.config import Config, load_config
from monet.models.model_loading import build_model, precision
from monet.models.sample_inputs import empty_inputs, make_inputs
from monet.pipeline.meter import on_stderr
from monet.pipeline.planning import plan_prepared, plan_smallest
from monet.pipeline.preparation import Prepared, Preparing, prepare
from monet.planner.search import Solving
from monet.plans.plan import Plan

# Of images, clips, volumes or sequences.
BATCHES = {
    "alexnet": 32, "vgg16": 4, "resnet50": 8, "googlenet_aux": 16, "mobilenet_v2": 16, "mobilenet_v3": 16,
    "mnasnet": 16, "efficientnet": 8, "densenet121": 8, "unet": 1, "unet3d": 1, "vit": 8, "swin": 8, "resnet3d": 2,
    "bert": 8, "gpt2": 2, "xlm_roberta": 8, "t5": 8, "lstm": 20,
}  # fmt: skip
SHARES = (70, 50, 40)
EAGER, ROUNDED, OTHER_KERNELS = "eager", "rounded", "other kernels"


def _gradients(config: Config, how: str | Path, threads: int) -> dict[str, Any]:
    """Gradients of one step, in a process of its own, from random gradients of all outputs. ``how``: a plan's file, or
    one of the three above."""
    import torch
    import torch.utils._pytree as pytree

    torch.set_num_threads(threads)
    torch.backends.mkldnn.set_flags(how != OTHER_KERNELS)
    model = build_model(config)
    if how == ROUNDED:
        generator = torch.Generator().manual_seed(4)
        with torch.no_grad():
            for p in model.parameters():
                up = torch.rand(p.shape, generator=generator) < 0.5
                p.copy_(torch.nextafter(p, torch.where(up, torch.inf, -torch.inf).to(p.dtype)))
    args, kwargs = make_inputs(config, 1)
    module: torch.nn.Module = model
    if isinstance(how, Path):
        from monet.executor.module import MonetModule

        module = MonetModule(model, Plan.load(how))
    torch.manual_seed(2)
    with precision(config):
        results = pytree.tree_leaves(module(*args, **kwargs))
    outputs = [t for t in results if isinstance(t, torch.Tensor) and t.requires_grad]
    generator = torch.Generator().manual_seed(3)
    torch.autograd.backward(outputs, [torch.randn(t.shape, generator=generator).to(t.dtype) for t in outputs])
    return {name: p.grad for name, p in model.named_parameters()}


def _save_gradients(config: Config, how: str | Path, threads: int, target: Path) -> None:
    import torch

    torch.save(_gradients(config, how, threads), target)


def _apart(*arguments: Any) -> None:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        pool.submit(_save_gradients, *arguments).result()


def _difference(eager: Path, planned: Path) -> dict[str, Any]:
    """Whether all gradients are equal bit by bit; else the largest error relative to the largest gradient of the
    step, and the norm of the error relative to that of the gradient."""
    import torch

    expected, found = (torch.load(path, mmap=True) for path in (eager, planned))
    equal, largest, error, squares, wrong = True, 0.0, 0.0, 0.0, 0.0
    for name, gradient in expected.items():
        if gradient is None:
            assert found[name] is None
            continue
        equal = equal and torch.equal(gradient, found[name])
        off = gradient.double() - found[name].double()
        largest, error = max(largest, float(gradient.abs().max())), max(error, float(off.abs().max()))
        squares, wrong = squares + float(gradient.double().square().sum()), wrong + float(off.square().sum())
    if not largest:
        raise ValueError("all gradients are 0: nothing is compared")
    return {"bitwise": equal, "largest_error": error / largest, "norm_error": (wrong / squares) ** 0.5}


def _row(name: str, time_limit_s: float, folder: Path) -> dict[str, Any]:
    config = load_config(f"{name}.yaml").with_batch(BATCHES[name])
    model = build_model(config)
    args, kwargs = empty_inputs(config, model)
    with precision(config):
        prepared = prepare(model, args, kwargs, preparing=Preparing(seed=config.seed), progress=True)
    del model
    threads = int(prepared.environment["threads"])
    eager_gradients = folder / "eager.pt"
    _apart(config, EAGER, threads, eager_gradients)
    roundings = _roundings(config, threads, eager_gradients, folder)
    smallest = plan_smallest(prepared, solving=Solving(time_limit_s=time_limit_s), meter=on_stderr)
    path = folder / "plan.json"
    smallest.plan.save(path)
    eager = measure_config(config, path)["eager"]
    row: dict[str, Any] = {
        "batch": BATCHES[name],
        "operators": len(prepared.problem.forward) + len(prepared.problem.backward),
        "eager": eager,
        "predicted_eager_s": prepared.eager.objective_s,
        "predicted_eager_peak_bytes": prepared.eager_peak_bytes,
        "fixed_bytes": prepared.problem.fixed_bytes,
        "roundings": roundings,
        "plans": {},
    }
    peak_bytes = eager["allocator_peak_bytes"]
    assert peak_bytes is not None
    row["plans"]["smallest"] = _measured(config, smallest, prepared, eager_gradients, folder)
    for share in SHARES:
        try:
            found = plan_prepared(
                prepared, int(peak_bytes) * share // 100, Solving(time_limit_s=time_limit_s), meter=on_stderr
            )
        except InfeasibleBudget as error:
            click.echo(f"{name} at {share} %: {error}", err=True)
            row["plans"][f"{share}%"] = None
            continue
        row["plans"][f"{share}%"] = _measured(config, found, prepared, eager_gradients, folder)
    return row


def _roundings(config: Config, threads: int, eager_gradients: Path, folder: Path) -> dict[str, Any]:
    """What roundings alone do to eager's gradients."""
    found = {}
    for how in (ROUNDED, OTHER_KERNELS):
        _apart(config, how, threads, folder / "other.pt")
        found[how] = _difference(eager_gradients, folder / "other.pt")
    return found


def _measured(config: Config, found: Any, prepared: Prepared, eager_gradients: Path, folder: Path) -> dict[str, Any]:
    path, gradients = folder / "plan.json", folder / "planned.pt"
    found.plan.save(path)
    planned = measure_config(config, path, eager=False)["planned"]
    _apart(config, path, int(prepared.environment["threads"]), gradients)
    return {
        "budget_bytes": found.plan.budget_bytes,
        "promised_peak_bytes": found.plan.peak_bytes,
        "measured_peak_bytes": planned["allocator_peak_bytes"],
        "overhead": found.summary.overhead,
        "gap": found.summary.gap,
        "bound_bytes": found.summary.bound_bytes,
        "measured_step_s": planned["step_s"],
        "recomputed": found.summary.recomputed,
        "gradients": _difference(eager_gradients, gradients),
    }


def _told(name: str, row: dict[str, Any]) -> str:
    peak = row["eager"]["allocator_peak_bytes"]
    parts = []
    for what, plan in row["plans"].items():
        if plan is None:
            parts.append(f"{what}: –")
            continue
        equal = "=" if plan["promised_peak_bytes"] == plan["measured_peak_bytes"] else "NOT THE PROMISED PEAK"
        gradients = plan["gradients"]
        same = "bitwise" if gradients["bitwise"] else f"{gradients['norm_error']:.0e}"
        parts.append(
            f"{what}: {plan['promised_peak_bytes'] / peak:.1%} {equal} {plan['overhead']:+.1%} "
            f"(measured {plan['measured_step_s'] / row['eager']['step_s'] - 1:+.1%}) gradients {same}"
        )
    eager = f"{name} batch {row['batch']}, eager {peak} B {row['eager']['step_s']:.2f} s"
    roundings = ", ".join(f"{how} {error['norm_error']:.0e}" for how, error in row["roundings"].items())
    return f"{eager}, its gradients with {roundings} | " + " | ".join(parts)


@click.command()
@click.option("--model", "models", multiple=True, type=click.Choice(list(BATCHES)), help="Only these.")
@click.option("--time-limit", default=15.0, show_default=True, help="Seconds to solve each plan.")
@click.option("--again", is_flag=True, help="Run models that have a row.")
def main(models: tuple[str, ...], time_limit: float, again: bool) -> None:
    rows: dict[str, Any] = record.known("models")
    for name in models or BATCHES:
        if again or name not in rows or any(f"{share}%" not in rows[name]["plans"] for share in SHARES):
            with tempfile.TemporaryDirectory() as folder:
                rows[name] = {**_row(name, time_limit, Path(folder)), "commit": record.COMMIT}
            record.write("models", {n: rows[n] for n in BATCHES if n in rows})
        click.echo(_told(name, rows[name]))


if __name__ == "__main__":
    main()

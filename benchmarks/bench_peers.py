"""What PyTorch offers against memory, beside a plan: peak, time, gradients, running statistics. On the CPU.

python benchmarks/bench_peers.py [--model gpt] [--method monet]

Each configuration runs in a fresh process, so that one that crashes is a result, and its peak is its own:

* eager;
* ``torch.utils.checkpoint`` around every block (``use_reentrant=False``);
* ``torch._functorch.config.activation_memory_budget`` (a share of what is saved for backward, not of the peak)
  with ``torch.compile(backend="aot_eager_decomp_partition")``;
* monet, at shares of eager's measured peak in bytes.

In its process each is compared with an eager copy of the same weights on the same inputs and seed. Random masks
need not be eager's to be right, so there is a second look at the gradients that does not need eager's: ``slope``, the
measured change of the configuration's own loss along its own gradient, by the change that the gradient predicts. It
is 1 for a right gradient, and less where the backward pass belongs to other masks than the forward pass.
"""

from __future__ import annotations

import gc
import json
import statistics
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import record
import torch
from job_process import run_apart
from torch import nn
from torch.nn import functional

from monet.errors import InfeasibleBudget
from monet.native import allocator
from monet.pipeline.preparation import Preparing
from monet.planner.search import Solving

THREADS = 2
PAIRS = 5
WARM_UP_STEPS = 2
SEED = 7
PROCESS_LIMIT_S = 240.0
_apart = partial(run_apart, __file__, limit_s=PROCESS_LIMIT_S)
RATIOS = (1.0, 0.8, 0.6, 0.4, 0.2, 0.0)
SHARES = (1.0, 0.9, 0.8, 0.6, 0.5, 0.4)
METHODS = ("eager", "checkpoint", "memory_budget", "memory_budget_profile", "monet")
SAME_GRADIENT = 1e-2
"""A difference to eager's gradients below this share of the largest one is rounding, which a deep network with few
samples amplifies (1e-3 for decomposed batch norms); other dropout masks make several tenths."""
SAME_STATISTICS = 1e-4
"""The same for running statistics; an update that is made twice is off by a tenth, and its count by one."""
RIGHT_SLOPE = 0.02
"""The measured slope of float32 losses is right to a few thousandths."""
SLOPE_STEP = 0.02
"""How far the loss moves when the slope is measured: far above its rounding, and near enough to be straight."""

VOCABULARY, WIDTH, HEADS, TOKENS, LAYERS, BATCH = 512, 128, 4, 128, 4, 8


class Block(nn.Module):
    """Attention and a perceptron, each after a layer norm and with dropout."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.norm, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.drop = nn.Dropout(dropout)
        self.register_buffer("mask", torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril().logical_not())
        self.mask: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x)).view(BATCH, TOKENS, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4).unbind(0)
        scores = (q @ k.transpose(-2, -1) * (WIDTH // HEADS) ** -0.5).masked_fill(self.mask, float("-inf"))
        mixed = self.drop(scores.softmax(-1)) @ v
        x = x + self.drop(self.out(mixed.transpose(1, 2).reshape(BATCH, TOKENS, WIDTH)))
        return x + self.drop(self.narrow(functional.gelu(self.wide(self.norm2(x)))))


class Gpt(nn.Module):
    """A small GPT and its loss."""

    def __init__(self, dropout: float = 0.1) -> None:
        super().__init__()
        self.embed, self.position = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(TOKENS, WIDTH)
        self.drop = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(dropout) for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.drop(self.embed(tokens) + self.position.weight)
        for block in self.blocks:
            x = block(x)
        return functional.cross_entropy(self.head(self.norm(x)).view(-1, VOCABULARY), targets.view(-1))


class Classifier(nn.Module):
    """torchvision's ResNet-18 and its loss."""

    def __init__(self) -> None:
        super().__init__()
        from monet.models.torchvision_schemas import with_torchvision_schemas

        self.net = with_torchvision_schemas(_resnet18)

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(self.net(images), labels)


def _resnet18() -> nn.Module:
    from torchvision.models import resnet18

    network: nn.Module = resnet18()
    return network


def _blocks(model: nn.Module) -> list[nn.Module]:
    """What users checkpoint: transformer blocks, residual blocks."""
    return [m for m in model.modules() if isinstance(m, Block) or type(m).__name__ == "BasicBlock"]


def _gpt_inputs() -> tuple[torch.Tensor, ...]:
    return torch.randint(VOCABULARY, (BATCH, TOKENS)), torch.randint(VOCABULARY, (BATCH, TOKENS))


def _image_inputs() -> tuple[torch.Tensor, ...]:
    return torch.randn(16, 3, 96, 96), torch.randint(1000, (16,))


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[torch.Tensor, ...]]]] = {
    "gpt": (Gpt, _gpt_inputs),
    "resnet18": (Classifier, _image_inputs),
}


def _build(name: str) -> nn.Module:
    torch.manual_seed(0)
    return MODELS[name][0]().train()


def _inputs(name: str) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(1)
    return MODELS[name][1]()


def _step(module: nn.Module, inputs: Sequence[torch.Tensor]) -> float:
    """Forward and backward from a fixed seed; returns the loss."""
    module.zero_grad(set_to_none=True)
    torch.manual_seed(SEED)
    loss = module(*inputs)
    loss.backward()
    return float(loss.detach())


def _configured(job: Mapping[str, Any], model: nn.Module) -> tuple[nn.Module, dict[str, Any]]:
    """The module that trains ``model`` as the job says, and what was asked for and promised."""
    method, asked = job["method"], job["asked"]
    if method == "checkpoint":
        from torch.utils.checkpoint import checkpoint

        for block in _blocks(model):

            def again(x: torch.Tensor, forward: Callable[..., Any] = block.forward) -> Any:
                return checkpoint(forward, x, use_reentrant=False)

            block.forward = again  # type: ignore[method-assign]
        return model, {}
    if method.startswith("memory_budget"):
        import torch._functorch.config as functorch

        functorch.activation_memory_budget = asked
        if method == "memory_budget_profile":
            functorch.activation_memory_budget_runtime_estimator = "profile"
        _count_inside_graphs()
        compiled: nn.Module = torch.compile(model, backend="aot_eager_decomp_partition")  # type: ignore[assignment]
        return compiled, {"asked_share_of_saved": asked}
    if method == "monet":
        import monet

        plan = monet.Plan.load(job["plan"])
        return monet.MonetModule(model, plan), {
            "asked_share_of_peak": asked,
            "asked_bytes": plan.budget_bytes,
            "promised_bytes": plan.peak_bytes,
            "predicted_s": plan.solver["objective_s"],
            "planning": job["planning"],
        }
    return model, {}


def run_job(job: Mapping[str, Any]) -> dict[str, Any]:
    """In its own process: one configuration of one model."""
    metered = allocator.available()  # before anything is allocated
    torch.set_num_threads(THREADS)
    model, inputs = _build(job["model"]), _inputs(job["model"])
    module, found = _configured(job, model)
    start = time.perf_counter()
    for _ in range(WARM_UP_STEPS):
        _step(module, inputs)
    found["warm_up_s"] = time.perf_counter() - start
    model.zero_grad(set_to_none=True)
    gc.collect()
    if metered:
        allocator.reset_peak()
    _step(module, inputs)
    found["peak_bytes"] = allocator.peak_bytes() if metered else None

    # From here on an eager copy is in memory, too.
    eager = _build(job["model"])
    model.load_state_dict(eager.state_dict())
    found |= _against_eager(module, model, eager, inputs)
    found["slope"] = _slope(module, model, inputs)
    found |= _times(module, eager, inputs)
    found |= _flops(module, eager, inputs)
    return found


def _against_eager(
    module: nn.Module, model: nn.Module, eager: nn.Module, inputs: Sequence[torch.Tensor]
) -> dict[str, Any]:
    """One step from the same weights: gradients, by the largest of eager's, loss and buffers."""
    losses = _step(module, inputs), _step(eager, inputs)
    pairs = [(p.grad, q.grad) for p, q in zip(model.parameters(), eager.parameters(), strict=True)]
    if any(mine is None or theirs is None for mine, theirs in pairs):
        raise RuntimeError("a parameter has no gradient")
    largest = max(float(theirs.abs().max()) for _, theirs in pairs)  # type: ignore[union-attr]
    difference = max(float((mine - theirs).abs().max()) for mine, theirs in pairs)  # type: ignore[operator]
    buffers = [(m.double(), e.double()) for m, e in zip(model.buffers(), eager.buffers(), strict=True)]
    return {
        "loss_difference": losses[0] - losses[1],
        "gradient_difference": difference / largest,
        "running_statistics_difference": max((float((m - e).abs().max()) for m, e in buffers), default=0.0),
        "running_statistics_equal": all(torch.equal(m, e) for m, e in buffers) if _has_statistics(eager) else None,
    }


def _has_statistics(model: nn.Module) -> bool:
    return any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in model.modules())


def _slope(module: nn.Module, model: nn.Module, inputs: Sequence[torch.Tensor]) -> float:
    """(L(θ + εg) − L(θ − εg)) / (2ε |g|²), where every L is drawn from the same seed."""
    _step(module, inputs)
    gradients = [(p, p.grad.clone()) for p in model.parameters() if p.grad is not None]
    square = sum(float(g.double().square().sum()) for _, g in gradients)
    epsilon = SLOPE_STEP / square

    def moved(by: float) -> float:
        with torch.no_grad():
            for parameter, gradient in gradients:
                parameter.add_(gradient, alpha=by)
        return _step(module, inputs)

    up, down = moved(epsilon), moved(-2 * epsilon)
    with torch.no_grad():
        for parameter, gradient in gradients:
            parameter.add_(gradient, alpha=epsilon)
    return (up - down) / (2 * SLOPE_STEP)


def _times(module: nn.Module, eager: nn.Module, inputs: Sequence[torch.Tensor]) -> dict[str, Any]:
    """Medians of interleaved pairs; who goes first changes."""
    times: list[tuple[float, float]] = []
    for pair in range(PAIRS):
        seconds = {}
        for one in (module, eager) if pair % 2 else (eager, module):
            start = time.perf_counter()
            _step(one, inputs)
            seconds[one is module] = time.perf_counter() - start
        times.append((seconds[True], seconds[False]))
    return {
        "step_s": statistics.median(mine for mine, _ in times),
        "eager_step_s": statistics.median(theirs for _, theirs in times),
        "time_ratio": statistics.median(mine / theirs for mine, theirs in times),
    }


class _Counting:
    """Compiled graphs are counted from inside: Dynamo runs eager code wherever a counter is already active."""

    active = False
    total = 0


def _count_inside_graphs() -> None:
    """Makes the backend's graphs add to ``_Counting.total`` while that is active; otherwise they run as they are."""
    import torch._dynamo.backends.debugging as backends
    from torch.utils.flop_counter import FlopCounterMode

    make = backends.get_nop_func()

    def compiler(graph: Any, example: Any) -> Callable[[Any], Any]:
        inner = make(graph, example)

        def run(args: Any) -> Any:
            if not _Counting.active:
                return inner(args)
            with FlopCounterMode(display=False) as counter:
                result = inner(args)
            _Counting.total += counter.get_total_flops()
            return result

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    backends.get_nop_func = lambda: compiler


def _flops(module: nn.Module, eager: nn.Module, inputs: Sequence[torch.Tensor]) -> dict[str, Any]:
    """Matrix products and convolutions that a step runs, by eager's; None where PyTorch's counter fails."""
    from torch.utils.flop_counter import FlopCounterMode

    counts = []
    try:
        for one in (module, eager):
            if isinstance(one, torch._dynamo.eval_frame.OptimizedModule):
                _Counting.active, _Counting.total = True, 0
                _step(one, inputs)
                _Counting.active = False
                counts.append(_Counting.total)
                continue
            with FlopCounterMode(display=False) as counter:
                _step(one, inputs)
            counts.append(counter.get_total_flops())
    except Exception as error:  # a step that cannot be counted is still a result
        return {"flops_ratio": None, "flops_error": f"{type(error).__name__}: {error}"[:300]}
    return {"flops_ratio": counts[0] / counts[1] if all(counts) else None}


def run_planning(job: Mapping[str, Any]) -> dict[str, Any]:
    """In its own process: measures a model's step once and plans it for every budget; plans go to ``folder``."""
    from monet.pipeline.planning import plan_prepared
    from monet.pipeline.preparation import prepare

    allocator.available()
    torch.set_num_threads(THREADS)
    start = time.perf_counter()
    prepared = prepare(_build(job["model"]), _inputs(job["model"]), {}, preparing=Preparing(cache=False))
    found: dict[str, Any] = {"measuring_s": time.perf_counter() - start, "plans": {}}
    for share in SHARES:
        budget_bytes = int(share * job["eager_peak_bytes"])
        start = time.perf_counter()
        try:
            result = plan_prepared(prepared, budget_bytes, Solving(time_limit_s=job["time_limit_s"]))
        except InfeasibleBudget as error:
            found["plans"][str(share)] = {"asked_bytes": budget_bytes, "infeasible": str(error)}
            continue
        path = Path(job["folder"]) / f"{job['model']}_{share:g}.json"
        result.plan.save(path)
        summary = {
            key: getattr(result.summary, key) for key in ("status", "gap", "bound_scope", "recomputed", "overhead")
        }
        found["plans"][str(share)] = {"path": str(path), "plan_s": time.perf_counter() - start, **summary}
    return found


def _jobs(name: str, methods: Sequence[str], time_limit_s: float, folder: Path) -> Iterator[dict[str, Any]]:
    """Every configuration of a model as a result; eager first, whose peak the budgets are shares of."""
    eager = _apart({"kind": "run", "model": name, "method": "eager", "asked": None}, folder)
    yield {"model": name, "method": "eager", "asked": None, **eager}
    others: list[tuple[str, float | None]] = [
        ("checkpoint", None),
        *(("memory_budget", ratio) for ratio in RATIOS),
        ("memory_budget_profile", 0.5),
    ]
    for method, asked in others:
        if method in methods:
            job = {"kind": "run", "model": name, "method": method, "asked": asked}
            yield {**job, **_apart(job, folder)}
    if "monet" not in methods:
        return
    if not eager.get("peak_bytes"):
        yield {"model": name, "method": "monet", "asked": None, "error": "eager's peak is not known"}
        return
    job = {"kind": "plan", "model": name, "eager_peak_bytes": eager["peak_bytes"], "time_limit_s": time_limit_s}
    planned = _apart({**job, "folder": str(folder)}, folder)
    for share in SHARES:
        job = {"kind": "run", "model": name, "method": "monet", "asked": share}
        made = planned.get("plans", {}).get(str(share), planned)
        if "path" not in made:
            yield {**job, **made}
            continue
        planning = {"measuring_s": planned["measuring_s"], **made}
        job |= {"plan": planning.pop("path"), "planning": planning}
        result = {**job, **_apart(job, folder)}
        del result["plan"]
        yield result


def _line(result: Mapping[str, Any], eager_bytes: int | None) -> str:
    asked = "" if result["asked"] is None else f"{result['asked']:.1f}"
    head = f"{result['model']:9} {result['method']:21} {asked:>4}"
    if "infeasible" in result:
        return f"{head}  no plan: {result['infeasible']}"
    if "error" in result:
        return f"{head}  {result['error']}"
    peak, flops, equal = result["peak_bytes"], result["flops_ratio"], result["running_statistics_equal"]
    share = f"{peak / eager_bytes:6.1%}" if peak and eager_bytes else "     -"
    statistics_ = "-" if equal is None else "equal" if equal else f"{result['running_statistics_difference']:.0e} off"
    promised = f"  promised {result['promised_bytes']:,}" if "promised_bytes" in result else ""
    return (
        f"{head}  peak {peak or 0:>12,} {share}  time × {result['time_ratio']:5.2f}"
        f"  FLOPs × {'-' if flops is None else f'{flops:.3f}':>5}  gradients {result['gradient_difference']:.0e} off"
        f"  slope {result['slope']:6.3f}  statistics {statistics_}{promised}"
    )


def findings(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """What these numbers say about each tool, one sentence each; a failure that does not show is said, too."""
    lines = []
    for name in dict.fromkeys(r["model"] for r in results):
        of = [r for r in results if r["model"] == name]
        ran = [r for r in of if "error" not in r and "infeasible" not in r]
        eager = next((r["peak_bytes"] for r in ran if r["method"] == "eager"), None)
        steps = [r for r in ran if r["method"] == "memory_budget" and r["peak_bytes"]]
        if len(steps) > 1 and eager:
            rises = [
                f"{a['asked']:g} to {b['asked']:g}" for a, b in pairwise(steps) if b["peak_bytes"] > a["peak_bytes"]
            ]
            lines.append(f"{name}: memory_budget: the peak rises with a lower budget: {', '.join(rises) or 'no'}")
            over = [f"{r['asked']:g}" for r in steps if r["peak_bytes"] > eager]
            lines.append(f"{name}: memory_budget: the peak is above eager's at: {', '.join(over) or 'none'}")
        for method in dict.fromkeys(r["method"] for r in of):
            mine = [r for r in ran if r["method"] == method]
            failed = [_at(r) for r in of if r["method"] == method and "error" in r]
            if failed:
                lines.append(f"{name}: {method}: does not run at: {', '.join(failed)}")
            if not mine:
                continue
            other = [_at(r) for r in mine if r["gradient_difference"] > SAME_GRADIENT]
            lines.append(f"{name}: {method}: gradients are not eager's at: {', '.join(other) or 'none'}")
            wrong = [_at(r) for r in mine if not abs(r["slope"] - 1) <= RIGHT_SLOPE]
            lines.append(f"{name}: {method}: gradients are not those of the loss at: {', '.join(wrong) or 'none'}")
            if any(r["running_statistics_equal"] is not None for r in mine):
                off = [_at(r) for r in mine if r["running_statistics_difference"] > SAME_STATISTICS]
                lines.append(f"{name}: {method}: running statistics are not eager's at: {', '.join(off) or 'none'}")
            above = [_at(r) for r in mine if (r["peak_bytes"] or 0) > r.get("asked_bytes", float("inf"))]
            if method == "monet":
                lines.append(f"{name}: {method}: the peak is above the budget at: {', '.join(above) or 'none'}")
    return lines


def _at(result: Mapping[str, Any]) -> str:
    return "any" if result["asked"] is None else f"{result['asked']:g}"


@click.command()
@click.option("--model", "models", multiple=True, type=click.Choice(list(MODELS)), help="Only these; writes no file.")
@click.option("--method", "methods", multiple=True, type=click.Choice(METHODS), help="Besides eager only these; "
              "writes no file.")  # fmt: skip
@click.option("--time-limit", default=10.0, show_default=True, help="Seconds to plan a budget.")
@click.option("--job", hidden=True)
@click.option("--answer", hidden=True, type=click.Path(path_type=Path))
def main(
    models: tuple[str, ...], methods: tuple[str, ...], time_limit: float, job: str | None, answer: Path | None
) -> None:
    if job is not None and answer is not None:
        task = json.loads(job)
        try:
            found = run_planning(task) if task["kind"] == "plan" else run_job(task)
        except Exception as error:  # a configuration that fails is a result
            last = traceback.format_exc().strip().splitlines()[-8:]
            found = {"error": f"{type(error).__name__}: {error}"[:300], "traceback": last}
        answer.write_text(json.dumps(found))
        return
    start = time.perf_counter()
    results: list[dict[str, Any]] = []
    skipped = {}
    with TemporaryDirectory() as folder:
        for name in models or tuple(MODELS):
            try:
                _build(name)
            except ImportError as error:
                skipped[name] = str(error)
                click.echo(f"{name}: skipped: {error}")
                continue
            eager_bytes = None
            for result in _jobs(name, methods or METHODS, time_limit, Path(folder)):
                result.pop("kind", None)
                results.append(result)
                eager_bytes = result.get("peak_bytes") if result["method"] == "eager" else eager_bytes
                click.echo(_line(result, eager_bytes))
    found = findings(results)
    click.echo("\n".join(found))
    wall_s = time.perf_counter() - start
    click.echo(f"{wall_s:.0f} s")
    if not models and not methods:
        content = {
            "threads": THREADS,
            "pairs": PAIRS,
            "wall_s": wall_s,
            "skipped": skipped,
            "runs": results,
            "findings": found,
        }
        click.echo(f"wrote {record.write('peers', content)}")


if __name__ == "__main__":
    main()

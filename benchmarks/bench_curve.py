"""Step time against peak: plans beside what PyTorch's users write, on eight networks. On the CPU.

python benchmarks/bench_curve.py [--model bert] [--contestant monet] [--time-limit 60]

Each contestant runs in a process of its own, paired with eager: their steps (forward, loss, backward) alternate, and
the figure is the median of the ratios, so that noise meets both. Peaks are PyTorch's allocator's, in bytes, before
eager's copy of the model is made: parameters, buffers, gradients and inputs included. Contestants:

* ``block``: ``torch.utils.checkpoint`` around each block; ``sqrt-n``: around each group of √n blocks;
* ``selective``: around each block, saving the results of matrix products and convolutions
  (``create_selective_checkpoint_contexts``);
* ``memory_budget`` at shares of what is saved: ``torch._functorch.config.activation_memory_budget``, and ``region`` the
  same by ``torch.autograd.graph.region_activation_memory_budget``, both compiled by
  ``aot_eager_decomp_partition``;
* ``monet``: ``MonetModule`` at shares of eager's measured peak, and at the peak of each of the above, rounded down to
  a percent; ``unlimited``: without a limit;
* ``optimize``: ``monet.optimize`` with SGD and momentum, paired with eager's step and update.

Networks are narrower or shorter than usual, so that a step takes about a second on two cores. Rows are written as soon
as they are there; ``--again`` runs those that have one.
"""

from __future__ import annotations

import gc
import json
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import matplotlib as mpl
import record
import torch
from job_process import run_apart
from matplotlib import pyplot
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from monet.errors import InfeasibleBudget
from monet.models.torchvision_schemas import with_torchvision_schemas
from monet.models.transformers import random_weights
from monet.native import allocator

THREADS = 2
PAIRS = 4
WARM_UP_STEPS = 2
SEED = 7
PROCESS_LIMIT_S = 400.0
_apart = partial(run_apart, __file__, limit_s=PROCESS_LIMIT_S)
SHARES = (100, 70, 50, 33)
BUDGETS = (0.6, 0.2)
aten = torch.ops.aten
SAVED = (aten.mm.default, aten.addmm.default, aten.bmm.default, aten.convolution.default)


class Loss(nn.Module):
    """A network and its loss: the first output of transformers' models, or of classes or pixels."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, *args: Tensor) -> Tensor:
        if len(args) == 1:
            result = self.network(input_ids=args[0], labels=args[0], return_dict=False)
            loss: Tensor = result[0]
            return loss
        return functional.cross_entropy(self.network(args[0]), args[1])


def _language(architecture: str, **config: Any) -> nn.Module:
    return Loss(random_weights(architecture, **config))


def _vision(name: str, **config: Any) -> nn.Module:
    def make() -> nn.Module:
        import torchvision

        network: nn.Module = getattr(torchvision.models, name)(**config)
        return network

    return Loss(with_torchvision_schemas(make))


def _unet() -> nn.Module:
    from monet.models.config import load_config
    from monet.models.model_loading import build_model

    return Loss(build_model(load_config("unet.yaml")))


def _tokens(batch: int, length: int, words: int) -> tuple[Tensor, ...]:
    return (torch.randint(words, (batch, length)),)


def _images(batch: int, size: int) -> tuple[Tensor, ...]:
    return torch.randn(batch, 3, size, size), torch.randint(1000, (batch,))


def _pixels() -> tuple[Tensor, ...]:
    return torch.randn(2, 3, 304, 208), torch.zeros(2, 304, 208, dtype=torch.int64)


# Name → model, inputs, and the classes of what users checkpoint.
MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Tensor, ...]], tuple[str, ...]]] = {
    "bert": (
        partial(_language, "BertForMaskedLM", hidden_size=256, num_hidden_layers=6, num_attention_heads=4,
                intermediate_size=1024, vocab_size=4000),
        partial(_tokens, 8, 256, 4000), ("BertLayer",),
    ),
    "gpt2": (
        partial(_language, "GPT2LMHeadModel", n_embd=256, n_layer=6, n_head=4, vocab_size=4000),
        partial(_tokens, 8, 256, 4000), ("GPT2Block",),
    ),
    "llama": (
        partial(_language, "LlamaForCausalLM", hidden_size=256, intermediate_size=704, num_hidden_layers=6,
                num_attention_heads=4, num_key_value_heads=4, vocab_size=4000),
        partial(_tokens, 8, 256, 4000), ("LlamaDecoderLayer",),
    ),
    "vit": (
        partial(_vision, "VisionTransformer", image_size=128, patch_size=16, num_layers=6, num_heads=4, hidden_dim=256,
                mlp_dim=1024),
        partial(_images, 16, 128), ("EncoderBlock",),
    ),
    "swin": (partial(_vision, "swin_t"), partial(_images, 4, 128), ("SwinTransformerBlock",)),
    "convnext": (partial(_vision, "convnext_tiny"), partial(_images, 4, 128), ("CNBlock",)),
    "resnet50": (partial(_vision, "resnet50"), partial(_images, 8, 128), ("Bottleneck",)),
    "unet": (_unet, _pixels, ("ResidualUnit",)),
}  # fmt: skip


def _build(name: str) -> nn.Module:
    torch.manual_seed(0)
    return MODELS[name][0]().train()


def _inputs(name: str) -> tuple[Tensor, ...]:
    torch.manual_seed(1)
    return MODELS[name][1]()


def _blocks(name: str, model: nn.Module) -> list[nn.Module]:
    """What users checkpoint."""
    return [m for m in model.modules() if type(m).__name__ in MODELS[name][2]]


def _checkpointed(blocks: Sequence[nn.Module], **options: Any) -> None:
    for block in blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False, **options)


def _grouped(blocks: Sequence[nn.Module]) -> None:
    """Groups of √n blocks that follow each other and take what the one before returns: the first of a group runs all of
    it, checkpointed, and the others hand through what they are given."""
    size = math.ceil(math.sqrt(len(blocks)))
    for begin in range(0, len(blocks), size):
        group = [block.forward for block in blocks[begin : begin + size]]

        def chain(x: Any, *args: Any, forwards: Sequence[Callable[..., Any]] = group, **kwargs: Any) -> Any:
            out: Any = x
            for forward in forwards:
                out = forward(out[0] if isinstance(out, tuple) else out, *args, **kwargs)
            return out

        blocks[begin].forward = partial(checkpoint, chain, use_reentrant=False)
        for block in blocks[begin + 1 : begin + size]:
            block.forward = lambda x, *_, **__: x


def _save_products(_: Any, operator: Any, *__: Any, **___: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if operator in SAVED else CheckpointPolicy.PREFER_RECOMPUTE


def _same_shapes(name: str) -> bool:
    """Whether one block takes what another returns, so that groups of them can be checkpointed."""
    return name in ("bert", "gpt2", "llama", "vit")


def _configured(job: Mapping[str, Any], model: nn.Module) -> nn.Module:
    """The module that trains ``model`` as the job says."""
    name, contestant, asked = job["model"], job["contestant"], job["asked"]
    blocks = _blocks(name, model)
    if contestant in ("block", "sqrt-n", "selective") and not blocks:
        raise RuntimeError("it has no blocks that users checkpoint")
    if contestant == "block":
        _checkpointed(blocks)
    elif contestant == "selective":
        _checkpointed(blocks, context_fn=partial(create_selective_checkpoint_contexts, _save_products))
    elif contestant == "sqrt-n":
        if not _same_shapes(name):
            raise RuntimeError("its blocks have different inputs")
        _grouped(blocks)
    elif contestant == "memory_budget":
        import torch._functorch.config as functorch

        functorch.activation_memory_budget = asked
        return torch.compile(model, backend="aot_eager_decomp_partition")  # type: ignore[return-value]
    elif contestant == "region":

        class Region(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inside = model

            def forward(self, *args: Tensor) -> Tensor:
                with torch.autograd.graph.region_activation_memory_budget(asked):
                    loss: Tensor = self.inside(*args)
                return loss

        return torch.compile(Region(), backend="aot_eager_decomp_partition")  # type: ignore[return-value]
    elif contestant in ("monet", "unlimited"):
        import monet

        return monet.MonetModule(model, monet.Plan.load(job["plan"]))
    return model


Step = Callable[[], None]


def _plain(inputs: Sequence[Tensor], module: nn.Module) -> None:
    module.zero_grad(set_to_none=True)
    torch.manual_seed(SEED)
    module(*inputs).backward()


def _updating(inputs: Sequence[Tensor], module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    torch.manual_seed(SEED)
    module(*inputs).backward()
    optimizer.step()
    optimizer.zero_grad()


def _eager_step(job: Mapping[str, Any], model: nn.Module) -> Step:
    """What the contestant is paired with."""
    inputs = _inputs(job["model"])
    if job["contestant"] == "optimize":
        return partial(_updating, inputs, model, _optimizer(model))
    return partial(_plain, inputs, model)


def _step(job: Mapping[str, Any], model: nn.Module) -> Step:
    """The contestant's step."""
    if job["contestant"] != "optimize":
        return partial(_plain, _inputs(job["model"]), _configured(job, model))
    import monet

    inputs = _inputs(job["model"])
    trainer = monet.optimize(model, inputs, loss_fn=_own_loss, optimizer=_optimizer(model), plan=job["plan"])

    def step() -> None:
        torch.manual_seed(SEED)
        trainer(inputs)

    return step


def _own_loss(outputs: Tensor, _: Any) -> Tensor:
    return outputs


def _optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9)


def run_job(job: Mapping[str, Any]) -> dict[str, Any]:
    """In its own process: one contestant on one model."""
    metered = allocator.available()  # before anything is allocated
    torch.set_num_threads(THREADS)
    model = _build(job["model"])
    ours = _step(job, model)
    begun = time.perf_counter()
    for _ in range(WARM_UP_STEPS):
        ours()
    found: dict[str, Any] = {"warm_up_s": time.perf_counter() - begun}
    model.zero_grad(set_to_none=True)
    gc.collect()
    if metered:
        allocator.reset_peak()
    ours()
    found["peak_bytes"] = allocator.peak_bytes() if metered else None
    theirs = _eager_step(job, _build(job["model"]))
    theirs()
    ratios, times = [], []
    for pair in range(PAIRS):
        seconds = {}
        for is_ours in (True, False) if pair % 2 else (False, True):
            begun = time.perf_counter()
            (ours if is_ours else theirs)()
            seconds[is_ours] = time.perf_counter() - begun
        ratios.append(seconds[True] / seconds[False])
        times.append(seconds[True])
    return {**found, "time_ratio": statistics.median(ratios), "step_s": statistics.median(times)}


def run_planning(job: Mapping[str, Any]) -> dict[str, Any]:
    """In its own process: measures a model's step once and plans it for every budget; plans go to ``folder``."""
    from monet.pipeline.planning import plan_prepared
    from monet.pipeline.preparation import prepare, prepare_whole
    from monet.planner.search import Solving
    from monet.step.training_step.whole_step import capture_whole_step

    allocator.available()
    torch.set_num_threads(THREADS)
    model, inputs = _build(job["model"]), _inputs(job["model"])
    begun = time.perf_counter()
    if job["whole"]:
        optimizer = _optimizer(model)
        prepared = prepare_whole(capture_whole_step(model, inputs, None, loss_fn=_own_loss, optimizer=optimizer))
    else:
        prepared = prepare(model, inputs, {})
    found: dict[str, Any] = {"measuring_s": time.perf_counter() - begun, "plans": {},
                             "predicted_eager_peak_bytes": prepared.eager_peak_bytes}  # fmt: skip
    for share in job["shares"]:
        budget: int | str = "1TB" if share is None else job["eager_peak_bytes"] * share // 100
        begun = time.perf_counter()
        try:
            result = plan_prepared(prepared, budget, Solving(time_limit_s=job["time_limit_s"]))
        except InfeasibleBudget as error:
            found["plans"][str(share)] = {"infeasible": str(error)}
            continue
        path = Path(job["folder"]) / f"{job['model']}_{share}_{job['whole']}.json"
        result.plan.save(path)
        found["plans"][str(share)] = {
            "path": str(path), "plan_s": time.perf_counter() - begun, "overhead": result.summary.overhead,
            "gap": result.summary.gap, "promised_bytes": result.plan.peak_bytes,
        }  # fmt: skip
    return found


def _contestants(name: str, wanted: Sequence[str], time_limit_s: float, folder: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []

    def run(contestant: str, asked: Any = None, **more: Any) -> dict[str, Any]:
        job = {"kind": "run", "model": name, "contestant": contestant, "asked": asked, **more}
        result = {"contestant": contestant, "asked": asked, **_apart(job, folder)}
        rows.append(result)
        return result

    eager = run("eager")
    click.echo(_line(name, eager, eager.get("peak_bytes")))
    if "peak_bytes" not in eager:
        return rows
    jobs: list[tuple[str, Any]] = [("block", None), ("sqrt-n", None), ("selective", None)]
    jobs += [("memory_budget", budget) for budget in BUDGETS] + [("region", BUDGETS[0])]
    for contestant, asked in jobs:
        if not wanted or contestant in wanted:
            click.echo(_line(name, run(contestant, asked), eager["peak_bytes"]))
    # Also at what each peer reaches, below eager's: the two are then compared at one peak.
    reached = {int(100 * r["peak_bytes"] / eager["peak_bytes"]) for r in rows if "peak_bytes" in r}
    shares_of_step = sorted({*SHARES, *(share for share in reached if share < 100)}, reverse=True)
    for whole, shares in ((False, (None, *shares_of_step)), (True, (50,))):
        label = "optimize" if whole else "monet"
        if wanted and label not in wanted:
            continue
        planning = {"kind": "plan", "model": name, "whole": whole, "shares": shares, "folder": str(folder),
                    "eager_peak_bytes": eager["peak_bytes"], "time_limit_s": time_limit_s}  # fmt: skip
        planned = _apart(planning, folder)
        for share in shares:
            made = planned.get("plans", {}).get(str(share), planned)
            contestant = "unlimited" if share is None else label
            if "path" not in made:
                rows.append({"contestant": contestant, "asked": share, **made})
            else:
                known = {key: value for key, value in made.items() if key != "path"}
                run(contestant, share, plan=made["path"])
                rows[-1] |= known
            click.echo(_line(name, rows[-1], eager["peak_bytes"]))
    return rows


def _line(name: str, result: Mapping[str, Any], eager_bytes: int | None) -> str:
    asked = "" if result["asked"] is None else f"{result['asked']:g}"
    head = f"{name:9} {result['contestant']:14} {asked:>4}"
    if "time_ratio" not in result:
        return f"{head}  {result.get('infeasible') or result.get('error')}"
    promised = f"  promised {result['promised_bytes']:,}" if "promised_bytes" in result else ""
    share = f"{result['peak_bytes'] / eager_bytes:6.1%}" if eager_bytes else "-"
    return f"{head}  peak {result['peak_bytes']:>13,} {share}  time × {result['time_ratio']:.3f}{promised}"


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
@click.option("--model", "models", multiple=True, type=click.Choice(list(MODELS)), help="Only these.")
@click.option("--contestant", "contestants", multiple=True, help="Besides eager only these; writes no file.")
@click.option("--time-limit", default=60.0, show_default=True, help="Seconds to plan a budget.")
@click.option("--again", is_flag=True, help="Run networks again that have a row.")
@click.option("--job", hidden=True)
@click.option("--answer", hidden=True, type=click.Path(path_type=Path))
def main(
    models: tuple[str, ...], contestants: tuple[str, ...], time_limit: float, again: bool, job: str | None,
    answer: Path | None,
) -> None:  # fmt: skip
    if job is not None and answer is not None:
        task = json.loads(job)
        try:
            found = run_planning(task) if task["kind"] == "plan" else run_job(task)
        except Exception as error:  # a contestant that fails is a result
            found = {"error": f"{type(error).__name__}: {error}"[:300]}
        answer.write_text(json.dumps(found))
        return
    path = record.RESULTS / "curve.json"
    rows: dict[str, Any] = json.loads(path.read_text())["result"] if path.exists() else {}
    with TemporaryDirectory() as folder:
        for name in models or MODELS:
            if name in rows and not again and not contestants:
                continue
            found_rows = _contestants(name, contestants, time_limit, Path(folder))
            if not contestants:
                rows[name] = found_rows
                record.write("curve", rows)
                draw(rows)


if __name__ == "__main__":
    main()

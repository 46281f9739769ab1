"""One contestant's training step against eager's, or plans for one network: each in a process of its own.

``eager`` · ``block``: ``torch.utils.checkpoint`` around each block; ``sqrt-n``: around each group of √n blocks ·
``selective``: around each block, saving the results of matrix products and convolutions
(``create_selective_checkpoint_contexts``) · ``memory_budget`` at shares of what is saved:
``torch._functorch.config.activation_memory_budget``, and ``region`` the same by
``torch.autograd.graph.region_activation_memory_budget``, both compiled by ``aot_eager_decomp_partition`` · ``compile``:
``torch.compile`` (Inductor), with that budget where one is asked for; ``compile block``: around checkpointed blocks ·
``monet``: ``MonetModule`` with a plan; ``optimize``: ``monet.optimize`` with SGD and momentum, paired with eager's step
and update.
"""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from networks import blocks_of, build, inputs_of
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from monet.errors import InfeasibleBudget
from monet.native import allocator

THREADS = 2
PAIRS = 4
PAIRS_OF_TWO = 10
"""Where a plan is paired with what it is compared with."""
FEWEST_PAIRS, PAIRED_S = 2, 30.0
"""Of steps that take long, only so many pairs as end within these seconds."""
WARM_UP_STEPS = 2
SEED = 7
aten = torch.ops.aten
SAVED = (aten.mm.default, aten.addmm.default, aten.bmm.default, aten.convolution.default)


def _checkpoint(blocks: Sequence[nn.Module], **options: Any) -> None:
    for block in blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False, **options)


def _group(blocks: Sequence[nn.Module]) -> None:
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
    blocks = blocks_of(name, model)
    if contestant in ("block", "sqrt-n", "selective", "compile block") and not blocks:
        raise RuntimeError("it has no blocks that users checkpoint")
    if contestant == "block":
        _checkpoint(blocks)
    elif contestant == "selective":
        _checkpoint(blocks, context_fn=partial(create_selective_checkpoint_contexts, _save_products))
    elif contestant == "sqrt-n":
        if not _same_shapes(name):
            raise RuntimeError("its blocks have different inputs")
        _group(blocks)
    elif contestant in ("memory_budget", "compile"):
        import torch._functorch.config as functorch

        if asked is not None:
            functorch.activation_memory_budget = asked
        backend = "inductor" if contestant == "compile" else "aot_eager_decomp_partition"
        return torch.compile(model, backend=backend)  # type: ignore[return-value]
    elif contestant == "compile block":
        _checkpoint(blocks)
        return torch.compile(model)  # type: ignore[return-value]
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
    inputs = inputs_of(job["model"])
    if job["contestant"] == "optimize":
        return partial(_updating, inputs, model, _optimizer(model))
    return partial(_plain, inputs, model)


def _step(job: Mapping[str, Any], model: nn.Module) -> Step:
    """The contestant's step."""
    if job["contestant"] != "optimize":
        return partial(_plain, inputs_of(job["model"]), _configured(job, model))
    import monet

    inputs = inputs_of(job["model"])
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
    model = build(job["model"])
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
    theirs = _eager_step(job, build(job["model"]))
    theirs()
    ratios, times = _paired(ours, theirs, PAIRS)
    return {**found, "time_ratio": statistics.median(ratios), "step_s": statistics.median(times)}


def _paired(ours: Step, theirs: Step, pairs: int) -> tuple[list[float], list[float]]:
    """Our seconds by theirs, and our seconds, of steps that alternate."""
    ratios, times = [], []
    first = time.perf_counter()
    for pair in range(pairs):
        if pair >= FEWEST_PAIRS and time.perf_counter() - first > PAIRED_S:
            break
        seconds = {}
        for is_ours in (True, False) if pair % 2 else (False, True):
            begun = time.perf_counter()
            (ours if is_ours else theirs)()
            seconds[is_ours] = time.perf_counter() - begun
        ratios.append(seconds[True] / seconds[False])
        times.append(seconds[True])
    return ratios, times


def run_pair(job: Mapping[str, Any]) -> dict[str, Any]:
    """In its own process: the seconds of a plan's step by the contestant's."""
    allocator.available()  # as where the contestant runs alone
    torch.set_num_threads(THREADS)
    # First the plan, since what a contestant sets for Inductor stays.
    ours = _step({**job, "contestant": "monet"}, build(job["model"]))
    for _ in range(WARM_UP_STEPS):
        ours()
    theirs = _step(job, build(job["model"]))
    for _ in range(WARM_UP_STEPS):
        theirs()
    ratios, times = _paired(ours, theirs, PAIRS_OF_TWO)
    least, ratio, most = statistics.quantiles(ratios, n=4)
    return {"ratio": ratio, "least": least, "most": most, "step_s": statistics.median(times)}


def answer_job(job: Mapping[str, Any]) -> dict[str, Any]:
    """What a job finds; a contestant that fails is a result."""
    try:
        return {"plan": run_planning, "pair": run_pair, "run": run_job}[job["kind"]](job)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"[:300]}


def result_line(name: str, result: Mapping[str, Any], eager_bytes: int | None) -> str:
    """One contestant's peak and time, for people."""
    asked = "" if result["asked"] is None else f"{result['asked']:g}"
    head = f"{name:12} {result['contestant']:14} {asked:>4}"
    if "time_ratio" not in result:
        return f"{head}  {result.get('infeasible') or result.get('error')}"
    promised = f"  promised {result['promised_bytes']:,}" if "promised_bytes" in result else ""
    share = f"{result['peak_bytes'] / eager_bytes:6.1%}" if eager_bytes else "-"
    return f"{head}  peak {result['peak_bytes']:>13,} {share}  time × {result['time_ratio']:.3f}{promised}"


def plan_row(
    planned: Mapping[str, Any], contestant: str, asked: float | int | None, run: Callable[..., dict[str, Any]]
) -> dict[str, Any]:
    """What ``run(contestant, asked, plan=...)`` finds with the plan that ``planned`` has for ``asked``, or why there is
    none."""
    made = planned.get("plans", {}).get(str(asked), planned)
    if "path" not in made:
        return {"contestant": contestant, "asked": asked, **made}
    known = {key: value for key, value in made.items() if key != "path"}
    return {**run(contestant, asked, plan=made["path"]), **known}


def run_planning(job: Mapping[str, Any]) -> dict[str, Any]:
    """In its own process: measures a model's step once and plans it for ``budgets``, name → bytes, None for no limit;
    plans go to ``folder``."""
    from monet.ops.offers.offering import Offering
    from monet.pipeline.planning import plan_prepared
    from monet.pipeline.preparation import prepare, prepare_whole
    from monet.planner.search import Solving
    from monet.step.training_step.whole_step import capture_whole_step

    allocator.available()
    torch.set_num_threads(THREADS)
    model, inputs = build(job["model"]), inputs_of(job["model"])
    begun = time.perf_counter()
    if job["whole"]:
        optimizer = _optimizer(model)
        prepared = prepare_whole(capture_whole_step(model, inputs, None, loss_fn=_own_loss, optimizer=optimizer))
    else:
        prepared = prepare(model, inputs, {}, offering=Offering(fused=job.get("fused", False)))
    found: dict[str, Any] = {"measuring_s": time.perf_counter() - begun, "plans": {},
                             "predicted_eager_peak_bytes": prepared.eager_peak_bytes}  # fmt: skip
    for label, budget_bytes in job["budgets"].items():
        budget = "1TB" if budget_bytes is None else budget_bytes
        begun = time.perf_counter()
        try:
            result = plan_prepared(prepared, budget, Solving(time_limit_s=job["time_limit_s"]))
        except InfeasibleBudget as error:
            found["plans"][label] = {"infeasible": str(error)}
            continue
        path = Path(job["folder"]) / f"{job['model']}_{label}_{job['whole']}.json"
        result.plan.save(path)
        found["plans"][label] = {
            "path": str(path), "plan_s": time.perf_counter() - begun, "overhead": result.summary.overhead,
            "gap": result.summary.gap, "promised_bytes": result.plan.peak_bytes,
        }  # fmt: skip
    return found

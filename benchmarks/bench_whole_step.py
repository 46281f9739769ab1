"""Whole training steps, eager's and planned: seconds of interleaved steps, and bytes in use, in one process.

python benchmarks/bench_whole_step.py [--only resnet18] [--steps 5]

Each model is trained by eager PyTorch and by ``monet.optimize`` under shares of eager's measured peak, on the same
batches: forward, loss, backward and update. The peak is the most that torch's allocator holds in a step beyond what was
there when the step began, plus parameters, buffers, optimiser state and arena. Losses of all steps are kept.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import click
import record
import torch
from torch.nn import functional

import monet
from monet.errors import InfeasibleBudget
from monet.models.torchvision_schemas import with_torchvision_schemas
from monet.native import allocator

SHARES = (0.8, 0.65, 0.5)


@dataclass(frozen=True)
class Case:
    model: Callable[[], torch.nn.Module]
    batch: Callable[[int], tuple[Any, torch.Tensor]]
    loss: Callable[[Any, torch.Tensor], torch.Tensor]
    optimizer: Callable[[Iterable[torch.nn.Parameter]], torch.optim.Optimizer]


def _vision(name: str) -> Callable[[], torch.nn.Module]:
    def make() -> torch.nn.Module:
        import torchvision

        return torchvision.models.get_model(name, weights=None)

    return make


def _images(count: int) -> Callable[[int], tuple[Any, torch.Tensor]]:
    def make(seed: int) -> tuple[Any, torch.Tensor]:
        generator = torch.Generator().manual_seed(seed)
        images = torch.randn(count, 3, 224, 224, generator=generator)
        return images, torch.randint(0, 1000, (count,), generator=generator)

    return make


WORDS = 8000


def _gpt() -> torch.nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(n_layer=6, n_embd=384, n_head=6, vocab_size=WORDS, use_cache=False))


def _tokens(count: int) -> Callable[[int], tuple[Any, torch.Tensor]]:
    def make(seed: int) -> tuple[Any, torch.Tensor]:
        tokens = torch.randint(0, WORDS, (count, 257), generator=torch.Generator().manual_seed(seed))
        return {"input_ids": tokens[:, :-1].contiguous()}, tokens[:, 1:].contiguous()

    return make


def _next_word(outputs: Any, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(outputs.logits.flatten(0, 1), targets.flatten())


def _momentum(parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, 0.01, momentum=0.9)


CASES: Mapping[str, Case] = {
    "resnet18 b16, SGD momentum": Case(_vision("resnet18"), _images(16), functional.cross_entropy, _momentum),
    "resnet50 b8, SGD momentum": Case(_vision("resnet50"), _images(8), functional.cross_entropy, _momentum),
    "mobilenet_v2 b16, AdamW": Case(_vision("mobilenet_v2"), _images(16), functional.cross_entropy, torch.optim.AdamW),
    "gpt 6x384 b4x256, AdamW": Case(_gpt, _tokens(4), _next_word, torch.optim.AdamW),
}


class Trained:
    """A model and its optimiser, trained by eager PyTorch or by ``trainer``; seconds and losses of its steps."""

    def __init__(self, case: Case) -> None:
        torch.manual_seed(0)
        self.case = case
        self.model = with_torchvision_schemas(case.model).train()
        self.optimizer = case.optimizer(self.model.parameters())
        self.trainer: monet.Trainer | None = None
        self.seconds: list[float] = []
        self.losses: list[float] = []
        self.peak_bytes = 0

    def held_bytes(self) -> int:
        """Parameters, buffers and state, each memory once; and the arena, which stays after the first step."""
        states = [t for state in self.optimizer.state.values() for t in state.values() if isinstance(t, torch.Tensor)]
        tensors = [*self.model.parameters(), *self.model.buffers(), *states]
        if self.trainer is not None:
            tensors += self.trainer._step.captured.constants.values()
        arena = self.trainer.plan.arena_bytes if self.trainer is not None and self.losses else 0
        return arena + sum({t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors}.values())

    def step(self, seed: int) -> None:
        """The batch counts, too. Gradients of an eager step before are freed first, as in any training loop."""
        torch.manual_seed(seed)
        self.optimizer.zero_grad()
        gc.collect()
        before = allocator.live_bytes() - self.held_bytes()
        inputs, targets = self.case.batch(seed)
        allocator.reset_peak()
        begun = time.perf_counter()
        if self.trainer is not None:
            loss, outputs = self.trainer(inputs, targets)
        else:
            outputs = self.model(**inputs) if isinstance(inputs, dict) else self.model(inputs)
            loss = self.case.loss(outputs, targets)
            loss.backward()
            self.optimizer.step()
        self.seconds.append(time.perf_counter() - begun)
        self.peak_bytes = allocator.peak_bytes() - before
        self.losses.append(loss.item())


def _run(name: str, case: Case, steps: int, time_limit_s: float) -> list[dict[str, Any]]:
    """Eager's steps are repeated beside every budget's, so that ratios are of steps that took turns."""
    rows = []
    first = Trained(case)
    for seed in range(2):
        first.step(seed)
    eager_bytes = first.peak_bytes
    del first
    for share in SHARES:
        eager, planned = Trained(case), Trained(case)
        budget = int(eager_bytes * share)
        begun = time.perf_counter()
        row: dict[str, Any] = {"case": name, "share": share, "eager_bytes": eager_bytes, "budget_bytes": budget}
        rows.append(row)
        try:
            planned.trainer = monet.optimize(
                planned.model, *case.batch(0), loss_fn=case.loss, optimizer=planned.optimizer, budget=budget,
                time_limit_s=time_limit_s, progress=True,
            )  # fmt: skip
        except InfeasibleBudget as error:
            row |= {"infeasible": str(error), "smallest_bytes": error.smallest_bytes}
            continue
        plan = planned.trainer.plan
        row["planning_s"] = time.perf_counter() - begun
        for seed in range(steps + 1):
            for trained in (eager, planned) if seed % 2 else (planned, eager):
                trained.step(seed)
        row |= {
            "promised_bytes": plan.peak_bytes,
            "measured_bytes": planned.peak_bytes,
            "eager_s": statistics.median(eager.seconds[1:]),
            "planned_s": statistics.median(planned.seconds[1:]),
            "ratio": statistics.median(p / e for p, e in zip(planned.seconds[1:], eager.seconds[1:], strict=True)),
            "predicted_ratio": plan.solver["objective_s"] / plan.solver["baseline_s"],
            "losses": {"eager": eager.losses, "planned": planned.losses},
            "recomputed": sum(step.kind == "recompute" for step in plan.steps),
            "gap": plan.solver["gap"],
            "order": plan.solver["order"],
            "order_proven": plan.solver["order_peak_bytes"] == plan.solver["order_bound_bytes"],
            "arena_bytes": plan.arena_bytes,
            "arena_bound_bytes": plan.arena_bound_bytes,
        }
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| step | eager, bytes | budget | promised | measured | planned / eager | recomputed | gap | order | arena |"
    ]
    lines.append("|---|---|---|---|---|---|---|---|---|---|")
    for row in rows:
        head = [row["case"], f"{row['eager_bytes']:,}", f"{row['share']:.0%}"]
        if "infeasible" in row:
            least = row["smallest_bytes"]
            known = f"{least / row['eager_bytes']:.1%} works" if least else "–"
            lines.append(f"| {' | '.join([*head, 'infeasible', known, *['–'] * 5])} |")
            continue
        flat = "at its bound" if row["arena_bytes"] == row["arena_bound_bytes"] else "above its bound"
        cells = [
            f"{row['promised_bytes']:,}", f"{row['measured_bytes']:,}", f"{row['ratio']:.2f}", str(row["recomputed"]),
            f"{row['gap']:.2%}", "proven" if row["order_proven"] else row["order"], flat,
        ]  # fmt: skip
        lines.append(f"| {' | '.join([*head, *cells])} |")
    return "\n".join(lines)


@click.command()
@click.option("--only", multiple=True, help="Cases whose name begins so; writes no file.")
@click.option("--steps", default=4, show_default=True, help="Steps of each, after the first.")
@click.option("--time-limit", default=40.0, show_default=True, help="Seconds to solve for one budget.")
def main(only: tuple[str, ...], steps: int, time_limit: float) -> None:
    if not allocator.available():
        raise SystemExit("the native allocator is not available: install a C++ compiler")
    rows = []
    for name, case in CASES.items():
        if only and not name.startswith(only):
            continue
        rows += _run(name, case, steps, time_limit)
        click.echo(table(rows).splitlines()[-1])
        if not only:
            path = record.write("whole_step", rows)
    click.echo("\n" + table(rows))
    if not only:
        click.echo(f"wrote {path}")


if __name__ == "__main__":
    main()

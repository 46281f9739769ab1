"""Deep networks, repeated or not: plans, bounds and seconds against operators, beside what users write by hand.

python benchmarks/bench_deep.py [--only bert-issue] [--time-limit 60] [--whole/--module]

Each network is planned at 70, 50 and 40 % of eager's peak, as a module and as a whole step (loss and SGD with momentum
included). Wall seconds are of everything after measuring: solving, ordering, layout. Of each cell: predicted overhead,
gap and what it is about, the best plan 5 s after the search began, and the overheads of √n segments and of
checkpointing by block, by groups of blocks and selectively under the same budget. Overheads are of the same measured
profile, so that the machine's noise is not in them. Plans of earlier runs are not looked at. Rows are written as soon
as they are there, and a network that has one is not planned again without ``--again``.

Eager's peak is the predicted one, ``eager_peak_bytes``: what its operators tell.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import click
import matplotlib as mpl
import record
import torch
from matplotlib import pyplot
from torch import Tensor, nn

from monet.errors import InfeasibleBudget
from monet.models.config import load_config
from monet.models.model_loading import build_model
from monet.models.sample_inputs import make_inputs
from monet.models.torchvision_schemas import with_torchvision_schemas
from monet.models.transformers import random_weights
from monet.pipeline import fitting
from monet.pipeline.planning import plan_prepared
from monet.pipeline.preparation import Prepared, prepare, prepare_whole
from monet.planner.progress import Progress
from monet.planner.schedules import plan_variant
from monet.planner.search import Solving
from monet.step.training_step.whole_step import capture_whole_step

SHARES = (70, 50, 40)
BASELINES = ("sqrt-n", "block", "sqrt-n-blocks", "selective")
FIRST_S = 5.0
CONFIGS = {
    "bert": 8, "gpt2": 2, "vit": 8, "t5": 8, "xlm_roberta": 8, "swin": 8, "lstm": 20, "resnet50": 8, "densenet121": 8,
    "efficientnet": 8, "mobilenet_v2": 16, "googlenet_aux": 16, "unet": 1, "vgg16": 4,
}  # fmt: skip
"""Shipped configurations, with the batch of ``bench_models.py``."""


class GRU(nn.Module):
    """Two bidirectional layers of GRU cells over tokens, one call a cell and token, and a loss."""

    def __init__(self, width: int = 64, words: int = 200) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.ahead = nn.ModuleList([nn.GRUCell(width, width), nn.GRUCell(2 * width, width)])
        self.back = nn.ModuleList([nn.GRUCell(width, width), nn.GRUCell(2 * width, width)])
        self.head = nn.Linear(2 * width, words)

    def forward(self, input_ids: Tensor, labels: Tensor) -> tuple[Tensor]:
        tokens = list(self.embed(input_ids).unbind(1))
        for ahead, back in zip(self.ahead, self.back, strict=True):
            both = [_states(ahead, tokens), _states(back, tokens[::-1])[::-1]]
            tokens = [torch.cat(pair, 1) for pair in zip(*both, strict=True)]
        logits = self.head(torch.stack(tokens, 1))
        return (nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()),)


def _states(cell: nn.Module, tokens: list[Tensor]) -> list[Tensor]:
    state = tokens[0].new_zeros(tokens[0].shape[0], 64)
    found = []
    for token in tokens:
        state = cell(token, state)
        found.append(state)
    return found


@dataclass(frozen=True)
class Network:
    """``make``: the model, its arguments and its keyword arguments; the model's own loss is its first result, or its
    result is classified."""

    make: Callable[[], tuple[nn.Module, tuple[Any, ...], Mapping[str, Any]]]


def _tokens(batch: int, length: int, words: int) -> dict[str, Tensor]:
    tokens = torch.randint(0, words, (batch, length))
    return {"input_ids": tokens, "labels": tokens.clone()}


def _bert() -> tuple[nn.Module, tuple[Any, ...], Mapping[str, Any]]:
    inputs = {"input_ids": torch.randint(0, 30522, (8, 256)), "labels": torch.randint(0, 2, (8,))}
    return random_weights("BertForSequenceClassification", problem_type="single_label_classification"), (), inputs


def _llama(layers: int, width: int, batch: int, length: int, words: int, heads: int) -> Network:
    def make() -> tuple[nn.Module, tuple[Any, ...], Mapping[str, Any]]:
        model = random_weights(
            "LlamaForCausalLM", num_hidden_layers=layers, hidden_size=width, intermediate_size=width * 11 // 4,
            num_attention_heads=heads, num_key_value_heads=heads, vocab_size=words, max_position_embeddings=length,
        )  # fmt: skip
        return model, (), _tokens(batch, length, words)

    return Network(make)


def _gru(tokens: int) -> Network:
    return Network(lambda: (GRU(), (), _tokens(16, tokens, 200)))


def _gpt48() -> tuple[nn.Module, tuple[Any, ...], Mapping[str, Any]]:
    """GPT2-XL's 48 layers, a sixteenth as wide."""
    model = random_weights("GPT2LMHeadModel", n_layer=48, n_embd=100, n_head=5, vocab_size=1000, n_positions=256)
    return model, (), _tokens(1, 256, 1000)


def _configured(name: str) -> Network:
    def make() -> tuple[nn.Module, tuple[Any, ...], Mapping[str, Any]]:
        config = load_config(f"{name}.yaml").with_batch(CONFIGS[name])
        return build_model(config), *make_inputs(config, 0)

    return Network(make)


NETWORKS = {
    "bert-256": Network(_bert),
    "llama-8x512": _llama(8, 512, 4, 512, 8000, 8),
    **{f"llama-{layers}": _llama(layers, 64, 4, 128, 512, 4) for layers in (16, 32, 80, 200)},
    "gpt2-48": Network(_gpt48),
    **{f"gru-{tokens}": _gru(tokens) for tokens in (50, 100, 400)},
    **{name: _configured(name) for name in CONFIGS},
}


def _loss(outputs: Any, targets: Tensor | None) -> Tensor:
    first: Tensor = outputs.loss if hasattr(outputs, "loss") else outputs[0] if isinstance(outputs, tuple) else outputs
    if targets is None:
        return first
    # One label an input where there are classes; pixels and words have no labels here.
    return nn.functional.cross_entropy(first, targets) if first.dim() == 2 else first.square().mean()


def _prepared(network: Network, *, whole: bool) -> Prepared:
    torch.manual_seed(0)
    model, args, kwargs = network.make()
    model.train()
    if not whole:
        return prepare(model, args, kwargs)
    targets = torch.zeros(args[0].shape[0], dtype=torch.int64) if args else None
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    step = capture_whole_step(model, args or dict(kwargs), targets, loss_fn=_loss, optimizer=optimizer)
    return prepare_whole(step)


class _First:
    """The value of the best plan ``FIRST_S`` after the search began."""

    def __init__(self) -> None:
        self.begun = time.monotonic()
        self.seconds: float | None = None

    @contextmanager
    def __call__(self, time_limit_s: float, unit: str = "s") -> Iterator[Progress]:
        def tell(best: float | None, bound: float | None, gap: float | None, elapsed_s: float) -> None:
            if best is not None and time.monotonic() - self.begun <= FIRST_S:
                self.seconds = best if self.seconds is None else min(self.seconds, best)

        yield tell


def _cell(prepared: Prepared, share: int, time_limit_s: float) -> dict[str, Any]:
    budget_bytes = prepared.eager_peak_bytes * share // 100
    eager_s = prepared.eager.objective_s
    cell: dict[str, Any] = {"budget_bytes": budget_bytes, "baselines": {}}
    for name in BASELINES:
        try:
            plan = plan_variant(name, prepared.problem, budget_bytes)
            cell["baselines"][name] = plan.objective_s / eager_s - 1
        except InfeasibleBudget:
            cell["baselines"][name] = None
    first, begun = _First(), time.monotonic()
    try:
        found = plan_prepared(prepared, budget_bytes, Solving(time_limit_s=time_limit_s), meter=first)
    except InfeasibleBudget as error:
        return {**cell, "wall_s": time.monotonic() - begun, "refused": str(error)}
    summary, wall_s = found.summary, time.monotonic() - begun
    seconds = summary.objective_s if wall_s <= FIRST_S else first.seconds
    return {
        **cell,
        "wall_s": wall_s,
        "overhead": summary.overhead,
        "gap": summary.gap,
        "bound_scope": summary.bound_scope,
        "status": summary.status,
        "peak_bytes": summary.peak_bytes,
        "first_overhead": None if seconds is None else seconds / eager_s - 1,
        "columns": found.solution.columns,
        "rows": found.solution.rows,
    }


def _row(name: str, time_limit_s: float, *, whole: bool) -> dict[str, Any]:
    prepared = with_torchvision_schemas(lambda: _prepared(NETWORKS[name], whole=whole))
    problem = prepared.problem
    row: dict[str, Any] = {
        "operators": [len(problem.forward), len(problem.backward)],
        "eager_peak_bytes": prepared.eager_peak_bytes,
        "everything_kept_bytes": prepared.eager.peak_bytes,
        "fixed_bytes": problem.fixed_bytes,
        "cells": {},
    }
    for share in SHARES:
        row["cells"][f"{share}%"] = cell = _cell(prepared, share, time_limit_s)
        click.echo(f"  {_told(cell)}")
    row["resident_peak_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return row


def _told(cell: Mapping[str, Any]) -> str:
    by_hand = ", ".join(f"{name} {'–' if o is None else f'{o:+.1%}'}" for name, o in cell["baselines"].items())
    if "refused" in cell:
        return f"{cell['wall_s']:5.1f} s  {cell['refused']}  ({by_hand})"
    first, gap = cell["first_overhead"], 1.0 if cell["gap"] is None else cell["gap"]
    return (
        f"{cell['wall_s']:5.1f} s  {cell['overhead']:+7.2%}  gap {gap:.2%} ({cell['bound_scope']})  "
        f"after {FIRST_S:g} s {'–' if first is None else f'{first:+.2%}'}  ({by_hand})"
    )


def draw(rows: Mapping[str, Any]) -> None:
    """Seconds and gaps against operators, of every cell that was planned."""
    mpl.use("Agg")
    figure, (seconds, gaps) = pyplot.subplots(1, 2, figsize=(9, 3.5), layout="constrained")
    for share, marker in zip(SHARES, "o^s", strict=True):
        cells = [(sum(row["operators"]), row["cells"].get(f"{share}%", {})) for row in rows.values()]
        points = [(count, cell["wall_s"], 100 * cell["gap"]) for count, cell in cells if cell.get("gap") is not None]
        if points:
            counts, walls, gap = zip(*points, strict=True)
            seconds.plot(counts, walls, marker, label=f"{share} % of eager's peak", alpha=0.7)
            gaps.plot(counts, gap, marker, alpha=0.7)
    for axes, label in ((seconds, "wall seconds"), (gaps, "gap, % (all plans)")):
        axes.set_xscale("log")
        axes.set_xlabel("operators, forward and backward")
        axes.set_ylabel(label)
        axes.grid(alpha=0.3)
    seconds.legend(frameon=False, fontsize=8)
    figure.savefig(record.RESULTS / "deep.png", dpi=150)
    pyplot.close(figure)


@click.command()
@click.option("--only", "names", multiple=True, type=click.Choice(list(NETWORKS)), help="Only these.")
@click.option("--time-limit", default=60.0, show_default=True, help="Wall seconds of each plan.")
@click.option("--whole/--module", default=None, help="Only whole steps, or only modules.")
@click.option("--again", is_flag=True, help="Plan networks again that have a row.")
def main(names: tuple[str, ...], time_limit: float, whole: bool | None, again: bool) -> None:
    # Every cell is planned as by a new user: nothing that an earlier one found is known.
    vars(fitting)["recall"] = lambda *_: None
    rows: dict[str, Any] = record.known("deep")
    for name in names or NETWORKS:
        for is_whole in (False, True) if whole is None else (whole,):
            key = f"{name}, whole step" if is_whole else name
            if key not in rows or again:
                click.echo(key)
                rows[key] = {**_row(name, time_limit, whole=is_whole), "commit": record.COMMIT}
                record.write("deep", rows)
                draw(rows)


if __name__ == "__main__":
    main()

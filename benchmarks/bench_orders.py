"""What the order of the operators that the 0-1 program counts along is worth, under the same budgets and time limit.

python benchmarks/bench_orders.py [--only resnet50] [--time-limit 20]

Each cell is planned with one of these sets of orders and, where time is left, along the best plan's own (``along``):

- ``captured``: the order of the trace alone, without ``along``: the program feeds back what the order stage saves;
- ``keeping everything``: the best order of keeping everything alone, without ``along``;
- ``both``: the two, without ``along``;
- ``all``: what monet does.

Costs are estimated, so figures repeat on any machine; overheads are over the fastest plan. Networks at random weights.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import click
import record
import torch
from torch import nn

from monet.errors import InfeasibleBudget
from monet.models.torchvision_schemas import with_torchvision_schemas
from monet.models.transformers import random_weights
from monet.ops.estimating.rates import Rates
from monet.pipeline import fitting
from monet.pipeline.fit import Fit
from monet.pipeline.lowering import Lowered
from monet.pipeline.planning import plan_prepared
from monet.pipeline.preparation import Prepared, Preparing, prepare
from monet.planner.construction.first_plans import fastest_plan
from monet.planner.search import Solving

CELLS: dict[str, tuple[float, ...]] = {
    "resnet50": (0.8, 0.7, 0.6), "efficientnet_b0": (0.5, 0.4), "convnext_tiny": (0.65, 0.5, 0.4),
    "shufflenet_v2_x1_0": (0.8, 0.65, 0.5), "mobilenet_v2": (0.5,), "googlenet": (0.5, 0.4), "densenet121": (0.6,),
    "regnet_y_400mf": (0.6, 0.4), "mnasnet1_0": (0.5,), "bert": (0.5, 0.3), "gpt2": (0.4,), "t5": (0.5,),
}  # fmt: skip
"""Shares of eager's peak. RegNet and MNASNet were not looked at while this was made."""
LARGE = ("densenet121", "convnext_tiny", "googlenet")
ORDERS = ("captured", "keeping everything", "both", "all")
_orders_of = fitting.orders_of


class Loss(nn.Module):
    """A model with a scalar output: its own loss, or the mean square of its output."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        out = self.model(*args, **kwargs)
        loss: torch.Tensor = out["loss"] if isinstance(out, dict) else getattr(out, "logits", out).square().mean()
        return loss


def _network(name: str) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    ids = torch.randint(0, 8000, (4, 256))
    words = {"input_ids": ids, "labels": ids}
    if name.startswith("bert"):
        layers = int(name.partition("-")[2] or 6)
        sizes = {"num_hidden_layers": layers, "hidden_size": 256, "intermediate_size": 1024, "num_attention_heads": 4}
        return random_weights("BertForMaskedLM", **sizes, vocab_size=8000), (), words
    if name == "gpt2":
        sizes = {"n_layer": 6, "n_embd": 256, "n_head": 4, "n_positions": 256, "bos_token_id": 0, "eos_token_id": 0}
        return random_weights("GPT2LMHeadModel", **sizes, vocab_size=8000), (), words
    if name == "t5":
        sizes = {"num_layers": 4, "d_model": 256, "d_ff": 1024, "num_heads": 4, "d_kv": 64, "decoder_start_token_id": 0}
        return random_weights("T5ForConditionalGeneration", **sizes, vocab_size=8000), (), words
    size = 224 if name in LARGE else 128

    def make() -> nn.Module:
        import torchvision

        made: nn.Module = getattr(torchvision.models, name)()
        return made

    return with_torchvision_schemas(make), (torch.randn(8, 3, size, size),), {}


def prepared_network(name: str) -> Prepared:
    """The training step, with estimated costs."""
    model, args, kwargs = _network(name)
    return prepare(Loss(model).train(), args, kwargs, Preparing(costs=Rates.given(2e11, 2e10), cache=False))


@contextmanager
def _with_orders(which: str) -> Iterator[None]:
    chosen: dict[str, Callable[[Fit], list[Lowered]]] = {
        "captured": lambda fit: [fit.lowered],
        "keeping everything": lambda fit: [o for o in _orders_of(fit) if o is not fit.lowered] or [fit.lowered],
        "both": _orders_of,
        "all": _orders_of,
    }
    with patch.object(fitting, "orders_of", chosen[which]):
        if which == "all":
            yield
            return
        with patch.object(fitting._Search, "_improved_along_best", lambda search: False):
            yield


def _cell(prepared: Prepared, share: float, which: str, time_limit_s: float) -> dict[str, Any]:
    fastest = fastest_plan(prepared.problem)
    assert fastest is not None
    begun = time.perf_counter()
    try:
        with _with_orders(which):
            budget_bytes = int(share * prepared.eager_peak_bytes)
            found = plan_prepared(prepared, budget_bytes, Solving(time_limit_s=time_limit_s))
    except InfeasibleBudget:
        return {"refused": True, "wall_s": time.perf_counter() - begun}
    solution = found.solution
    return {
        "overhead": solution.objective_s / fastest.objective_s - 1,
        "gap": solution.gap,
        "status": solution.status,
        "recomputed": found.summary.recomputed,
        "peak_share": found.plan.peak_bytes / prepared.eager_peak_bytes,
        "wall_s": time.perf_counter() - begun,
    }


def row_text(row: Mapping[str, Mapping[str, Any]], value: str) -> str:
    """Of each cell, ``value``, the gap and the seconds."""
    return "; ".join(
        f"{which} refused" if "refused" in cell
        else f"{which} {cell[value]:+.2%} ({cell['gap']:.2%}) {cell['wall_s']:.1f} s"
        for which, cell in row.items()
    )  # fmt: skip


@click.command()
@click.option("--only", "names", multiple=True, type=click.Choice(list(CELLS)), help="Only these; writes no file.")
@click.option("--time-limit", default=20.0, show_default=True, help="Seconds of each plan.")
def main(names: tuple[str, ...], time_limit: float) -> None:
    results: dict[str, dict[str, Any]] = {}
    for name, shares in CELLS.items():
        if names and name not in names:
            continue
        prepared = prepared_network(name)
        for share in shares:
            row = results[f"{name} {share:g}"] = {which: _cell(prepared, share, which, time_limit) for which in ORDERS}
            click.echo(f"{name} {share:g}: {row_text(row, 'overhead')}")
    if not names:
        click.echo(f"wrote {record.write('orders', {'time_limit_s': time_limit, 'cells': results})}")


if __name__ == "__main__":
    main()

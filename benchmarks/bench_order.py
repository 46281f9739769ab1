"""Orders and layouts of whole training steps, side by side: the table of the ROAM and MODeL papers.

python benchmarks/bench_order.py [--only resnet50] [--batch 1]

Each row is a model under Adam, captured on fake tensors: forward, loss, backward and update, every aten operator a
node. Bytes are of what the step makes. Parameters, optimiser state and batch come on top, the same in all columns;
workspaces are not known, and are in none.

- **PyTorch**: captured order, replayed in a model of its caching allocator on CUDA: bytes reserved, and most in use.
- **measured**: the most in use in an eager step on the CPU, in a process of its own, where that is below
  ``--measure-below``. It has workspaces and in-place operators, and keeps gradients until all weights are updated;
  the captured graph frees each with its update.
- **LESCEA + LLFB**: LESCEA's order, placed by best fit with the longest lifetime first: ROAM's heuristic baseline.
- **MODeL-SS, MODeL-MS**: the order of MODeL's integer program, single- and multi-streaming, with the captured order as
  its start, and our layout.
- **ROAM**: the delayed update, segments and their tree as in ``monet order --order roam``, and our layout.
- **monet**: our order, our layout, and the bound on the peak of every order.

Fragmentation is MODeL's: the share of what is reserved (the arena) that is in no use when that is reserved (the peak).
PyTorch's is large where a late operator, a large gradient or an update, is the last to reserve: much is free by then,
in blocks that are too small.
ROAM: Shu et al., 2023, arXiv:2310.19295. MODeL: Steiner et al., ICML 2023.
"""

from __future__ import annotations

import gc
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from unittest.mock import patch

import click
import numpy as np
import record
import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.nn import functional

from monet.base.amounts import parse_budget
from monet.base.graph import Graph
from monet.capture import capture
from monet.errors import SolverError
from monet.models.examples import tiny_resnet
from monet.models.torchvision_schemas import with_torchvision_schemas
from monet.native import allocator
from monet.planner.layout import Lifetime, layout
from monet.planner.layout.caching_allocator import replay_lifetimes
from monet.planner.layout.heuristics import skyline
from monet.planner.layout.order_lifetimes import order_lifetimes
from monet.planner.order import best_order
from monet.planner.order.graph import OrderGraph, peak_bytes
from monet.planner.order.heuristics import Order, captured_order, lescea
from monet.planner.order.program import solve_order
from monet.plans.format import ALIGNMENT
from monet.step.training_step.order_graph import step_graph

BATCHES = (1, 32)
COLUMNS = {
    "lescea_llfb": "LESCEA + LLFB",
    "model_ss": "MODeL-SS",
    "model_ms": "MODeL-MS",
    "roam": "ROAM",
    "monet": "monet",
}

Sample = tuple[nn.Module, torch.Tensor]


class Classifier(nn.Module):
    """A network and its loss; all samples are of class 0."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        labels = torch.zeros(len(images), dtype=torch.long)
        return functional.cross_entropy(self.network(images), labels)


class LanguageModel(nn.Module):
    """A model of transformers and its loss."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = self.network(tokens, labels=tokens).loss
        return loss


def _vision(name: str, *shape: int) -> Callable[[int], Sample]:
    def make(batch: int) -> Sample:
        import torchvision.models

        return Classifier(torchvision.models.get_model(name, weights=None)), torch.zeros(batch, *shape)

    return make


def _bert(batch: int) -> Sample:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(attn_implementation="eager")
    return LanguageModel(BertForMaskedLM(config)), torch.zeros(batch, 128, dtype=torch.long)


def _gpt2(**sizes: int) -> Callable[[int], Sample]:
    def make(batch: int) -> Sample:
        from transformers import GPT2Config, GPT2LMHeadModel

        config = GPT2Config(use_cache=False, attn_implementation="eager", **sizes)
        network = GPT2LMHeadModel(config)
        network.loss_type = "ForCausalLM"  # what it takes anyway, after a warning
        return LanguageModel(network), torch.zeros(batch, config.n_positions, dtype=torch.long)

    return make


IMAGE = (3, 224, 224)
MODELS: Mapping[str, Callable[[int], Sample]] = {
    "alexnet": _vision("alexnet", *IMAGE),
    "vgg16": _vision("vgg16", *IMAGE),
    "resnet50": _vision("resnet50", *IMAGE),
    "mobilenet_v2": _vision("mobilenet_v2", *IMAGE),
    "mnasnet1_0": _vision("mnasnet1_0", *IMAGE),
    "efficientnet_b0": _vision("efficientnet_b0", *IMAGE),
    "vit_b_16": _vision("vit_b_16", *IMAGE),
    "r3d_18": _vision("r3d_18", 3, 16, 112, 112),
    "bert_base": _bert,
    "gpt2": _gpt2(),
    "gpt2_xl": _gpt2(n_layer=48, n_embd=1600, n_head=25),
}
SMALL_ONLY = {"gpt2_xl"}


def _captured(make: Callable[[int], Sample], batch: int) -> Graph:
    def action() -> Graph:
        # The one initialisation that looks at values, which fake tensors do not have.
        unset = patch.object(nn.init, "trunc_normal_", lambda tensor, *_, **__: tensor)
        with FakeTensorMode(), unset:
            model, x = make(batch)
            return capture(model.train(), (x,)).graph

    return with_torchvision_schemas(action)


def _measured(name: str, batch: int) -> int | None:
    """Most bytes in use in an eager step, without parameters, state and batch; None where it fails (memory)."""
    command = [sys.executable, __file__, "--measure-one", name, "--batch", str(batch)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        click.echo(f"{name} batch {batch}: not measured: {done.stderr.strip().splitlines()[-1:]}", err=True)
        return None
    return int(done.stdout.split()[-1])


def _measure_here(name: str, batch: int) -> int:
    """Two steps, since the first makes the state; torch's allocator is counted by monet's."""
    if not allocator.available():
        raise SystemExit("the native allocator is not available")
    model, x = with_torchvision_schemas(lambda: MODELS[name](batch))
    optimizer = torch.optim.Adam(model.train().parameters())
    for _ in range(2):
        optimizer.zero_grad()
        gc.collect()
        before = allocator.live_bytes()
        allocator.reset_peak()
        model(x).backward()
        optimizer.step()
    return allocator.peak_bytes() - before


def _row(
    name: str,
    batch: int,
    model_time_limit_s: float,
    time_limit_s: float,
    layout_time_limit_s: float,
    measure_below_bytes: int,
) -> Any:
    begun = time.perf_counter()
    graph = _captured(MODELS[name], batch)
    captured = time.perf_counter()
    step = step_graph(graph, torch.optim.Adam)
    row: dict[str, Any] = {
        "model": name,
        "batch": batch,
        "operators": len(step.nodes),
        "operators_without_views": len(step.working),
        "capture_s": captured - begun,
        "step_graph_s": time.perf_counter() - captured,
    }
    as_captured = captured_order(step)
    usage = replay_lifetimes(order_lifetimes(step, as_captured))
    row["pytorch"] = {
        "peak_bytes": peak_bytes(step, as_captured),
        "allocated_bytes": usage.allocated_bytes,
        "reserved_bytes": usage.reserved_bytes,
        "fragmentation": usage.fragmentation,
        "measured_bytes": _measured(name, batch) if usage.allocated_bytes < measure_below_bytes else None,
    }

    def add(column: str, order: Callable[[], Order], place: Callable[[Sequence[Lifetime]], int]) -> None:
        row[column] = _ordered(step, order, place, usage.reserved_bytes)

    def placed(lifetimes: Sequence[Lifetime]) -> int:
        return layout(lifetimes, alignment=ALIGNMENT, time_limit_s=layout_time_limit_s).arena_bytes

    add("lescea_llfb", lambda: lescea(step), _long_lived_first)
    for column, multi in (("model_ss", False), ("model_ms", True)):
        deadline = time.monotonic() + model_time_limit_s
        try:
            add(column, lambda m=multi, d=deadline: solve_order(step, as_captured, multi=m, deadline=d).order, placed)
        except SolverError as error:
            row[column] = {"refused": str(error)}
    add("roam", lambda: list(best_order(step, method="roam", time_limit_s=time_limit_s).order), placed)
    begun = time.perf_counter()
    found = best_order(step, time_limit_s=time_limit_s)
    seconds = time.perf_counter() - begun
    add("monet", lambda: list(found.order), placed)
    proof = {"method": found.method, "bound_bytes": found.bound_bytes, "proven": found.proven}
    row["monet"] |= {**proof, "order_s": seconds}
    row["max_rss_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return row


def _ordered(
    step: OrderGraph, make: Callable[[], Order], place: Callable[[Sequence[Lifetime]], int], eager_bytes: int
) -> dict[str, Any]:
    begun = time.perf_counter()
    order = make()
    ordered = time.perf_counter()
    arena = place(order_lifetimes(step, order))
    peak = peak_bytes(step, order)
    return {
        "peak_bytes": peak,
        "arena_bytes": arena,
        "fragmentation": (arena - peak) / arena,
        "reduction": 1 - arena / eager_bytes,
        "order_s": ordered - begun,
        "layout_s": time.perf_counter() - ordered,
    }


def _long_lived_first(lifetimes: Sequence[Lifetime]) -> int:
    """Bytes of the arena."""
    columns = zip(*((life.begin, life.end, life.bytes // ALIGNMENT) for life in lifetimes), strict=True)
    begin, end, size = (np.array(column, np.int64) for column in columns)
    offsets = skyline(np.lexsort((-size, begin - end)), begin, end, size)
    return int((offsets + size).max()) * ALIGNMENT


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Markdown: memory reserved, with fragmentation and for PyTorch the most in use; seconds of order + layout; what
    monet proves."""
    names = ["model", "batch", "operators", "PyTorch", "measured", *COLUMNS.values(), "less than PyTorch", "bound"]
    lines = [f"| {' | '.join(names)} |", f"|{'---|' * len(names)}"]
    for row in rows:
        allocated = f"{row['pytorch']['allocated_bytes'] / 2**20:.1f} in use"
        eager = f"{_memory(row['pytorch'], 'reserved_bytes')}, {allocated}"
        measured = row["pytorch"]["measured_bytes"]
        cells = [row["model"], str(row["batch"]), str(row["operators"]), eager]
        cells.append("–" if measured is None else f"{measured / 2**20:.1f} MiB")
        for column in COLUMNS:
            found = row[column]
            if "refused" in found:
                cells.append("too large")
                continue
            seconds = f"{found['order_s']:.1f} + {found['layout_s']:.1f} s"
            cells.append(f"{_memory(found, 'arena_bytes')}, {seconds}")
        ours = row["monet"]
        excess = ours["peak_bytes"] / ours["bound_bytes"] - 1
        cells += [f"{ours['reduction']:.1%}", "met" if ours["proven"] else f"{excess:.2%} above"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _memory(found: Mapping[str, Any], key: str) -> str:
    return f"{found[key] / 2**20:.1f} MiB ({found['fragmentation']:.2%})"


def findings(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    met = sum(row["monet"]["proven"] for row in rows)
    flat = sum(row["monet"]["arena_bytes"] == row["monet"]["peak_bytes"] for row in rows)
    mean = sum(row["monet"]["reduction"] for row in rows) / len(rows)
    return [
        f"{met} of {len(rows)} orders are proven to be the best, {flat} layouts have no byte too many",
        f"{mean:.1%} less memory than PyTorch in the mean",
    ]


@click.command()
@click.option("--only", multiple=True, type=click.Choice(list(MODELS)), help="Only these; writes no file.")
@click.option("--measure-one", type=click.Choice(list(MODELS)), hidden=True)
@click.option("--measure-below", default="3GiB", show_default=True, help="Eager steps that are run: up to this in use.")
@click.option("--batch", "batches", multiple=True, type=int, help="Only these; writes no file.")
@click.option("--model-time-limit", default=60.0, show_default=True, help="Seconds for each of MODeL's programs.")
@click.option("--time-limit", default=30.0, show_default=True, help="Seconds for our order.")
@click.option("--layout-time-limit", default=20.0, show_default=True, help="Seconds to improve a layout.")
def main(
    measure_one: str | None,
    measure_below: str,
    only: tuple[str, ...],
    batches: tuple[int, ...],
    model_time_limit: float,
    time_limit: float,
    layout_time_limit: float,
) -> None:
    if measure_one is not None:
        click.echo(_measure_here(measure_one, batches[0]))
        return
    most = parse_budget(measure_below).resolve(0)
    with FakeTensorMode():  # loads what torch loads on first use
        capture(tiny_resnet(), (torch.zeros(1, 3, 32, 32),))
    limits = {"model_s": model_time_limit, "order_s": time_limit, "layout_s": layout_time_limit}
    rows: list[dict[str, Any]] = []
    path = None
    for name in only or MODELS:
        for batch in batches or BATCHES:
            if name in SMALL_ONLY and batch > min(BATCHES):
                continue
            rows.append(_row(name, batch, model_time_limit, time_limit, layout_time_limit, most))
            click.echo(f"{name} batch {batch}: {rows[-1]['capture_s']:.1f} s to capture")
            click.echo(table(rows[-1:]).splitlines()[-1])
            if not only and not batches:  # after every row: what is done is kept
                path = record.write("order", {"limits": limits, "rows": rows, "findings": findings(rows)})
    click.echo("\n" + table(rows))
    click.echo("\n".join(findings(rows)))
    if path is not None:
        click.echo(f"wrote {path}")


if __name__ == "__main__":
    main()

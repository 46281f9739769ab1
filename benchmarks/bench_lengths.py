"""A loop whose batches have any size and length, by one plan for the largest: every step planned, within one promise?

python benchmarks/bench_lengths.py [--only bert] [--steps 1000]

Batches of 1 to 8 texts of 8 to 512 tokens, drawn at random. Small networks of real architectures at random weights, so
that a thousand steps take minutes: what is looked at is the plan, not the model. Each step runs once by ``monet.apply``
with ``dynamic`` and once by eager, in turns first, on the same batch and random state. Written are the calls by a plan,
without one, the promise and the most bytes that a step was measured to hold beside it, gradients' largest difference
from eager's (relative to the largest gradient of the step), the sum of seconds of both, of eager on texts padded to a
multiple of 128 tokens, and the milliseconds that a shape which is met for the first time costs more. Of some shapes the
plan is compared with a plan of their own for the same bytes, in steps that alternate. ``compiled``: what
``torch.compile(dynamic=True)`` takes on such batches by eager's seconds, steps that compile left out, and how many
seconds those took.
"""

from __future__ import annotations

import copy
import gc
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

import click
import record
import torch
import torch._dynamo.utils
import torch._inductor.config
from torch import Tensor, nn
from torch.export import Dim
from tqdm import tqdm

import monet
from monet.errors import MonetError
from monet.models.torchvision_schemas import with_torchvision_schemas
from monet.models.transformers import random_weights
from monet.native import allocator

BATCHES, LENGTHS, BUCKET = (1, 8), (8, 512), 128
BUDGET, RUNGS = "60%", 3
OTHER_BUDGETS = {"lstm": "100%"}
"""What recurrent layers keep is theirs, beside the arena: there is little that a plan saves."""
ROUNDS = 7
COMPILED_STEPS = 60
_SMALL = {
    "bert": ("BertForMaskedLM", {"hidden_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4,
                                 "intermediate_size": 512, "vocab_size": 1000}),
    "llama": ("LlamaForCausalLM", {"hidden_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4,
                                   "num_key_value_heads": 4, "intermediate_size": 352, "vocab_size": 1000}),
    "gpt2": ("GPT2LMHeadModel", {"n_embd": 128, "n_layer": 3, "n_head": 4, "vocab_size": 1000, "n_positions": 512}),
    "t5": ("T5ForConditionalGeneration", {"d_model": 128, "num_layers": 2, "num_heads": 4, "d_kv": 32, "d_ff": 256,
                                          "vocab_size": 1000, "decoder_start_token_id": 0}),
}  # fmt: skip


class Recurrent(nn.Module):
    """An LSTM over a text."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.lstm, self.head = (
            nn.Embedding(1000, 64),
            nn.LSTM(64, 64, batch_first=True),
            nn.Linear(64, 1000),
        )

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        loss: Tensor = nn.functional.cross_entropy(
            self.head(self.lstm(self.embed(input_ids))[0]).flatten(0, 1), labels.flatten()
        )
        return loss


def _built(name: str) -> nn.Module:
    torch.manual_seed(0)
    if name == "lstm":
        return Recurrent()
    architecture, settings = _SMALL[name]
    model = with_torchvision_schemas(lambda: random_weights(architecture, **settings))
    return model


NETWORKS = (*_SMALL, "lstm")


def _texts(name: str, batch: int, length: int, generator: torch.Generator) -> dict[str, Tensor]:
    ids = torch.randint(5, 1000, (batch, length), generator=generator)
    mask = {"attention_mask": torch.ones_like(ids)} if name in ("bert", "t5") else {}
    return {"input_ids": ids, **mask, "labels": ids.clone()}


def _loss(model: nn.Module, texts: dict[str, Tensor]) -> Tensor:
    out = model(**texts)
    loss: Tensor = out if isinstance(out, Tensor) else out["loss"]
    return loss


def _step(model: nn.Module, texts: dict[str, Tensor], seed: int) -> float:
    """Its seconds; gradients stay."""
    torch.manual_seed(seed)
    model.zero_grad(set_to_none=True)
    begun = time.perf_counter()
    _loss(model, texts).backward()
    return time.perf_counter() - begun


def _difference(mine: nn.Module, theirs: nn.Module) -> float:
    pairs = [
        (p.grad, q.grad) for p, q in zip(mine.parameters(), theirs.parameters(), strict=True)
        if p.grad is not None and q.grad is not None
    ]  # fmt: skip
    largest = max(float(q.abs().max()) for _, q in pairs)
    return max(float((p - q).abs().max()) for p, q in pairs) / largest


def _dynamic(name: str) -> dict[str, dict[int, Any]]:
    axes = {0: Dim("batch", max=BATCHES[1]), 1: Dim("length", max=LENGTHS[1])}
    return dict.fromkeys(_texts(name, 2, 8, torch.Generator()), axes)


def _held_bytes(model: nn.Module) -> int:
    return sum(t.nbytes for t in (*model.parameters(), *model.buffers()))


def _row(name: str, steps: int, own_shapes: int) -> dict[str, Any]:
    model = _built(name)
    eager = copy.deepcopy(model)
    generator, rng = torch.Generator().manual_seed(1), random.Random(1)
    begun = time.perf_counter()
    monet.apply(model, budget=OTHER_BUDGETS.get(name, BUDGET), dynamic=_dynamic(name), rungs=RUNGS, progress=False)
    try:
        _step(model, _texts(name, 7, 300, generator), 0)
    except MonetError as error:
        return {"refused": str(error)}
    model.zero_grad(set_to_none=True)
    gc.collect()
    row: dict[str, Any] = {"first_call_s": time.perf_counter() - begun}
    applied = monet.applied(model)
    assert applied is not None
    beside = allocator.live_bytes() - _held_bytes(model) - applied.plans[0].arena_bytes
    seconds = {"plan": 0.0, "eager": 0.0, "padded": 0.0}
    most, difference, first_ms, met = 0, 0.0, [], set()
    for number in tqdm(range(steps), desc=name):
        shape = rng.randint(*BATCHES), rng.randint(*LENGTHS)
        texts = _texts(name, *shape, generator)
        gc.collect(0)
        eager.zero_grad(set_to_none=True)
        if number % 2:  # who comes first makes kernels' own state for a new shape (oneDNN's primitives)
            seconds["eager"] += _step(eager, texts, number)
            eager.zero_grad(set_to_none=True)
        plans = len(applied.plans)
        allocator.reset_peak()
        taken = _step(model, texts, number)
        if len(applied.plans) > plans:  # for a batch of one, say: what planning takes is another matter
            allocator.reset_peak()
            taken = _step(model, texts, number)
        elif shape not in met:
            model.zero_grad(set_to_none=True)
            first_ms.append((taken - _step(model, texts, number)) * 1e3)
        most = max(most, allocator.peak_bytes() - beside)
        met.add(shape)
        seconds["plan"] += taken
        again = _step(eager, texts, number)
        seconds["eager"] += 0.0 if number % 2 else again
        difference = max(difference, _difference(model, eager))
        padded = -(-shape[1] // BUCKET) * BUCKET
        model.zero_grad(set_to_none=True)
        seconds["padded"] += _step(eager, _texts(name, shape[0], padded, generator), number)
        eager.zero_grad(set_to_none=True)
    row |= {
        "steps": steps,
        "shapes": len(met),
        "planned_calls": applied.planned_calls,
        "eager_calls": applied.eager_calls,
        "plans": len(applied.plans),
        "promise_bytes": applied.peak_bytes,
        "most_bytes_above_promise": most - applied.peak_bytes,
        "largest_difference": difference,
        "seconds": seconds,
        "new_shape_ms": {"median": statistics.median(first_ms), "largest": max(first_ms)} if first_ms else None,
    }
    row["own_plans"] = _beside_own(name, model, applied.plans[0].budget_bytes, rng, generator, own_shapes)
    row["compiled"] = _compiled(name, rng, generator)
    return row


def _compiled(name: str, rng: random.Random, generator: torch.Generator) -> dict[str, Any]:
    eager = _built(name)
    model = copy.deepcopy(eager)
    model.compile(dynamic=True)
    seconds, compiling, compiled_s = [0.0, 0.0], 0, 0.0
    with torch._inductor.config.patch(force_disable_caches=True):
        for number in range(COMPILED_STEPS):
            texts = _texts(name, rng.randint(*BATCHES), rng.randint(*LENGTHS), generator)
            before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
            try:
                taken = _step(model, texts, number)
            except Exception as error:  # of the compiler's, of whatever kind
                return {"failed": str(error).partition("\n")[0][:200]}
            eagers = _step(eager, texts, number)
            if torch._dynamo.utils.counters["stats"]["unique_graphs"] > before:
                compiling, compiled_s = compiling + 1, compiled_s + taken
            else:
                seconds = [seconds[0] + taken, seconds[1] + eagers]
    torch._dynamo.reset()
    return {"steps": COMPILED_STEPS, "by_eagers": seconds[0] / seconds[1], "steps_that_compile": compiling,
            "seconds_of_those": compiled_s}  # fmt: skip


def _beside_own(
    name: str, model: nn.Module, budget_bytes: int, rng: random.Random, generator: torch.Generator, shapes: int
) -> dict[str, Any]:
    """Steps of the plan for all shapes by those of a plan for that shape alone, of the same bytes; medians."""
    ratios: list[float] = []
    for _ in tqdm(range(shapes), desc=f"{name}, plans of its own"):
        shape = rng.randint(2, BATCHES[1]), rng.randint(LENGTHS[1] // 4, LENGTHS[1])
        texts = _texts(name, *shape, generator)
        alone = _built(name)
        try:
            own = monet.MonetModule(alone, monet.plan(alone, texts, budget=budget_bytes, time_limit_s=20))
        except MonetError as error:
            return {"refused": str(error)}
        _step(own, texts, 0)
        pairs: list[tuple[float, float]] = []
        for number in range(ROUNDS):
            pairs.append((_step(model, texts, number), _step(own, texts, number)))
            model.zero_grad(set_to_none=True)
            own.zero_grad(set_to_none=True)
        ratios.append(statistics.median(a / b for a, b in pairs))
    return {"shapes": len(ratios), "median": statistics.median(ratios), "largest": max(ratios)}


@click.command()
@click.option("--only", multiple=True, help="Only networks whose names begin like this; rows of others stay.")
@click.option("--steps", default=1000, show_default=True)
@click.option("--own", default=20, show_default=True, help="Shapes that get a plan of their own, too.")
def main(only: tuple[str, ...], steps: int, own: int) -> None:
    chosen = [name for name in NETWORKS if not only or name.startswith(only)]
    say: Callable[[str], None] = click.echo
    rows = record.known("lengths")
    for name in chosen:
        rows[name] = _row(name, steps, own)
        say(f"{name}: {rows[name]}")
        say(f"written: {record.write('lengths', rows)}")


if __name__ == "__main__":
    main()

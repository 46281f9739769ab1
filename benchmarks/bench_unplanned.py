"""What ``monet.apply`` costs a call that it does not plan: evaluation, no gradients, another shape, two at once.

python benchmarks/bench_unplanned.py [--model mlp] [--pairs 200]

Two copies of a model in one process, of which one has a plan in place for another batch size. Each pair is the same
calls of the plain model and of the other, now the one first and now the other. ``ratio``: seconds of the other over
seconds of the plain one, with the quartiles of all pairs; ``call_s``: of the plain one, their median. Both copies run
over the allocator that plans need: what that costs a process is not in these figures.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable
from typing import Any

import click
import record
import torch
from torch import nn

import monet
from monet.models.examples import tiny_resnet

SAMPLE_S = 0.004
"""As many calls as take about so long are one sample: a clock reading is nothing beside it."""


def _mlp() -> tuple[nn.Module, Callable[[int], Any]]:
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))
    return model, lambda batch: (torch.randn(batch, 32),)


def _deep() -> tuple[nn.Module, Callable[[int], Any]]:
    """241 modules that do little: the most that looking at a model can matter."""
    blocks = [nn.Sequential(nn.Linear(16, 16), nn.ReLU()) for _ in range(80)]
    return nn.Sequential(*blocks), lambda batch: (torch.randn(batch, 16),)


def _resnet() -> tuple[nn.Module, Callable[[int], Any]]:
    return tiny_resnet(), lambda batch: (torch.randn(batch, 3, 32, 32),)


def _bert() -> tuple[nn.Module, Callable[[int], Any]]:
    from monet.models.transformers import random_weights

    sizes: dict[str, Any] = {
        "vocab_size": 1000, "hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 2,
        "intermediate_size": 512,
    }  # fmt: skip

    def batch(size: int) -> dict[str, Any]:
        tokens = torch.randint(0, 1000, (size, 64))
        return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": tokens[:, 0] % 2}

    model = random_weights("BertForSequenceClassification", **sizes)
    return model, batch


MODELS: dict[str, Callable[[], tuple[nn.Module, Callable[[int], Any]]]] = {
    "mlp": _mlp,
    "deep": _deep,
    "resnet": _resnet,
    "bert": _bert,
}
PLANNED, OTHER = 6, 4  # batch sizes


def _called(model: nn.Module, inputs: Any) -> Any:
    return model(**inputs) if isinstance(inputs, dict) else model(*inputs)


def _loss(out: Any) -> torch.Tensor:
    loss: torch.Tensor = out.loss if hasattr(out, "loss") else out.square().mean()
    return loss


def _evaluated(model: nn.Module, inputs: Any) -> None:
    _called(model, inputs)


def _trained(model: nn.Module, inputs: Any) -> None:
    _loss(_called(model, inputs)).backward()
    model.zero_grad()


def situations(plain: nn.Module, applied: nn.Module, batch: Callable[[int], Any], pairs: int) -> dict[str, Any]:
    """A row a situation: whether the models are in training mode, with gradients or without, and a whole step."""
    inputs, rows = batch(OTHER), {}
    for name, training, gradients, call in (
        ("evaluation", False, False, _evaluated),
        ("no gradients in training mode", True, False, _evaluated),
        ("evaluation with gradients", False, True, _trained),
        ("a step of another shape", True, True, _trained),
    ):
        plain.train(training)
        applied.train(training)
        with torch.set_grad_enabled(gradients):
            rows[name] = compared(lambda: call(plain, inputs), lambda: call(applied, inputs), pairs)  # noqa: B023
        click.echo(f"  {name}: {rows[name]}")
    return rows


def compared(plain: Callable[[], None], other: Callable[[], None], pairs: int) -> dict[str, Any]:
    """Seconds of a plain call, and by how much the other is slower."""
    for _ in range(3):
        plain()
        other()
    calls = max(1, round(SAMPLE_S / seconds(plain, 3)))
    ratios, taken = [], []
    for pair in range(pairs):
        if pair % 2:
            one = seconds(plain, calls)
            both = one, seconds(other, calls)
        else:
            two = seconds(other, calls)
            both = seconds(plain, calls), two
        taken.append(both[0])
        ratios.append(both[1] / both[0])
    quarter, half, three = statistics.quantiles(ratios, n=4)
    return {"call_s": statistics.median(taken), "ratio": half, "quartiles": [quarter, three], "calls_a_sample": calls}


def seconds(call: Callable[[], None], count: int) -> float:
    """Of one call, of ``count`` of them."""
    begin = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - begin) / count


@click.command()
@click.option("--model", "names", multiple=True, type=click.Choice(list(MODELS)), help="Only these.")
@click.option("--pairs", default=400, show_default=True, help="Pairs of samples a situation.")
def main(names: tuple[str, ...], pairs: int) -> None:
    rows: dict[str, Any] = {}
    for name in names or MODELS:
        torch.manual_seed(0)
        plain, batch = MODELS[name]()
        applied = copy.deepcopy(plain).train()
        monet.apply(applied, budget="100%", time_limit_s=5, progress=False)
        _trained(applied, batch(PLANNED))
        assert monet.applied(applied).planned_calls == 1
        click.echo(f"{name}: {sum(1 for _ in plain.modules())} modules")
        rows[name] = {
            "modules": sum(1 for _ in plain.modules()),
            "situations": situations(plain, applied, batch, pairs),
        }
        assert monet.applied(applied).planned_calls == 1
        record.write("unplanned", rows)


if __name__ == "__main__":
    main()

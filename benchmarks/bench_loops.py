"""Orders of ``zero_grad`` that people write: gradients beside eager's, the peak of each, and what a loop is told.

python benchmarks/bench_loops.py [--loop plain]

Each loop runs five steps of a small BERT in a process of its own, first by eager and then by a plan of the same (with
``exact=True``), from the same weights, batches and dropout masks. ``equal``: gradients and weights after every step
are eager's, bit by bit. ``above_bytes``: by how much the most bytes of any step after the first are above the plan's
promise, what the loop itself keeps and the optimizer's state not counted; ``told``: what monet logged.
"""

from __future__ import annotations

import copy
import gc
import json
import logging
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import record
import torch
from job_process import run_apart
from torch import Tensor, nn

import monet
from monet.native import allocator

STEPS = 5
LIMIT_S = 300.0
BUDGET = "60%"


@dataclass
class Training:
    """What a loop has. ``called``: the model, or its planned module. ``others``: memory that the loop keeps itself."""

    model: nn.Module
    called: nn.Module
    optimizer: torch.optim.Optimizer
    others: list[Tensor] = field(default_factory=list)
    generator: torch.Generator = field(default_factory=lambda: torch.Generator().manual_seed(1))

    def loss(self) -> Tensor:
        tokens = torch.randint(0, 1000, (8, 128), generator=self.generator)
        loss: Tensor = self.called(input_ids=tokens, attention_mask=torch.ones_like(tokens), labels=tokens).loss
        return loss

    def gradients(self) -> list[Tensor]:
        return [p.grad for p in self.model.parameters() if p.grad is not None]


def plain(training: Training) -> Iterator[None]:
    for _ in range(STEPS):
        training.loss().backward()
        training.optimizer.step()
        yield
        training.optimizer.zero_grad()


def tutorial(training: Training) -> Iterator[None]:
    for _ in range(STEPS):
        training.optimizer.zero_grad()
        training.loss().backward()
        training.optimizer.step()
        yield


def zero_between(training: Training) -> Iterator[None]:
    """``zero_grad`` between forward and backward, as Lightning does."""
    for _ in range(STEPS):
        loss = training.loss()
        training.optimizer.zero_grad()
        loss.backward()
        training.optimizer.step()
        yield


def accumulated(training: Training) -> Iterator[None]:
    for _ in range(STEPS):
        for _ in range(3):
            training.loss().backward()
        training.optimizer.step()
        yield
        training.optimizer.zero_grad()


def set_to_zero(training: Training) -> Iterator[None]:
    for _ in range(STEPS):
        training.optimizer.zero_grad(set_to_none=False)
        training.loss().backward()
        training.optimizer.step()
        yield


def clipped(training: Training) -> Iterator[None]:
    for _ in range(STEPS):
        training.loss().backward()
        torch.nn.utils.clip_grad_norm_(training.model.parameters(), 0.1)
        training.optimizer.step()
        yield
        training.optimizer.zero_grad()


def scaled(training: Training) -> Iterator[None]:
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=2)
    for _ in range(STEPS):
        scaler.scale(training.loss()).backward()
        scaler.step(training.optimizer)
        scaler.update()
        yield
        training.optimizer.zero_grad()


def reference(training: Training) -> Iterator[None]:
    """Somebody keeps the gradients of the last step; their content must not change."""
    for _ in range(STEPS):
        training.optimizer.zero_grad()
        training.loss().backward()
        training.optimizer.step()
        kept = training.gradients()
        yield
        del kept[1:]


def numpy_view(training: Training) -> Iterator[None]:
    """A numpy view of one gradient, of every step."""
    views = []
    for _ in range(STEPS):
        training.optimizer.zero_grad()
        training.loss().backward()
        views.append(training.gradients()[0].numpy())
        training.optimizer.step()
        yield


def averaged_gradients(training: Training) -> Iterator[None]:
    mean: list[Tensor] = []
    for _ in range(STEPS):
        training.loss().backward()
        if mean:
            torch._foreach_lerp_(mean, training.gradients(), 0.1)
        else:
            mean = training.gradients()
        training.optimizer.step()
        yield
        training.optimizer.zero_grad()


def averaged_weights(training: Training) -> Iterator[None]:
    averaged = torch.optim.swa_utils.AveragedModel(training.model, use_buffers=True)
    training.others += [*averaged.parameters(), *averaged.buffers()]
    for _ in range(STEPS):
        training.loss().backward()
        training.optimizer.step()
        averaged.update_parameters(training.model)
        yield
        training.optimizer.zero_grad()


def interrupted(training: Training) -> Iterator[None]:
    """An exception between forward and backward, every other step."""
    for step in range(STEPS):
        try:
            loss = training.loss()
            if step % 2:
                raise RuntimeError("a loader failed")
        except RuntimeError:
            loss = training.loss()
        loss.backward()
        training.optimizer.step()
        yield
        del loss
        training.optimizer.zero_grad()


LOOPS: dict[str, tuple[Callable[[Training], Iterator[None]], dict[str, Any]]] = {
    "plain": (plain, {}),
    "tutorial order": (tutorial, {}),
    "clipped": (clipped, {}),
    "GradScaler": (scaled, {}),
    "moving average of weights": (averaged_weights, {}),
    "exception between forward and backward": (interrupted, {}),
    "zero_grad between forward and backward": (zero_between, {}),
    'the same, `gradients="kept"`': (zero_between, {"gradients": "kept"}),
    "three batches added up": (accumulated, {}),
    "the same, `accumulate=True`": (accumulated, {"accumulate": True}),
    "`set_to_none=False`": (set_to_zero, {}),
    "gradients of the last step kept": (reference, {}),
    "a numpy view kept": (numpy_view, {}),
    "moving average of gradients": (averaged_gradients, {}),
}
"""By name: the loop, and what its plan is asked for besides the budget."""


def _model() -> nn.Module:
    from monet.models.transformers import random_weights

    sizes: dict[str, Any] = {
        "vocab_size": 1000, "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4,
        "intermediate_size": 1024,
    }  # fmt: skip
    torch.manual_seed(0)
    return random_weights("BertForMaskedLM", **sizes).train()


class _Told(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, entry: logging.LogRecord) -> None:
        self.messages.append(entry.getMessage())


def measured(name: str) -> dict[str, Any]:
    """A row of the record, in this process."""
    loop, options = LOOPS[name]
    model = _model()
    tokens = torch.zeros(8, 128, dtype=torch.int64)
    sample = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": tokens}
    plan = monet.plan(model, sample, budget=BUDGET, time_limit_s=10.0, exact=True, progress=False, **options)
    weights = copy.deepcopy(model.state_dict())
    expected = [_contents(training) for training, _ in _steps(loop, model, model)]
    model.load_state_dict(weights)
    model.zero_grad()
    module = monet.MonetModule(model, plan)
    told = _Told()
    logging.getLogger("monet").addHandler(told)
    held = [*model.parameters(), *model.buffers(), *module._step.captured.constants.values()]
    gc.collect()
    base = allocator.live_bytes() - _bytes(held)
    equal, above = True, []
    for number, (training, peak) in enumerate(_steps(loop, model, module)):
        own = _bytes([v for s in training.optimizer.state.values() for v in s.values() if isinstance(v, Tensor)])
        if number:  # the first makes the optimizer's state
            above.append(peak - base - own - _bytes(training.others) - plan.peak_bytes)
        found = _contents(training)
        equal = equal and all(torch.equal(a, b) for a, b in zip(found, expected[number], strict=True))
        del found
    gradients = sum(p.nbytes for p in model.parameters())
    return {
        "equal": equal, "promised_bytes": plan.peak_bytes, "gradient_bytes": gradients, "above_bytes": max(above),
        "told": told.messages, "eager_peak_bytes": plan.solver["eager_peak_bytes"],
    }  # fmt: skip


def _steps(
    loop: Callable[[Training], Iterator[None]], model: nn.Module, called: nn.Module
) -> Iterator[tuple[Training, int]]:
    """After every step of ``loop``: what it has, and the most bytes that torch held in it."""
    training = Training(model, called, torch.optim.SGD(model.parameters(), 0.01, momentum=0.9))
    torch.manual_seed(2)
    gc.collect()
    allocator.reset_peak()
    for _ in loop(training):
        yield training, allocator.peak_bytes()
        gc.collect()
        allocator.reset_peak()


def _contents(training: Training) -> list[Tensor]:
    return [t.detach().clone() for t in (*training.gradients(), *training.model.parameters())]


def _bytes(tensors: list[Tensor]) -> int:
    return sum({t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors}.values())


@click.command()
@click.option("--loop", "names", multiple=True, type=click.Choice(list(LOOPS)), help="Only these.")
@click.option("--job", hidden=True)
@click.option("--answer", hidden=True, type=click.Path(path_type=Path))
def main(names: tuple[str, ...], job: str | None, answer: Path | None) -> None:
    if job is not None and answer is not None:
        answer.write_text(json.dumps(measured(json.loads(job)["loop"])))
        return
    rows: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in names or LOOPS:
            rows[name] = run_apart(__file__, {"loop": name}, Path(folder), LIMIT_S)
            click.echo(f"{name}: {rows[name]}")
            if not names:
                record.write("loops", rows)


if __name__ == "__main__":
    main()

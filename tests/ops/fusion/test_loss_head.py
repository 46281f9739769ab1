"""A linear layer and its cross entropy by chunks of rows: the loss and gradients of eager's, logits never whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from fused_steps import assert_updates_are_eagers, run_in_turn
from peak_meter import measured_peak_bytes
from torch import Tensor, nn
from torch.nn import functional

import monet
from monet.base.graph import Graph
from monet.capture import capture_once
from monet.ops.catalogue import catalogue
from monet.ops.fusion import compiling, fused, loss_head
from monet.ops.fusion.fused import Labels
from monet.ops.fusion.loss_head import BIAS, BIAS_ROW, INPUT, TRANSPOSED, WEIGHT, Head, with_loss_heads
from monet.ops.offers.offering import Offering
from monet.pipeline.planning import plan_prepared
from monet.pipeline.preparation import Preparing, prepare
from monet.planner.search import Solving

aten = torch.ops.aten
BATCH, LENGTH, WIDTH, CLASSES = 3, 70, 16, 200
ROWS = BATCH * LENGTH


class Language(nn.Module):
    """Words in, the loss of the next words out. ``tied``: the head's weight is the embedding's."""

    def __init__(self, *, bias: bool = False, tied: bool = False, reduction: str = "mean") -> None:
        super().__init__()
        self.embed, self.inner = nn.Embedding(CLASSES, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES, bias=bias)
        if tied:
            self.head.weight = self.embed.weight
        self.reduction = reduction

    def hidden(self, words: Tensor) -> Tensor:
        inner: Tensor = self.inner(self.embed(words))
        return inner.tanh()

    def forward(self, words: Tensor, labels: Tensor) -> Any:
        logits = self.head(self.hidden(words))
        return functional.cross_entropy(logits.view(-1, CLASSES), labels.view(-1), reduction=self.reduction)


class Telling(Language):
    """Its logits are an output, too."""

    def forward(self, words: Tensor, labels: Tensor) -> Any:
        logits = self.head(self.hidden(words))
        return functional.cross_entropy(logits.view(-1, CLASSES), labels.view(-1)), logits


class Penalised(Language):
    """Its logits are read twice."""

    def forward(self, words: Tensor, labels: Tensor) -> Any:
        logits = self.head(self.hidden(words)).view(-1, CLASSES)
        return functional.cross_entropy(logits, labels.view(-1)) + logits.square().mean()


class Halved(Language):
    """The gradient of its cross entropy is no tangent."""

    def forward(self, words: Tensor, labels: Tensor) -> Any:
        hidden = self.hidden(words)
        loss = functional.cross_entropy(self.head(hidden).view(-1, CLASSES), labels.view(-1), label_smoothing=0.0)
        return 0.5 * loss + hidden.square().mean()


MODELS: dict[str, Callable[[], nn.Module]] = {
    "plain": Language,
    "bias": lambda: Language(bias=True),
    "tied": lambda: Language(tied=True),
    "sum": lambda: Language(reduction="sum"),
    "halved": lambda: Halved(bias=True),
}


def _inputs() -> tuple[Tensor, Tensor]:
    words, labels = torch.randint(CLASSES, (2, BATCH, LENGTH))
    labels[:, -3:] = -100
    return words, labels


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss_head, "LEAST_ELEMENTS", 1)


@pytest.fixture
def in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    run_in_turn(monkeypatch)


def _graph(model: nn.Module) -> Graph:
    return capture_once(model, _inputs(), {}, gradients_leave=True, on_disk=False).graph


def _heads(graph: Graph) -> list[Any]:
    return [op for op in graph.forward if isinstance(op.target, Head)]


@pytest.mark.parametrize("name", MODELS)
def test_logits_are_no_value(name: str) -> None:
    graph = _graph(MODELS[name]())
    (head,) = _heads(with_loss_heads(graph))
    biased = {BIAS, BIAS_ROW} & {*head.target.gradients}
    assert {*head.target.gradients} - biased in ({INPUT, WEIGHT}, {INPUT, TRANSPOSED})
    assert bool(biased) == (name in ("bias", "halved"))
    wide = [v for v in with_loss_heads(graph).values.values() if v.numel >= ROWS * CLASSES]
    assert not wide and any(v.numel >= ROWS * CLASSES for v in graph.values.values())


@pytest.mark.parametrize("model", [Telling, Penalised])
def test_logits_that_others_read_are_made(model: Callable[[], nn.Module]) -> None:
    graph = _graph(model())
    assert with_loss_heads(graph) is graph


def test_few_logits_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss_head, "LEAST_ELEMENTS", ROWS * CLASSES + 1)
    graph = _graph(Language())
    assert with_loss_heads(graph) is graph


@pytest.mark.parametrize("rows", [1, 64, 129, 210])
@pytest.mark.parametrize("mean", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_chunks_give_eagers_loss_and_gradients(rows: int, mean: bool, bias: bool) -> None:
    torch.manual_seed(rows)
    hidden, weight, shift = (
        torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in ((rows, 5), (5, 33), (33,))
    )
    target = torch.randint(33, (rows,))
    target[1::4] = -7
    logits = hidden @ weight + (shift if bias else 0.0)
    reduction = "mean" if mean else "sum"
    loss = functional.cross_entropy(logits, target, ignore_index=-7, reduction=reduction)
    wanted = torch.autograd.grad(loss, (hidden, weight, shift) if bias else (hidden, weight))
    program = loss_head._of_block(33, torch.device("cpu"), -7, mean=mean)
    names = (INPUT, TRANSPOSED, WEIGHT, BIAS) if bias else (INPUT, TRANSPOSED, WEIGHT)
    run = replace(program)
    object.__setattr__(run, "kernels", _InTurn(run))
    for chunks in (1, 2, 3, 32):
        with torch.no_grad():
            found = loss_head.loss_head(
                Head(run, Labels(3, 33, -7), names), chunks, hidden, weight, shift if bias else None, target
            )
        torch.testing.assert_close(found[0], loss)
        torch.testing.assert_close(found[1:3], wanted[:2])
        torch.testing.assert_close(found[3], wanted[1].t())
        if bias:
            torch.testing.assert_close(found[4], wanted[2])


class _InTurn(dict[Any, Any]):
    """Kernels of every geometry."""

    def __init__(self, program: fused.Fused) -> None:
        self._program = program

    def get(self, geometry: Any, default: Any = None) -> Any:
        return lambda given: self._program.run(*given)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("chunks", [1, 2])
@pytest.mark.usefixtures("in_turn")
def test_gradients_are_eagers(name: str, chunks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss_head, "CHUNKS", (chunks,))
    torch.manual_seed(0)
    model = MODELS[name]()
    prepared = prepare(model, _inputs(), {}, Preparing(cache=False), Offering(fused=True))
    plan = plan_prepared(prepared, int(1.5 * prepared.full_bytes), Solving(time_limit_s=20.0)).plan
    assert f"chunks-{chunks}" in {step.implementation for step in plan.steps}
    assert measured_peak_bytes(model, plan, lambda seed: (_inputs(), {})) == plan.peak_bytes
    inputs, found = _inputs(), []
    for step in (model, monet.MonetModule(model, plan)):
        model.zero_grad()
        loss = step(*inputs)
        (3.0 * loss).backward()
        found.append([loss, *(parameter.grad for parameter in model.parameters())])
    for eager, planned in zip(*found, strict=True):
        # Sums over rows and classes in another order.
        torch.testing.assert_close(planned, eager, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.usefixtures("in_turn")
def test_whole_steps_update_as_eager(name: str) -> None:
    """There the gradient is scaled in place, and dies in its update."""
    torch.manual_seed(0)
    models = [MODELS[name]() for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    rate = 0.002 if name == "sum" else 0.1
    optimizers = [torch.optim.SGD(model.parameters(), rate, momentum=0.9) for model in models]
    trainer = monet.optimize(
        models[0], _inputs(), loss_fn=lambda loss, _: loss, optimizer=optimizers[0], budget="100%", fused=True,
        cache=False,
    )  # fmt: skip
    taken = {step.implementation for step in trainer.plan.steps}
    assert any(made.startswith("chunks-") for made in taken)
    assert_updates_are_eagers(trainer, models[0], models[1], optimizers[1], _inputs, atol=1e-5)


@pytest.mark.usefixtures("in_turn")
def test_offers_are_of_different_sizes() -> None:
    graph = with_loss_heads(_graph(Language()))
    named = catalogue(graph, Offering(fused=True)).forward[_heads(graph)[0].name]
    assert [*named] == ["chunks-1", "chunks-2", "chunks-4"]  # 210, 128 and 64 rows


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_kernel_of_the_compiler(name: str) -> None:
    torch.manual_seed(0)
    graph = with_loss_heads(_graph(MODELS[name]()))
    (head,) = _heads(graph)
    program = head.target.of_block
    x, target, total = torch.randn(64, CLASSES), torch.randint(CLASSES, (64,)), torch.tensor(50.0)
    target[:9] = -100
    given = x.clone(), target, total
    (wanted,) = program.run(*given)
    found = program(x, target, total)
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(x, given[0])
    assert compiling._kernels


@pytest.mark.slow
@pytest.mark.parametrize("elements", [1, 1 << 30], ids=["head", "cross entropy"])
@pytest.mark.parametrize("label", [CLASSES, -1])
def test_a_wrong_label_is_an_error_as_in_eager(elements: int, label: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiled kernel would end the process."""
    monkeypatch.setattr(loss_head, "LEAST_ELEMENTS", elements)
    torch.manual_seed(0)
    model, (words, labels) = Language(), _inputs()
    prepared = prepare(model, (words, labels), {}, Preparing(cache=False), Offering(fused=True))
    plan = plan_prepared(prepared, 2 * prepared.full_bytes, Solving(time_limit_s=20.0)).plan
    assert any(step.implementation.startswith(("fused", "chunks")) for step in plan.steps)
    module, wrong = monet.MonetModule(model, plan), labels.clone()
    wrong[1, 2] = label
    for step in (model, module):
        with pytest.raises(IndexError, match=f"Target {label} is out of bounds"):
            step(words, wrong)
    assert torch.equal(module(words, labels).isfinite(), torch.tensor(True))

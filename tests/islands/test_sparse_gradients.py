"""Embeddings with ``sparse=True`` are islands, whose gradients reach ``.grad`` as eager's do."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from peak_meter import measured_peak_bytes
from slow_cases import slow_but
from torch import Tensor, nn

import monet
from monet.errors import CaptureError
from monet.native import allocator

HASTE: dict[str, Any] = {"exact": True, "time_limit_s": 2, "cores": 1}


class Words(nn.Module):
    """Words to scores. ``twice``: of two texts, by one table. ``tied``: by the table itself, too. ``even``: its sum,
    whose gradient is dense."""

    def __init__(self, table: nn.Module, *, twice: bool = False, tied: bool = False, even: bool = False) -> None:
        super().__init__()
        self.table: Any = table
        self.twice, self.tied, self.even = twice, tied, even
        self.scores = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, 4))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        out: Tensor = self.scores(self.table(x))
        if self.twice:
            out = out + self.scores(self.table(y))
        if self.tied:
            out = out @ self.table.weight[:4, :4]
        if self.even:
            out = out + self.table.weight.sum()
        return out


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Embedding(50, 8, padding_idx=0, sparse=True)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x) * 2
        return out


CASES: dict[str, Callable[[], nn.Module]] = {
    "once": lambda: Words(nn.Embedding(50, 8, sparse=True)),
    "twice": lambda: Words(nn.Embedding(50, 8, sparse=True), twice=True),
    "bag": lambda: Words(nn.EmbeddingBag(50, 8, mode="sum", sparse=True), twice=True),
    "nested": lambda: Words(Nested()),
    "two": lambda: Words(nn.Sequential(nn.Embedding(50, 8, sparse=True), nn.Linear(8, 8)), twice=True),
}


def made(case: str) -> nn.Module:
    torch.manual_seed(0)
    return CASES[case]()


def texts(seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(50, (6, 7), generator=generator), torch.randint(50, (6, 7), generator=generator)


def step(module: nn.Module, model: nn.Module, seed: int) -> list[Tensor]:
    torch.manual_seed(seed)
    out = module(*texts(seed))
    out.square().mean().backward()
    return [out.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]


def assert_same(found: list[Tensor], expected: list[Tensor]) -> None:
    assert [t.layout for t in found] == [t.layout for t in expected]
    assert torch.sparse_coo in {t.layout for t in found}
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one.to_dense(), other.to_dense())


@pytest.mark.parametrize("case", slow_but(["once", "nested", "two"], CASES))
def test_steps_are_eagers(case: str) -> None:
    model = made(case)
    eager = copy.deepcopy(model)
    module = monet.MonetModule(model, monet.plan(model, texts(0), budget="100%", **HASTE))
    for seed in range(1, 5):
        found, expected = step(module, model, seed), step(eager, eager, seed)
        assert_same(found, expected)
        if seed != 2:  # gradients add up there
            model.zero_grad()
            eager.zero_grad()
            assert_same(found, expected)  # which were nobody's memory but their own


def test_a_training_with_an_optimiser_of_sparse_gradients() -> None:
    model = made("twice")
    eager = copy.deepcopy(model)
    monet.apply(model, budget="110%", progress=False, **HASTE)
    weights = []
    both: tuple[Any, Any] = (model, eager)
    for of in both:
        sparse: Any = torch.optim.SparseAdam([of.table.weight])
        dense: Any = torch.optim.SGD(of.scores.parameters(), 0.1)
        for seed in range(4):
            for optimizer in (sparse, dense):
                optimizer.zero_grad()
            step(of, of, seed)
            for optimizer in (sparse, dense):
                optimizer.step()
        weights.append([p.detach() for p in of.parameters()])
    applied = monet.applied(model)
    assert applied is not None and (applied.planned_calls, applied.eager_calls) == (4, 0)
    assert all(torch.equal(one, other) for one, other in zip(*weights, strict=True))


@pytest.mark.skipif(not allocator.available(), reason="peaks are measured by the native allocator")
@pytest.mark.slow
def test_the_promise_has_their_bytes(caplog: pytest.LogCaptureFixture) -> None:
    model = made("twice")
    plan = monet.plan(model, texts(0), budget="100%", **HASTE)
    caplog.clear()
    assert measured_peak_bytes(model, plan, lambda seed: (texts(seed), {})) <= plan.peak_bytes
    module = monet.MonetModule(model, plan)
    for seed in range(6):  # nothing adds up in the count
        model.zero_grad()
        step(module, model, seed)
    assert not caplog.records


def test_a_frozen_table_is_planned() -> None:
    model = made("once")
    next(model.parameters()).requires_grad_(False)
    assert "islands" not in monet.plan(model, texts(0), budget="100%", **HASTE).fixed


@pytest.mark.parametrize("use", ["tied", "even", "accumulate"])
def test_what_needs_a_dense_gradient_is_refused(use: str) -> None:
    how = {"accumulate": True} if use == "accumulate" else {}
    model = made("once") if how else Words(nn.Embedding(50, 8, sparse=True), **{use: True})
    with pytest.raises(CaptureError, match="embedding with sparse=True"):
        monet.plan(model, texts(0), budget="100%", **HASTE, **how)  # type: ignore[arg-type]

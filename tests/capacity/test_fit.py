"""``monet.fit``: what it answers for memories of every size, what it leaves alone, and how it is interrupted."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import monet
from monet.api.capacity.answer import (
    AS_IT_IS,
    COMPLETE,
    INTERRUPTED,
    PLANNED,
    TOO_LARGE,
    UNKNOWN,
    Answer,
    Point,
    Smallest,
)
from monet.api.capacity.search import FitSearch, budgets
from monet.api.capacity.steps import Steps
from monet.api.capacity.text import render_answer
from monet.base.amounts import ByteCount
from monet.errors import ConfigError
from monet.ops.estimating.rates import parse_rates
from monet.ops.measuring.bench import Bench
from monet.pipeline.planning import plan_prepared
from monet.pipeline.preparation import Prepared, Preparing, prepare
from monet.planner.search import Solving

RATES = "300GFLOPS,20GB/s"
QUICK = Solving(time_limit_s=1)


def model() -> nn.Module:
    """Activations outweigh parameters, and can be computed again."""
    return nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 64), nn.Sigmoid(), nn.Linear(64, 64), nn.Tanh())


def asked(memory: str | int, batch: bool = False) -> Answer:
    return monet.fit(
        model(), torch.empty(512, 16), memory=memory, batch=batch, estimate=True, rates=RATES, time_limit_s=1
    )


@pytest.fixture(scope="module")
def large() -> Answer:
    return asked("1GB")


def test_as_it_is(large: Answer) -> None:
    assert (large.fits, large.overhead, large.status) == (AS_IT_IS, 0.0, COMPLETE)
    assert large.smallest is not None and large.smallest.bound_bytes <= large.smallest.budget_bytes
    assert large.smallest.budget_bytes < large.eager_peak_bytes
    amounts = [point.budget_bytes for point in large.points]
    assert amounts == sorted(amounts) and amounts[0] == large.smallest.budget_bytes
    assert amounts[-1] < large.eager_peak_bytes and len(amounts) == 4
    assert all(point.peak_bytes is not None and point.peak_bytes <= point.budget_bytes for point in large.points)
    assert large.estimated is not None and large.batch is None


def test_with_a_plan(large: Answer) -> None:
    assert large.smallest is not None
    memory = (large.smallest.budget_bytes + large.eager_peak_bytes) // 2 + 1000
    answer = asked(memory)
    assert answer.fits == PLANNED and answer.overhead is not None
    at = next(point for point in answer.points if point.budget_bytes == memory)
    assert at.overhead is not None and answer.overhead <= at.overhead
    prepared = prepare(model(), (torch.empty(512, 16),), {}, Preparing(costs=parse_rates(RATES)))
    assert plan_prepared(prepared, memory, QUICK).summary.overhead == pytest.approx(at.overhead, abs=0.02)


def test_not_at_all(large: Answer) -> None:
    assert large.smallest is not None
    answer = asked(large.smallest.budget_bytes // 2)
    assert (answer.fits, answer.overhead) == (TOO_LARGE, None)
    assert "does not fit into" in render_answer(answer, "MB") and "the smallest budget" in render_answer(answer, "MB")


def test_the_largest_batch_fits_and_the_next_does_not(large: Answer) -> None:
    answer = asked(large.eager_peak_bytes, batch=True)
    assert answer.batch is not None and answer.batch.largest is not None
    largest = answer.batch.largest
    assert largest >= 512 and answer.batch.tried[largest]
    costs = Preparing(costs=parse_rates(RATES))
    fitting = prepare(model(), (torch.empty(largest, 16),), {}, costs)
    assert plan_prepared(fitting, large.eager_peak_bytes, QUICK).plan.peak_bytes <= large.eager_peak_bytes
    failed = [batch for batch, fits in answer.batch.tried.items() if not fits]
    assert all(batch > largest for batch in failed)


def test_measured_costs_are_promises() -> None:
    """Without ``estimate``, on this machine; the answer's peak is the plan's."""
    example = torch.empty(512, 16)
    answer = monet.fit(model(), (example,), memory="1GB", batch=False, time_limit_s=1)
    assert answer.estimated is None and answer.smallest is not None
    plan = monet.plan(model(), (example,), budget=answer.smallest.budget_bytes, time_limit_s=1)
    assert plan.peak_bytes <= answer.smallest.budget_bytes
    assert "estimate" not in render_answer(answer, "MB")


def test_larger_than_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """100 GB of weights on the meta device, two of which are one: nothing is allocated, nothing is run, and the model
    stays on the meta device."""

    def measure(*_: object) -> None:
        raise AssertionError("an operator was run")

    monkeypatch.setattr(Bench, "measure", measure)
    with torch.device("meta"):
        layers = [nn.Linear(100_000, 100_000, bias=False, dtype=torch.bfloat16) for _ in range(6)]
        layers[5].weight = layers[3].weight
        large = nn.Sequential(*layers)
    weights = 5 * 100_000**2 * 2
    answer = monet.fit(
        large, torch.empty(8, 100_000, dtype=torch.bfloat16, device="meta"), memory="1TB", estimate=True, rates=RATES,
        batch=False, time_limit_s=1,
    )  # fmt: skip
    assert 2 * weights < answer.eager_peak_bytes < 2.2 * weights  # with their gradients
    assert answer.fits == AS_IT_IS and all(p.is_meta for p in large.parameters())


def test_the_users_model_is_not_changed() -> None:
    given, example = model(), torch.zeros(8, 16)
    before = {name: tensor.clone() for name, tensor in given.state_dict().items()}
    monet.fit(given, example, memory="1GB", estimate=True, rates=RATES, time_limit_s=1)
    assert all(torch.equal(before[name], tensor) for name, tensor in given.state_dict().items())
    assert torch.equal(example, torch.zeros(8, 16)) and all(p.grad is None for p in given.parameters())


def test_inputs_at_another_batch_keep_their_memory_format() -> None:
    images = torch.empty(4, 3, 8, 8).contiguous(memory_format=torch.channels_last).requires_grad_()
    seen: list[tuple[int, ...]] = []
    note = SimpleNamespace(shape=seen.append)  # what a model changes that its code does not name stays

    class Seen(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            note.shape((*x.shape, *x.stride()))
            return torch.tanh(x)

    answer = monet.fit(Seen(), images, memory="1MB", estimate=True, rates=RATES, time_limit_s=1)
    assert answer.batch is not None and answer.batch.largest is not None and answer.batch.largest > 4
    assert len({shape[0] for shape in seen}) > 1 and all(shape[4:] == (192, 1, 24, 3) for shape in seen)


@pytest.mark.parametrize("memory", ["50%", "much", 0])
def test_memories_that_are_none(memory: str | int) -> None:
    with pytest.raises(ConfigError):
        asked(memory)


def test_rates_without_estimate() -> None:
    with pytest.raises(ConfigError, match="estimate=True"):
        monet.fit(model(), torch.empty(8, 16), memory="1GB", rates=RATES)


def test_budgets_that_are_planned_for() -> None:
    assert list(budgets(100, 200, 50)) == [125, 150, 175]
    assert list(budgets(100, 200, 160)) == [160, 125, 150, 175]
    assert list(budgets(100, 200, 150)) == [150, 125, 175]
    assert list(budgets(100, 200, 300)) == [125, 150, 175]
    assert list(budgets(100, 100, 100)) == list(budgets(120, 100, 110)) == []


# -- Ctrl-C


def prepared_once() -> Prepared:
    return prepare(model(), (torch.empty(512, 16),), {}, Preparing(costs=parse_rates(RATES)))


def test_interrupted_before_anything_is_known() -> None:
    def at(batch: int | None) -> Prepared:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        FitSearch(Steps(at, 512), ByteCount(10**9), QUICK).run()


@pytest.mark.slow
def test_interrupted_while_it_looks_for_a_batch() -> None:
    prepared = prepared_once()

    def at(batch: int | None) -> Prepared:
        if batch is not None:
            raise KeyboardInterrupt
        return prepared

    answer = FitSearch(Steps(at, 512), ByteCount(10**9), QUICK).run()
    assert answer.status == INTERRUPTED and answer.batch is None
    assert answer.fits == AS_IT_IS and answer.smallest is not None and len(answer.points) == 4
    assert "Interrupted" in render_answer(answer, "MB")


def test_interrupted_while_it_solves(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the smallest budget and one more."""
    calls: Iterator[bool] = iter([False, True])

    def interrupted(*given: object, **named: object) -> object:
        if next(calls):
            raise KeyboardInterrupt
        return plan_prepared(*given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr("monet.api.capacity.search.plan_prepared", interrupted)
    prepared = prepared_once()
    answer = FitSearch(Steps(lambda _: prepared, None), ByteCount(10**9), QUICK).run()
    assert answer.status == INTERRUPTED and len(answer.points) == 2


# -- What is read


def test_the_answer_as_text_and_data() -> None:
    smallest = Smallest(5_000_000, 4_000_000, "full", 0.5)
    points = (Point(5_000_000, 0.5, 4_990_000), Point(6_000_000, 0.25, 5_900_000), Point(7_000_000, None, None, "no"))
    answer = Answer("Model", 6_000_000, 10_000_000, 1.0, smallest, points)
    assert render_answer(answer, "MB").splitlines() == [
        "Model fits into 6.000 MB with a plan, whose step is 25.0% longer than eager's.",
        "",
        "eager's peak         10.000 MB",
        "eager's step         about 1.000 s",
        "smallest budget      5.000 MB  no plan needs less than 4.000 MB",
        "",
        "budget               step, beside eager's",
        "5.000 MB             50.0% longer",
        "6.000 MB             25.0% longer  the memory",
        "7.000 MB             no plan was found in time",
    ]
    assert answer.as_json()["fits"] == PLANNED and answer.as_json()["overhead"] == 0.25
    assert answer.as_json()["points"][1]["budget_bytes"] == 6_000_000
    unknown = Answer("Model", 6_000_000, 10_000_000, 1.0, status=INTERRUPTED)
    assert unknown.fits == UNKNOWN and "not known yet" in render_answer(unknown, "MB")

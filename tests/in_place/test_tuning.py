"""Plans that are made with the times of steps: tried where they are to be faster, and kept where they are."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from loop_cases import HASTE, equal, told, train
from module_cases import costs_by_bytes
from slow_cases import slow_but
from torch import nn

import monet
from monet.api.in_place.tuning import Tuning
from monet.errors import ConfigError, PlanMismatch
from monet.plans.plan import Plan

pytestmark = pytest.mark.usefixtures("hasty_orders")
STEPS = 3
WARM = 1


class Wide(nn.Module):
    """Whose cheapest recomputation, by bytes, is that of ``tanh``."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.sin(layer(x)).tanh()
        return x


def data(count: int, rows: int = 512) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(rows, 64, generator=generator) for _ in range(count)]


class Times:
    """What steps are said to take: operators of ``call``, ``slower`` as long as the plan counted; whole steps by
    turns."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, call: str, slower: float, *steps_s: float) -> None:
        self.asked = 0
        self.call, self.slower, self.steps_s = call, slower, list(steps_s)
        monkeypatch.setattr(Tuning, "seconds", property(self.seconds))
        monkeypatch.setattr(Tuning, "step_s", property(lambda tuning: self.steps_s[0 if tuning.first is None else 1]))
        monkeypatch.setattr("monet.pipeline.preparation.profile", costs_by_bytes)

    def seconds(self, tuning: Tuning) -> Mapping[str, Sequence[float]]:
        self.asked += 1
        module = tuning._module
        assert module is not None and len(tuning._steps) == STEPS + WARM
        assert all(seconds > 0 for step in tuning._steps for _, seconds in step)
        from monet.executor.step_times import seconds_by_signature

        numbers = {n: [1e-4] for n in range(len(module.plan.steps))}
        found = seconds_by_signature(module._step, numbers)
        return {
            key: [each * (self.slower if self.call in key else 1.0) for each in taken] for key, taken in found.items()
        }


def again(plan: Plan) -> list[str]:
    return [step.node for step in plan.steps if step.kind == "recompute"]


def tuned(model: nn.Module, **options: Any) -> None:
    monet.apply(model, budget="85%", exact=True, tune_steps=STEPS, **{**HASTE, **options})


def test_a_faster_plan_takes_the_place_of_the_first(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    planned, eager = Wide(), copy.deepcopy(Wide())
    times = Times(monkeypatch, "sin", 50.0, 10.0, 9.0)
    tuned(planned, dynamic=None, cache=False)
    first: list[Plan] = []

    def between() -> None:
        first[:] = first or monet.applied(planned).plans

    batches = data(2 * (STEPS + WARM) + 3)
    assert equal(train(planned, batches, between), train(eager, batches))
    (last,) = monet.applied(planned).plans
    assert times.asked == 1 and again(first[0]) != again(last)
    assert last.peak_bytes <= last.budget_bytes == first[0].budget_bytes
    assert monet.applied(planned).eager_calls == 0
    (sentence,) = told(caplog)
    assert "10,000 ms a step by the first plan, 9,000 by one with its times, which stays" in sentence


@pytest.mark.slow
def test_a_plan_that_is_slower_gives_way_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    planned, eager = Wide(), copy.deepcopy(Wide())
    Times(monkeypatch, "sin", 50.0, 10.0, 11.0)
    tuned(planned, cache=False)
    seen: list[Plan] = []

    def between() -> None:
        (plan,) = monet.applied(planned).plans
        if plan not in seen:
            seen.append(plan)

    batches = data(2 * (STEPS + WARM) + 3)
    assert equal(train(planned, batches, between), train(eager, batches))
    assert len(seen) == 2 and monet.applied(planned).plans == (seen[0],)
    assert "the first one stays" in told(caplog)[-1]


@pytest.mark.slow
def test_no_other_plan_is_made_where_none_is_to_be_faster(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model = Wide()
    times = Times(monkeypatch, "nothing", 1.0, 1e-9)
    tuned(model, cache=False)
    train(model, data(STEPS + WARM + 4))
    assert times.asked == 1 and len(monet.applied(model).plans) == 1
    assert "no other plan is faster by the times of its steps" in told(caplog)[-1]


def test_the_faster_plan_is_there_at_the_next_start(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Wide()
    times = Times(monkeypatch, "sin", 50.0, 10.0, 9.0)
    tuned(model)
    train(model, data(2 * (STEPS + WARM) + 1, rows=520))
    (found,) = monet.applied(model).plans
    second = Wide()
    tuned(second)
    train(second, data(STEPS + WARM + 2, rows=520))
    assert monet.applied(second).plans == (found,) and times.asked == 1
    third = Wide()
    monet.apply(third, budget="85%", exact=True, **HASTE)  # who does not ask for it has the first plan
    train(third, data(1, rows=520))
    assert monet.applied(third).plans != (found,)


def test_calls_without_a_backward_pass_are_no_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Wide()
    times = Times(monkeypatch, "sin", 50.0, 10.0, 9.0)
    tuned(model, cache=False)
    for batch in data(STEPS + WARM + 3):
        model(batch)
    assert times.asked == 0
    train(model, data(2))
    assert times.asked == 0


@pytest.mark.slow
def test_varying_shapes_are_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Wide()
    times = Times(monkeypatch, "sin", 50.0, 10.0, 9.0)
    tuned(model, cache=False)
    train(model, [batch[: 500 - k] for k, batch in enumerate(data(STEPS + WARM + 5))])
    assert times.asked == 0 and monet.applied(model).planned_calls == STEPS + WARM + 5


@pytest.mark.parametrize("steps", [-1, True, 1.5])
def test_what_is_no_number_of_steps_is_refused(steps: Any) -> None:
    with pytest.raises(ConfigError, match="tune_steps, how many steps of a plan are timed, must be a number from 0 on"):
        monet.apply(Wide(), budget="85%", tune_steps=steps)


def changed(model: Wide) -> None:
    """Another model than was planned: a layer more of the activation."""
    model.layers.append(nn.Linear(64, 64))


@pytest.mark.parametrize("rule", ["eager", "replan", "error"])
@pytest.mark.parametrize(
    "at",
    slow_but(
        [STEPS + WARM, 2 * (STEPS + WARM)],
        [STEPS + WARM - 1, STEPS + WARM, STEPS + WARM + 2, 2 * (STEPS + WARM) - 1, 2 * (STEPS + WARM)],
    ),
)
@pytest.mark.sampled(2)
def test_a_model_that_changes_meanwhile_goes_by_the_rule(
    rule: Any, at: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    planned, eager = Wide(), copy.deepcopy(Wide())
    Times(monkeypatch, "sin", 50.0, 10.0, 11.0)
    tuned(planned, cache=False, on_mismatch=rule)
    for number, batch in enumerate(data(2 * (STEPS + WARM) + 3)):
        if number == at:
            torch.manual_seed(1)
            changed(planned)
            torch.manual_seed(1)
            changed(eager)
        if rule == "error" and number >= at:
            with pytest.raises(PlanMismatch):
                planned(batch)
            continue
        for model in (planned, eager):
            model.zero_grad()
            model(batch).square().mean().backward()
        for p, q in zip(planned.parameters(), eager.parameters(), strict=True):
            assert p.grad is not None and q.grad is not None and torch.equal(p.grad, q.grad)
    assert monet.applied(planned).eager_calls == (2 * (STEPS + WARM) + 3 - at if rule == "eager" else 0)


@pytest.mark.slow
def test_a_second_plan_whose_steps_are_never_whole_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Wide()
    Times(monkeypatch, "sin", 50.0, 10.0, 9.0)
    tuned(model, cache=False)
    batches = data(8 * (STEPS + WARM))
    train(model, batches[: STEPS + WARM])
    (first,) = monet.applied(model).plans
    for batch in batches[STEPS + WARM :]:
        model(batch)
    assert monet.applied(model).plans == (first,)


@pytest.mark.parametrize("views", [False, True])
def test_a_pass_without_steps(views: bool) -> None:
    class Few(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.p = nn.Parameter(torch.ones(6, 4))

        def forward(self, x: torch.Tensor) -> Any:
            return (self.p.view(-1), x * 2) if views else x + self.p

    model = Few()
    monet.apply(model, budget="1MB", tune_steps=1, cache=False, **HASTE)
    for _ in range(5):
        model.zero_grad()
        found = model(torch.ones(6, 4))
        (found[0] if views else found).sum().backward()
        assert model.p.grad is not None and torch.equal(model.p.grad, torch.ones(6, 4))

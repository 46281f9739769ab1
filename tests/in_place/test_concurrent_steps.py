"""``concurrent=2``: a forward pass while a backward pass is pending runs by a plan too, in an arena of its own."""

from __future__ import annotations

import copy
import gc
import threading
from typing import Any

import pytest
import torch
from loop_cases import BUDGET, HASTE, batches, equal, pair, told, train
from torch import Tensor, nn

import monet
from monet.errors import ConfigError
from monet.native import allocator

pytestmark = pytest.mark.usefixtures("hasty_orders")

EXACT: dict[str, Any] = {"budget": BUDGET, "exact": True, "concurrent": 2, **HASTE}


def counts(model: nn.Module) -> tuple[int, int, int]:
    found = monet.applied(model)
    return found.planned_calls, found.eager_calls, len(found.plans)


def gradients(model: nn.Module) -> list[Tensor]:
    return [p.grad for p in model.parameters() if p.grad is not None]


def test_a_contrastive_loss(caplog: pytest.LogCaptureFixture) -> None:
    """Batch norm's statistics are updated by both calls in their order."""
    planned, eager = pair()
    monet.apply(planned, **EXACT)
    for one, other in (batches(8, 8), batches(8, 8)[::-1]):
        for model in (planned, eager):
            model.zero_grad()
            left, right = (nn.functional.normalize(model(images)) for images in (one, other))
            nn.functional.cross_entropy(left @ right.T, torch.arange(8)).backward()
        assert equal([*gradients(planned), *planned.buffers()], [*gradients(eager), *eager.buffers()])
    assert counts(planned) == (4, 0, 1)
    promise = monet.applied(planned).peak_bytes
    (sentence,) = told(caplog)
    assert f"the promise is the sum, {promise:,} bytes" in sentence
    assert monet.applied(planned).plans[0].peak_bytes < promise <= 2 * monet.applied(planned).plans[0].peak_bytes


@pytest.mark.parametrize("first", [True, False])
def test_either_backward_pass_first_and_a_third_call(first: bool, caplog: pytest.LogCaptureFixture) -> None:
    planned, eager = pair()
    monet.apply(planned, **EXACT)
    data = batches(8, 8, 8)
    for model in (planned, eager):
        losses = [model(images).square().mean() * k for k, images in enumerate(data, 1)]
        for loss in losses if first else losses[::-1]:
            loss.backward()
        del losses, loss
    assert equal(gradients(planned), gradients(eager))
    assert counts(planned) == (2, 1, 1)
    assert any("no arena more" in sentence for sentence in told(caplog))
    assert equal(train(planned, data), train(eager, data))
    assert counts(planned) == (5, 1, 1)


def test_dropout_of_both_calls() -> None:
    torch.manual_seed(0)
    planned: nn.Module = nn.Sequential(nn.Linear(8, 64), nn.GELU(), nn.Dropout(0.3), nn.Linear(64, 4), nn.Dropout(0.5))
    eager = copy.deepcopy(planned)
    monet.apply(planned, **{**EXACT, "budget": "95%"})
    x, y = torch.randn(32, 8), torch.randn(32, 8)
    for _ in range(2):
        for model in (planned, eager):
            model.zero_grad()
            torch.manual_seed(9)
            (model(x) * model(y)).sum().backward()
        assert equal(gradients(planned), gradients(eager))
    assert counts(planned) == (4, 0, 1)


@pytest.mark.skipif(not allocator.available(), reason="there is no C++ compiler")
def test_the_peak_of_both_is_the_sum_or_less() -> None:
    model, _ = pair()
    monet.apply(model, **EXACT)
    one, other = batches(8, 8)
    for _ in range(2):
        model.zero_grad()
        (model(one).sum() + model(other).sum()).backward()
    model.zero_grad()
    promise, plan = monet.applied(model).peak_bytes, monet.applied(model).plans[0]
    gc.collect()
    state = sum(t.nbytes for t in [*model.parameters(), *model.buffers()])
    before = allocator.live_bytes() - 2 * plan.arena_bytes - one.nbytes - other.nbytes - state
    allocator.reset_peak()
    (model(one).sum() + model(other).sum()).backward()
    assert 2 * plan.arena_bytes < allocator.peak_bytes() - before <= promise


def two_models() -> tuple[nn.Module, nn.Module]:
    """The second takes what the first makes."""
    torch.manual_seed(3)
    first = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten())
    return first, nn.Sequential(nn.Linear(8 * 14 * 14, 32), nn.Tanh(), nn.Linear(32, 4))


def test_two_models_have_an_arena_each(caplog: pytest.LogCaptureFixture) -> None:
    """The step of the one is under way while that of the other runs: no memory is common to both, and the peak is what
    they promise together at most."""
    results = []
    for applied in (True, False):
        models = two_models()
        if applied:
            for model in models:
                monet.apply(model, budget=BUDGET, exact=True, on_mismatch="error", **HASTE)
        optimizers = [torch.optim.SGD(model.parameters(), 0.1, momentum=0.9) for model in models]
        seen = []
        for images in batches(8, 8, 8, 8, 8):
            for optimizer in optimizers:
                optimizer.zero_grad()
            models[1](models[0](images)).square().mean().backward()
            seen += [g.clone() for model in models for g in gradients(model)]
            for optimizer in optimizers:
                optimizer.step()
        results.append(seen)
        if applied:
            planned = models
    assert equal(*results)
    assert [counts(model) for model in planned] == [(5, 0, 1)] * 2 and not told(caplog)
    if not allocator.available():
        return
    plans = [monet.applied(model).plans[0] for model in planned]
    (images,) = batches(8)
    for model in planned:
        model.zero_grad()
    gc.collect()
    state = sum(t.nbytes for model in planned for t in [*model.parameters(), *model.buffers()])
    arenas = sum(plan.arena_bytes for plan in plans)
    before = allocator.live_bytes() - arenas - images.nbytes - state
    allocator.reset_peak()
    planned[1](planned[0](images)).square().mean().backward()
    assert arenas < allocator.peak_bytes() - before <= sum(monet.applied(model).peak_bytes for model in planned)


def networks() -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    maker = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 6))
    return maker, nn.Sequential(nn.Linear(6, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))


@pytest.mark.parametrize(("concurrent", "judged"), [(1, (6, 3, 2)), (2, (9, 0, 2))])
def test_two_networks_against_each_other(concurrent: int, judged: tuple[int, int, int]) -> None:
    """Of the discriminator's calls on real and on made data, before their backward pass, one is planned for each arena;
    a plan more, for its call that trains the generator, is made while nothing is under way."""
    how = {**EXACT, "concurrent": concurrent}
    results = []
    for applied in (True, False):
        maker, judge = networks()
        if applied:
            monet.apply(maker, **how)
            monet.apply(judge, on_mismatch="replan", **how)
        optimizers = [torch.optim.SGD(net.parameters(), 0.1) for net in (maker, judge)]
        torch.manual_seed(1)
        for _ in range(3):
            real, noise = torch.randn(8, 6), torch.randn(8, 4)
            made = maker(noise)
            judge.zero_grad()
            (judge(made.detach()).mean() - judge(real).mean()).backward()
            optimizers[1].step()
            maker.zero_grad()
            (-judge(made).mean()).backward()
            optimizers[0].step()
        results.append([*maker.state_dict().values(), *judge.state_dict().values()])
        if applied:
            assert counts(maker) == (3, 0, 1)
            assert counts(judge) == judged
    assert equal(*results)


def test_a_plan_is_made_while_a_step_is_under_way() -> None:
    """A larger one, for which the arena of the step under way must not be given back."""
    planned, eager = pair()
    monet.apply(planned, on_mismatch="replan", **EXACT)
    small, large = batches(2, 8)
    for model in (planned, eager):
        one = model(small)
        other = model(large)
        for again in (small, large):
            model(again)  # without a plan: both arenas are in use
        one.square().sum().backward()
        other.square().sum().backward()
        del one, other
    assert equal(gradients(planned), gradients(eager))
    assert counts(planned) == (2, 2, 2)
    assert equal(train(planned, batches(8, 2)), train(eager, batches(8, 2)))
    assert counts(planned) == (4, 2, 2)


class Policy(nn.Module):
    """A body with a head for actions and one for values, as policies that are trained by rewards have."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.actions, self.values = nn.Linear(6, 16), nn.Linear(16, 3), nn.Linear(16, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = torch.tanh(self.body(x))
        return self.actions(hidden), self.values(hidden)


def test_a_policy_its_reference_and_rollouts_between() -> None:
    """Preferences: the chosen and the rejected answer in one loss, against a frozen reference, with rollouts without
    gradients while both steps are under way."""
    results = []
    for applied in (True, False):
        torch.manual_seed(0)
        policy = Policy()
        reference = copy.deepcopy(policy).requires_grad_(False)
        if applied:
            for model in (policy, reference):
                monet.apply(model, **EXACT)
        optimizer = torch.optim.AdamW(policy.parameters(), 1e-2)
        for _ in range(3):
            chosen, rejected = torch.randn(8, 6), torch.randn(8, 6)
            good, value = policy(chosen)
            bad, _ = policy(rejected)
            with torch.no_grad():
                policy(chosen)
            margin = (good - reference(chosen)[0]).sum(1) - (bad - reference(rejected)[0]).sum(1)
            loss = -nn.functional.logsigmoid(margin).mean() + value.square().mean()
            optimizer.zero_grad()
            loss.backward()
            del good, bad, value, margin, loss
            optimizer.step()
        results.append(list(policy.state_dict().values()))
        if applied:
            assert counts(policy) == (6, 0, 1) and counts(reference) == (0, 0, 0)
    assert equal(*results)


def test_gradients_that_add_up() -> None:
    planned, eager = pair()
    monet.apply(planned, accumulate=True, **EXACT)
    one, other = batches(8, 8)
    for model in (planned, eager):
        for _ in range(2):
            left, right = model(one).square().mean(), model(other).mean()
            left.backward()
            right.backward()
            del left, right
    assert equal(gradients(planned), gradients(eager))
    assert counts(planned) == (4, 0, 1)


def test_threads_never_share_an_arena() -> None:
    """Four of them over three arenas: whoever finds none free runs without a plan."""
    planned, eager = pair()
    monet.apply(planned, **{**EXACT, "concurrent": 3})
    planned(batches(8)[0]).sum().backward()
    data = batches(8, 8, 8, 8)
    expected = [torch.autograd.grad(eager(images).square().mean(), list(eager.parameters())) for images in data]
    barrier, wrong, failed = threading.Barrier(len(data)), [], []

    def steps(number: int) -> None:
        try:
            barrier.wait()
            for _ in range(5):
                loss = planned(data[number]).square().mean()
                if not equal(list(torch.autograd.grad(loss, list(planned.parameters()))), list(expected[number])):
                    wrong.append(number)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=steps, args=(number,)) for number in range(len(data))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed and not wrong
    assert sum(counts(planned)[:2]) == 21


def test_what_is_asked_wrongly() -> None:
    for wrong in (0, "2", True):
        with pytest.raises(ConfigError, match="concurrent"):
            monet.apply(nn.Linear(2, 2), budget=BUDGET, concurrent=wrong)  # type: ignore[arg-type]

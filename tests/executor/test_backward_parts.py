"""A backward pass in parts, as inside of ``DistributedDataParallel``: eager's gradients, whatever happens between."""

from __future__ import annotations

import copy
import gc
import itertools
import weakref

import pytest
import torch
from eager_reference import compare_steps, is_exact
from module_cases import CASES, case_model, case_plan, residual_images
from slow_cases import slow_but
from torch import nn

import monet
from monet.errors import ExecutionError, InfeasibleBudget
from monet.executor import parallel
from monet.executor.backward_parts import BackwardParts
from monet.executor.runner import Runner
from monet.native import allocator

pytestmark = [
    pytest.mark.usefixtures("hasty_orders"),
    pytest.mark.skipif(not allocator.available(), reason="no compiler"),
]


@pytest.fixture(autouse=True)
def parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each gradient leaves as soon as it can."""
    monkeypatch.setattr(parallel, "part_bytes", lambda: (1,))


def exact_module() -> tuple[monet.MonetModule, nn.Module]:
    """A planned module, and eager's with the same weights."""
    model = case_model("residual")
    return monet.MonetModule(model, case_plan("residual", "10GB", exact=True).plan), copy.deepcopy(model)


def gradients(module: nn.Module) -> list[torch.Tensor]:
    return [p.grad for p in module.parameters() if p.grad is not None]


@pytest.mark.parametrize("case", slow_but(["residual", "awkward"], CASES))
def test_steps_equal_eager(case: str) -> None:
    full = case_plan(case, "10GB", exact=True).plan
    try:
        plan = case_plan(case, full.fixed_bytes + full.arena_bytes * 8 // 10, exact=True).plan
    except InfeasibleBudget:
        plan = full
    planned = compare_steps(case_model(case), plan, CASES[case][1])
    assert is_exact(planned)
    assert len(planned._step.runner.code_in_parts((1,)).parts) > 2


def test_the_peak_is_that_without_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """``.grad`` takes the memory that a gradient has: nothing is copied."""
    planned, _ = exact_module()
    x = residual_images().detach().requires_grad_()
    peaks = []
    for sizes in (None, None, (1,), (1,)):
        monkeypatch.setattr(parallel, "part_bytes", lambda sizes=sizes: sizes)
        planned.zero_grad()
        x.grad = None
        gc.collect()
        base = allocator.live_bytes()
        allocator.reset_peak()
        out = planned(x)
        out.backward(torch.ones_like(out))
        peaks.append(allocator.peak_bytes() - base)
        del out
    assert peaks[1] == peaks[3]
    arena = planned._step.runner.arena
    assert arena is not None and all(arena.contains(g.data_ptr()) for g in gradients(planned))


def test_gradients_arrive_between_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    planned, _ = exact_module()
    events: list[str] = []
    run = Runner.part

    def part(self: Runner, parts: BackwardParts, number: int) -> dict[str, torch.Tensor]:
        events.append("part")
        return run(self, parts, number)

    monkeypatch.setattr(Runner, "part", part)
    for p in planned.parameters():
        p.register_post_accumulate_grad_hook(lambda _: events.append("gradient"))
    planned(residual_images()).sum().backward()
    pairs = list(itertools.pairwise(events))
    assert pairs.count(("gradient", "part")) > 3
    assert events.count("gradient") == len(gradients(planned))


def test_an_optimiser_inside_the_backward_pass() -> None:
    """It updates a parameter as soon as its gradient is there: no later step may read the parameter any more."""
    planned, eager = exact_module()

    def update(p: torch.Tensor) -> None:
        assert p.grad is not None
        with torch.no_grad():
            p -= 0.1 * p.grad
        p.grad = None

    for module in (planned, eager):
        for p in module.parameters():
            p.register_post_accumulate_grad_hook(update)
    for seed in range(3):
        for module in (planned, eager):
            module(residual_images(seed)).square().sum().backward()
    assert all(torch.equal(p, q) for p, q in zip(planned.parameters(), eager.parameters(), strict=True))


def test_gradients_of_some_parameters() -> None:
    planned, eager = exact_module()
    for index in range(len(list(eager.parameters()))):
        found, expected = [
            torch.autograd.grad(m(residual_images()).sum(), list(m.parameters())[index]) for m in (planned, eager)
        ]
        assert torch.equal(found[0], expected[0])
        assert not planned._step.runner.is_pending  # though parts may be left that nobody asked for


def test_the_step_keeps_nothing_that_it_was_given() -> None:
    """While its output is still there."""
    planned, _ = exact_module()
    out = planned(residual_images())
    given = torch.ones_like(out)
    gone = weakref.ref(given)
    out.backward(given)
    del given
    assert gone() is None


def test_an_exception_between_parts_ends_the_step() -> None:
    planned, eager = exact_module()

    class Interrupted(Exception):
        pass

    def refuse(_: torch.Tensor) -> None:
        raise Interrupted

    hook = planned.body[3].weight.register_post_accumulate_grad_hook(refuse)
    loss = planned(residual_images()).sum()
    with pytest.raises(Interrupted):
        loss.backward()
    hook.remove()
    with pytest.raises(RuntimeError):  # torch's or monet's: the step is over
        loss.backward()
    for module in (planned, eager):
        module.zero_grad()
        module(residual_images(1)).sum().backward()  # while the loss of the broken step is still there
    assert all(torch.equal(a, b) for a, b in zip(gradients(planned), gradients(eager), strict=True))


def test_a_forward_pass_between_parts_is_refused() -> None:
    planned, _ = exact_module()

    def call_again(_: torch.Tensor) -> None:
        with torch.enable_grad():
            planned(residual_images(1))

    planned.body[3].weight.register_post_accumulate_grad_hook(call_again)
    assert not planned._step.runner.is_pending
    loss = planned(residual_images()).sum()
    with pytest.raises(ExecutionError, match="earlier forward pass"):
        loss.backward()


def test_a_second_backward_pass_is_refused() -> None:
    planned, _ = exact_module()
    loss = planned(residual_images()).sum()
    loss.backward(retain_graph=True)
    with pytest.raises(ExecutionError, match="earlier forward pass"):
        loss.backward()


def test_an_input_that_is_changed_before_the_backward_pass() -> None:
    planned, _ = exact_module()
    loss = planned(residual_images()).sum()
    with torch.no_grad():
        planned.body[0].weight += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_an_input_without_the_gradient_that_was_planned() -> None:
    planned, eager = exact_module()
    for module in (planned, eager):
        module(residual_images().detach()).sum().backward()
    assert all(torch.equal(a, b) for a, b in zip(gradients(planned), gradients(eager), strict=True))


def test_a_tied_gradient_is_added_up_once() -> None:
    """A gradient that arrives in an earlier ``.grad`` is added to it, as eager's is."""
    planned, eager = exact_module()
    for module in (planned, eager):
        for seed in (0, 1):
            module(residual_images(seed)).sum().backward()
    assert all(torch.equal(a, b) for a, b in zip(gradients(planned), gradients(eager), strict=True))

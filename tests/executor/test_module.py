"""Planned steps against eager: results, peaks, and how a planned module behaves when it is misused."""

from __future__ import annotations

import copy
import threading
from typing import Any

import pytest
import torch
from eager_reference import compare_steps, is_exact
from module_cases import CASES, case_model, case_plan, images, residual_images
from slow_cases import slow_but
from small_models import Residual
from smallest_budget import at_smallest_budget

import monet
from monet.errors import InfeasibleBudget, PlanMismatch
from monet.pipeline.planning import PlanResult

pytestmark = pytest.mark.usefixtures("hasty_orders")


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[pytest.mark.slow] if case == "transformer" else []) for case in CASES]
)
@pytest.mark.sampled(2)
def test_steps_equal_eager_from_full_budget_to_smallest(case: str) -> None:
    model, make = case_model(case), CASES[case][1]
    full = case_plan(case, "10GB")
    tried = 0
    budgets: list[int] = [full.plan.peak_bytes]
    smallest = at_smallest_budget(lambda budget: case_plan(case, budget), full.plan.fixed_bytes + 1).plan.budget_bytes
    budgets += [smallest + (full.plan.peak_bytes - smallest) * share // 100 for share in (66, 33, 0)]
    for budget in budgets:
        result = case_plan(case, budget)
        assert result.plan.peak_bytes <= budget
        compare_steps(model, result.plan, make)
        tried += 1
    assert tried == 4


@pytest.mark.parametrize("case", slow_but([case for case in CASES if case != "transformer"], CASES))
def test_exact_plans_are_bitwise(case: str) -> None:
    full = case_plan(case, "10GB", exact=True).plan
    tight = full.fixed_bytes + full.arena_bytes * 8 // 10
    try:
        plan = case_plan(case, tight, exact=True).plan
    except InfeasibleBudget:
        plan = full
    planned = compare_steps(case_model(case), plan, CASES[case][1])
    assert is_exact(planned)


def test_same_parameters_names_and_modes(planned: monet.MonetModule) -> None:
    model = planned._model
    assert list(planned.state_dict()) == list(case_model("residual").state_dict())
    assert [id(p) for p in planned.parameters()] == [id(p) for p in model.parameters()]
    planned.eval()
    assert not model.training and not planned.training and not planned.stem[1].training
    planned.train()
    assert model.training and planned.stem[1].training
    planned.load_state_dict(case_model("residual").state_dict())
    assert planned.head is model.head


def test_evaluation_and_no_grad_call_the_model(planned: monet.MonetModule) -> None:
    eager = copy.deepcopy(planned._model)
    x = residual_images().detach()
    with torch.no_grad():
        assert torch.equal(planned(x), eager(x))
    for a, b in zip(planned.buffers(), eager.buffers(), strict=True):
        assert torch.equal(a, b)
    planned.eval(), eager.eval()
    assert torch.equal(planned(x[:3]), eager(x[:3]))  # any shape


def test_outputs_and_gradients_are_the_users(planned: monet.MonetModule) -> None:
    """A later step must not change what the user kept of an earlier one."""
    x = residual_images(0)
    first = planned(x)
    first.backward(torch.ones_like(first))
    assert x.grad is not None
    kept = [first.detach(), x.grad, *(p.grad for p in planned.parameters() if p.grad is not None)]
    copies = [t.clone() for t in kept]
    planned.zero_grad(set_to_none=True)
    other = planned(residual_images(1))
    other.backward(torch.randn_like(other))
    assert all(torch.equal(a, b) for a, b in zip(kept, copies, strict=True))


def test_gradients_accumulate(planned: monet.MonetModule) -> None:
    eager = copy.deepcopy(planned._model)
    for seed in range(3):
        for module in (planned, eager):
            out = module(residual_images(seed))
            out.backward(torch.ones_like(out))
    for p, q in zip(planned.parameters(), eager.parameters(), strict=True):
        assert p.grad is not None and q.grad is not None and torch.equal(p.grad, q.grad)


def test_two_planned_modules_and_an_eager_one_do_not_disturb_each_other(residual: PlanResult) -> None:
    one, two = (monet.MonetModule(case_model("residual"), residual.plan) for _ in range(2))
    eager = case_model("residual")
    outputs = [module(residual_images(0)) for module in (one, two, eager)]
    for out in reversed(outputs):
        out.backward(torch.ones_like(out))
    for p, q, r in zip(one.parameters(), two.parameters(), eager.parameters(), strict=True):
        assert p.grad is not None and q.grad is not None and r.grad is not None
        assert torch.equal(p.grad, r.grad) and torch.equal(q.grad, r.grad)


def test_other_threads_keep_pytorchs_allocator(planned: monet.MonetModule) -> None:
    """While steps run, another thread's tensors are never served from the arena."""
    arena = planned._step.runner.arena
    assert arena is not None
    wrong: list[int] = []
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            for size in {r for s in planned.plan.steps for r in s.request_bytes}:
                tensor = torch.empty(size, dtype=torch.uint8)
                if arena.contains(tensor.data_ptr()):
                    wrong.append(size)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for seed in range(5):
            out = planned(residual_images(seed))
            out.backward(torch.ones_like(out))
    finally:
        stop.set()
        thread.join()
    assert not wrong and arena.statistics().misses == 0


def test_data_loader_workers(planned: monet.MonetModule) -> None:
    class Images(torch.utils.data.Dataset[torch.Tensor]):
        def __len__(self) -> int:
            return 16

        def __getitem__(self, index: int) -> torch.Tensor:
            return torch.full((3, 32, 32), float(index))

    for batch in torch.utils.data.DataLoader(Images(), batch_size=8, num_workers=2):
        out = planned(batch.requires_grad_())
        out.backward(torch.ones_like(out))
    arena = planned._step.runner.arena
    assert arena is not None and arena.statistics().misses == 0


def test_a_copy_has_its_own_arena(planned: monet.MonetModule) -> None:
    twin = copy.deepcopy(planned)
    assert twin._step.runner.arena is not planned._step.runner.arena
    a, b = planned(residual_images()), twin(residual_images())
    for out in (a, b):
        out.sum().backward()
    for p, q in zip(planned.parameters(), twin.parameters(), strict=True):
        assert p is not q and p.grad is not None and q.grad is not None and torch.equal(p.grad, q.grad)
    del twin
    planned(residual_images()).sum().backward()


def test_exception_in_the_loss_leaves_the_next_step_right(planned: monet.MonetModule) -> None:
    eager = copy.deepcopy(planned._model)
    try:
        out = planned(residual_images(0))
        raise ValueError("in the user's loss")
    except ValueError:
        pass
    eager(residual_images(0))
    result, expected = planned(residual_images(1)), eager(residual_images(1))  # ``out`` is still referenced here
    result.sum().backward()  # an expanded gradient
    expected.sum().backward()
    assert torch.equal(result, expected)
    for p, q in zip(planned.parameters(), eager.parameters(), strict=True):
        assert p.grad is not None and q.grad is not None and torch.equal(p.grad, q.grad)
    del out


def test_exception_inside_the_step_leaves_the_next_step_right(planned: monet.MonetModule) -> None:
    names = [n for n, f in planned._step.runner.code.forward.__globals__.items() if n.startswith("f_")]
    space = planned._step.runner.code.forward.__globals__
    name = names[-1]
    real = space[name]

    def broken(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    space[name] = broken
    with pytest.raises(KeyboardInterrupt):
        planned(residual_images(0)).sum().backward()
    space[name] = real
    reference = monet.MonetModule(copy.deepcopy(planned._model), planned.plan)
    a, b = planned(residual_images(1)), reference(residual_images(1))
    a.sum().backward(), b.sum().backward()
    for p, q in zip(planned.parameters(), reference.parameters(), strict=True):
        assert p.grad is not None and q.grad is not None and torch.equal(p.grad, q.grad)


def test_channels_last_input_is_copied(planned: monet.MonetModule) -> None:
    eager = copy.deepcopy(planned._model)
    x = residual_images().detach()
    planned(x.contiguous(memory_format=torch.channels_last)).sum().backward()
    eager(x).sum().backward()
    for p, q in zip(planned.parameters(), eager.parameters(), strict=True):
        assert p.grad is not None and q.grad is not None and torch.equal(p.grad, q.grad)


def test_frozen_parameters() -> None:
    model = Residual(16)
    for p in model.stem.parameters():
        p.requires_grad_(False)
    make = images(4, 3, 16, 16)
    plan = monet.plan(model, make(0)[0], budget="1GB")
    compare_steps(model, plan, make)
    planned = monet.MonetModule(model, plan)
    model.stem[0].weight.requires_grad_(True)
    with pytest.raises(PlanMismatch, match="requires_grad"):
        planned(make(0)[0][0])

"""Planned steps against eager: results, peaks, and how a planned module behaves when it is misused."""

from __future__ import annotations

import copy
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from eager_reference import compare_steps, is_exact
from module_cases import CASES, case_model, case_plan, images
from repository import ROOT
from small_models import Residual
from smallest_budget import at_smallest_budget
from torch import nn

import monet
from monet.api import plan_model
from monet.errors import CaptureError, ExecutionError, InfeasibleBudget, PlanMismatch
from monet.ops.catalogue import Catalogue
from monet.ops.measuring.profiling import Profile, implementations, profile
from monet.ops.measuring.signature import signature
from monet.ops.offers.implementation import Implementation
from monet.pipeline.planning import PlanResult, plan_smallest
from monet.pipeline.preparation import prepare
from monet.planner.search import smallest_plan

pytestmark = pytest.mark.usefixtures("hasty_orders")


@pytest.mark.parametrize("case", CASES)
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


@pytest.mark.parametrize("case", CASES)
def test_exact_plans_are_bitwise(case: str) -> None:
    full = case_plan(case, "10GB", exact=True).plan
    tight = full.fixed_bytes + full.arena_bytes * 8 // 10
    try:
        plan = case_plan(case, tight, exact=True).plan
    except InfeasibleBudget:
        plan = full
    planned = compare_steps(case_model(case), plan, CASES[case][1])
    assert is_exact(planned)


@pytest.mark.parametrize("case", CASES)
def test_measured_peak_is_the_promised_one_in_bytes(case: str) -> None:
    """In a fresh process, so that nothing else is counted."""
    script = ROOT / "tests" / "support" / "peak_of_step.py"
    done = subprocess.run([sys.executable, str(script), case], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    measured, promised = map(int, done.stdout.split())
    assert measured == promised


@pytest.fixture(scope="module")
def residual() -> PlanResult:
    return case_plan("residual", "10GB")


@pytest.fixture
def planned(residual: PlanResult) -> monet.MonetModule:
    return monet.MonetModule(case_model("residual"), residual.plan)


def _x(seed: int = 0) -> torch.Tensor:
    return CASES["residual"][1](seed)[0][0]


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
    x = _x().detach()
    with torch.no_grad():
        assert torch.equal(planned(x), eager(x))
    for a, b in zip(planned.buffers(), eager.buffers(), strict=True):
        assert torch.equal(a, b)
    planned.eval(), eager.eval()
    assert torch.equal(planned(x[:3]), eager(x[:3]))  # any shape


def test_outputs_and_gradients_are_the_users(planned: monet.MonetModule) -> None:
    """A later step must not change what the user kept of an earlier one."""
    x = _x(0)
    first = planned(x)
    first.backward(torch.ones_like(first))
    assert x.grad is not None
    kept = [first.detach(), x.grad, *(p.grad for p in planned.parameters() if p.grad is not None)]
    copies = [t.clone() for t in kept]
    planned.zero_grad(set_to_none=True)
    other = planned(_x(1))
    other.backward(torch.randn_like(other))
    assert all(torch.equal(a, b) for a, b in zip(kept, copies, strict=True))


def test_gradients_accumulate(planned: monet.MonetModule) -> None:
    eager = copy.deepcopy(planned._model)
    for seed in range(3):
        for module in (planned, eager):
            out = module(_x(seed))
            out.backward(torch.ones_like(out))
    for p, q in zip(planned.parameters(), eager.parameters(), strict=True):
        assert p.grad is not None and q.grad is not None and torch.equal(p.grad, q.grad)


def test_two_planned_modules_and_an_eager_one_do_not_disturb_each_other(residual: PlanResult) -> None:
    one, two = (monet.MonetModule(case_model("residual"), residual.plan) for _ in range(2))
    eager = case_model("residual")
    outputs = [module(_x(0)) for module in (one, two, eager)]
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
            out = planned(_x(seed))
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
    a, b = planned(_x()), twin(_x())
    for out in (a, b):
        out.sum().backward()
    for p, q in zip(planned.parameters(), twin.parameters(), strict=True):
        assert p is not q and p.grad is not None and q.grad is not None and torch.equal(p.grad, q.grad)
    del twin
    planned(_x()).sum().backward()


def test_second_forward_before_backward(planned: monet.MonetModule) -> None:
    first = planned(_x(0))
    second = planned(_x(1))
    with pytest.raises(ExecutionError, match="one step at a time"):
        first.backward(torch.ones_like(first))
    assert all(p.grad is None for p in planned.parameters())
    second.backward(torch.ones_like(second))


def test_backward_twice(planned: monet.MonetModule) -> None:
    out = planned(_x())
    out.backward(torch.ones_like(out), retain_graph=True)
    with pytest.raises((ExecutionError, RuntimeError)):
        out.backward(torch.ones_like(out))


def test_second_derivative_is_refused(planned: monet.MonetModule) -> None:
    x = _x()
    (gradient,) = torch.autograd.grad(planned(x).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError):
        gradient.sum().backward()


def test_exception_in_the_loss_leaves_the_next_step_right(planned: monet.MonetModule) -> None:
    eager = copy.deepcopy(planned._model)
    try:
        out = planned(_x(0))
        raise ValueError("in the user's loss")
    except ValueError:
        pass
    eager(_x(0))
    result, expected = planned(_x(1)), eager(_x(1))  # ``out`` is still referenced here
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
        planned(_x(0)).sum().backward()
    space[name] = real
    reference = monet.MonetModule(copy.deepcopy(planned._model), planned.plan)
    a, b = planned(_x(1)), reference(_x(1))
    a.sum().backward(), b.sum().backward()
    for p, q in zip(planned.parameters(), reference.parameters(), strict=True):
        assert p.grad is not None and q.grad is not None and torch.equal(p.grad, q.grad)


def test_parameter_changed_before_backward(planned: monet.MonetModule) -> None:
    out = planned(_x())
    with torch.no_grad():
        next(planned.parameters()).add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda x: x[:4], "shape"),
        (lambda x: x.double(), "float64"),
        (lambda x: x.detach(), None),
    ],
)
def test_inputs_unlike_the_plan(
    planned: monet.MonetModule, change: Callable[[torch.Tensor], torch.Tensor], said: str | None
) -> None:
    if said is None:
        planned(change(_x())).sum().backward()  # needs less than planned
        return
    with pytest.raises(PlanMismatch, match=said):
        planned(change(_x()))


def test_wrong_structure(planned: monet.MonetModule) -> None:
    with pytest.raises(PlanMismatch):
        planned(_x(), _x())


def test_channels_last_input_is_copied(planned: monet.MonetModule) -> None:
    eager = copy.deepcopy(planned._model)
    x = _x().detach()
    planned(x.contiguous(memory_format=torch.channels_last)).sum().backward()
    eager(x).sum().backward()
    for p, q in zip(planned.parameters(), eager.parameters(), strict=True):
        assert p.grad is not None and q.grad is not None and torch.equal(p.grad, q.grad)


def test_replaced_submodule(planned: monet.MonetModule) -> None:
    planned._model.head = nn.Linear(16, 5)
    with pytest.raises(PlanMismatch, match="head"):
        planned(_x())


def test_plan_of_another_model(residual: PlanResult) -> None:
    with pytest.raises(PlanMismatch, match="another model"):
        monet.MonetModule(Residual(8), residual.plan)
    with pytest.raises(PlanMismatch, match="another model"):
        monet.MonetModule(nn.Sequential(nn.Conv2d(3, 4, 3)), residual.plan)


def test_plan_for_other_threads(residual: PlanResult) -> None:
    planned = monet.MonetModule(case_model("residual"), residual.plan)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(before + 1)
        with pytest.raises(PlanMismatch, match="threads"):
            planned(_x())
        with pytest.raises(PlanMismatch, match="threads"):
            monet.MonetModule(case_model("residual"), residual.plan)
    finally:
        torch.set_num_threads(before)


def test_frozen_batch_norm_is_another_plan(planned: monet.MonetModule) -> None:
    planned.stem[1].eval()
    with pytest.raises(PlanMismatch, match=r"stem\.1"):
        planned(_x())


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


def test_nothing_to_train() -> None:
    model = nn.Linear(3, 3).requires_grad_(False)
    with pytest.raises(CaptureError, match="nothing to train"):
        monet.plan(model, (torch.randn(2, 3),), budget="1GB")


def test_untraceable_model_names_the_line() -> None:
    class Branch(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.linear(x)
            return y if y.sum() > 0 else -y

    with pytest.raises(CaptureError, match=r"test_step\.py"):
        monet.plan(Branch(), (torch.randn(2, 3),), budget="1GB")


def test_planning_changes_nothing() -> None:
    model = case_model("residual")
    before = {k: v.clone() for k, v in model.state_dict().items()}
    state = torch.get_rng_state()
    monet.plan(model, CASES["residual"][1](0)[0], budget="10GB")
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters()) and model.training


def test_equal_inputs_give_equal_plan_files(tmp_path: Any) -> None:
    """Same profile (cached), same seed, a solve that ends by itself."""
    texts, (args, kwargs) = [], CASES["residual"][1](0)
    for i in range(2):
        plan_model(case_model("residual"), args, kwargs, "97%", gap=0.02, time_limit_s=20).plan.save(
            tmp_path / f"{i}.json"
        )
        texts.append((tmp_path / f"{i}.json").read_bytes())
    assert texts[0] == texts[1]


def _costs_by_bytes(offers: Catalogue, **options: Any) -> Profile:
    """Real requests of memory, but times that only depend on sizes: plans then do not hang on the timer's noise."""
    measured = profile(offers, **options)
    times = {signature(i, offers.values): _seconds(i, offers) for i in implementations(offers)}
    return replace(
        measured, measurements={key: replace(found, time_s=times[key]) for key, found in measured.measurements.items()}
    )


def _seconds(implementation: Implementation, offers: Catalogue) -> float:
    names = [*implementation.inputs(), *(n for n in implementation.outputs if n is not None)]
    return sum(offers.values[name].storage_bytes for name in names) / 1e9


def test_the_smallest_plan_is_not_the_slowest(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search for memory alone runs for nothing again what its peak does not need."""
    monkeypatch.setattr("monet.pipeline.preparation.profile", _costs_by_bytes)
    args, kwargs = CASES["residual"][1](0)
    prepared = prepare(case_model("residual"), args, kwargs)
    smallest = plan_smallest(prepared, time_limit_s=10)
    alone = smallest_plan(prepared.problem, time_limit_s=10)
    assert smallest.summary["objective_s"] < alone.solution.objective_s
    assert smallest.plan.peak_bytes <= 1.01 * alone.solution.peak_bytes
    assert smallest.summary["bound_bytes"] <= smallest.plan.peak_bytes == smallest.plan.budget_bytes


def test_scale_too_small_for_the_plan_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan that takes a gradient from an output divides by the scale; a zero scale must not pass silently."""
    monkeypatch.setattr("monet.pipeline.preparation.profile", _costs_by_bytes)
    layers = [m for _ in range(5) for m in (nn.Conv2d(8, 8, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU())]
    model = nn.Sequential(*layers)
    x = torch.randn(4, 8, 16, 16)
    full = plan_model(model, (x,), {}, "10GB").plan
    for share in range(90, 40, -10):
        budget = full.fixed_bytes + full.arena_bytes * share // 100
        plan = plan_model(model, (x,), {}, budget, gap=0.0, time_limit_s=10).plan
        if any(step.implementation == "from-output" for step in plan.steps):
            break
    else:
        pytest.fail("no budget made the planner take a batch norm's gradient from its output")
    planned = monet.MonetModule(model, plan)
    planned(x).sum().backward()
    for m in layers:
        if isinstance(m, nn.BatchNorm2d):
            m.weight.data[0] = 0.0
    with pytest.raises(PlanMismatch, match="exact"):
        planned(x)
    exact = monet.MonetModule(model, plan_model(model, (x,), {}, "10GB", exact=True).plan)
    exact(x).sum().backward()

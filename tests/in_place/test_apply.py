"""``monet.apply``: the model stays what it is, and its training calls run by a plan, bit by bit eager's."""

from __future__ import annotations

import copy
import inspect
import io
import pickle
from typing import Any

import pytest
import torch
from loop_cases import BUDGET, HASTE, batches, equal, pair, told, train
from small_models import Residual
from torch import Tensor, nn

import monet
from monet.base.amounts import format_exactly
from monet.errors import ConfigError, InfeasibleBudget, PlanMismatch

pytestmark = pytest.mark.usefixtures("hasty_orders")


def applied_pair(**options: Any) -> tuple[Residual, Residual]:
    planned, eager = pair()
    monet.apply(planned, budget=BUDGET, exact=True, **HASTE, **options)
    return planned, eager


def counts(model: nn.Module) -> tuple[int, int, int]:
    found = monet.applied(model)
    return found.planned_calls, found.eager_calls, len(found.plans)


def test_a_loop_with_a_last_smaller_batch(caplog: pytest.LogCaptureFixture) -> None:
    data = batches(8, 8, 3) * 2
    planned, eager = applied_pair()
    assert equal(train(planned, data), train(eager, data))
    assert counts(planned) == (6, 0, 2) and not told(caplog)
    planned, eager = applied_pair(dynamic=None)
    assert equal(train(planned, data), train(eager, data))
    assert counts(planned) == (4, 2, 1)
    (sentence,) = told(caplog)
    assert "input 0 has shape (3, 3, 16, 16)" in sentence and "outside of the budget" in sentence


def test_what_stands_prints_itself() -> None:
    planned, _ = pair()
    monet.apply(planned, budget="97%", exact=True, dynamic=None, **HASTE)
    found = monet.applied(planned)
    assert repr(found) == "<Applied to Residual: 0 plans, 0 calls by plans and 0 without>"
    assert str(found).splitlines()[1:] == [
        "budget       97% of eager's peak",
        "plans        none yet: the first is made at the first training call",
        "calls        0 by a plan, 0 without one",
    ]
    train(planned, batches(8, 8, 3))
    (plan,) = found.plans
    assert repr(found) == (
        "<Applied to Residual: 1 plan, 2 calls by plans and 1 without, "
        f"peak {plan.peak_bytes:,} of {plan.budget_bytes:,} bytes>"
    )
    head, budget, peak, plans, calls, reason = str(found).splitlines()
    assert head == "Residual, its training calls by plans"
    assert budget.endswith(f"eager's peak in the first planned step, {format_exactly(plan.budget_bytes, 'TB')}")
    assert peak == f"peak         {format_exactly(plan.peak_bytes, 'TB')} promised"
    assert plans == "plans        1, on_mismatch='eager', max_plans=8"
    assert calls == "calls        2 by a plan, 1 without one"
    assert reason.startswith("without one  input 0 has shape (3, 3, 16, 16)")


def test_a_refusal_stands_there_too() -> None:
    planned, _ = pair()
    monet.apply(planned, budget="30%", exact=True, dynamic=None, **HASTE)
    (images,) = batches(8)
    with pytest.raises(InfeasibleBudget) as refused:
        planned(images)
    assert f"plans        none: {refused.value}" in str(monet.applied(planned))


def test_planning_changes_nothing_but_what_the_call_changes() -> None:
    planned, eager = applied_pair()
    (images,) = batches(8)
    torch.manual_seed(3)
    planned(images)
    state = torch.get_rng_state()
    torch.manual_seed(3)
    eager(images)
    assert torch.equal(state, torch.get_rng_state())
    assert equal(list(planned.state_dict().values()), list(eager.state_dict().values()))


def test_the_model_stays_what_it_is() -> None:
    planned, eager = applied_pair()
    train(planned, batches(8))
    assert type(planned) is Residual and inspect.signature(planned.forward) == inspect.signature(eager.forward)
    assert list(planned.state_dict()) == list(eager.state_dict())
    assert [name for name, _ in planned.named_modules()] == [name for name, _ in eager.named_modules()]
    assert "forward" not in vars(planned)


def test_evaluation_and_calls_without_gradients_run_the_model_itself() -> None:
    planned, eager = applied_pair()

    def evaluate(model: Residual) -> None:
        with torch.no_grad():
            model(images)  # in training mode
        model.eval()
        model(images).sum().backward()
        model.zero_grad()
        model.train()

    (images,) = batches(5)
    data = batches(8, 8)
    one = train(planned, data, between=lambda: evaluate(planned))
    assert equal(one, train(eager, data, between=lambda: evaluate(eager)))
    assert counts(planned) == (2, 0, 1)


def test_hooks_of_the_model_are_called_once_a_call() -> None:
    planned, eager = applied_pair()
    (images,) = batches(8)
    logs: list[list[Any]] = []
    for model in (planned, eager):
        log: list[Any] = []
        logs.append(log)

        def before(module: nn.Module, args: Any, log: list[Any] = log) -> Any:
            log.append(("before", type(module), len(args)))
            return (args[0] * 2,)

        def after(module: nn.Module, args: Any, kwargs: Any, out: Tensor, log: list[Any] = log) -> Tensor:
            log.append(("after", vars(module).get("forward"), out.detach()))
            return out + 1

        def backward(module: nn.Module, into: Any, out: Any, log: list[Any] = log) -> None:
            log.append(("backward", out[0]))

        model.register_forward_pre_hook(before)
        model.register_forward_hook(after, with_kwargs=True)
        model.register_full_backward_hook(backward)
        for _ in range(2):
            model.zero_grad()
            model(images).square().sum().backward()
    assert [entry[0] for entry in logs[0]] == ["before", "after", "backward"] * 2
    for one, other in zip(*logs, strict=True):
        assert all(torch.equal(a, b) if isinstance(a, Tensor) else a == b for a, b in zip(one, other, strict=True))
    assert equal([p.grad for p in planned.parameters()], [p.grad for p in eager.parameters()])  # type: ignore[misc]
    assert counts(planned) == (2, 0, 1)


def test_copies_and_pickles_are_plain_models() -> None:
    planned, eager = applied_pair()
    train(planned, batches(8))
    train(eager, batches(8))
    file = io.BytesIO()
    torch.save(planned, file)
    file.seek(0)
    copies = [copy.deepcopy(planned), pickle.loads(pickle.dumps(planned)), torch.load(file, weights_only=False)]
    copies.append(torch.optim.swa_utils.AveragedModel(planned).module)  # as an average of weights makes it
    expected = train(copy.deepcopy(eager), batches(8))
    for other in copies:
        assert other._compiled_call_impl is None
        assert equal(train(other, batches(8)), expected)
    assert equal(train(planned, batches(8)), expected)
    assert counts(planned) == (2, 0, 1)


class CopiesAll(Residual):
    """Copied with all that it holds."""

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__.copy()


def test_a_class_that_copies_all_that_it_holds() -> None:
    model = CopiesAll()
    monet.apply(model, budget=BUDGET, **HASTE)
    assert copy.deepcopy(model)._compiled_call_impl is None
    assert pickle.loads(pickle.dumps(model))._compiled_call_impl is None


def test_a_ready_plan_its_file_and_removal(tmp_path: Any) -> None:
    planned, eager = pair()
    plan = monet.plan(planned, batches(8)[0], budget=BUDGET, exact=True, time_limit_s=2)
    plan.save(tmp_path / "a.plan.json")
    monet.apply(planned, tmp_path / "a.plan.json")
    assert monet.applied(planned).plans == (plan,)
    assert equal(train(planned, batches(8, 8)), train(eager, batches(8, 8)))
    assert counts(planned) == (2, 0, 1)
    pending = planned(batches(8)[0])
    monet.remove(planned)
    pending.sum().backward()  # what is under way can be finished
    assert planned._compiled_call_impl is None
    with pytest.raises(ConfigError, match="not called"):
        monet.remove(planned)


def test_functional_calls_and_transforms() -> None:
    planned, eager = applied_pair()
    (images,) = batches(8)
    results = []
    for model in (planned, eager):
        other = {name: (p.detach() * 2).requires_grad_() for name, p in model.named_parameters()}
        torch.func.functional_call(model, other, (images,)).square().sum().backward()
        results.append([*(p.grad for p in other.values()), *model.buffers()])
    assert equal(*results)  # type: ignore[arg-type]
    assert counts(planned) == (1, 0, 1)

    linear = nn.Linear(4, 4)
    monet.apply(linear, budget=BUDGET, **HASTE)

    def loss(parameters: dict[str, Tensor]) -> Tensor:
        total: Tensor = torch.func.functional_call(linear, parameters, (torch.ones(2, 4),)).square().sum()
        return total

    assert set(torch.func.grad(loss)({n: p.detach() for n, p in linear.named_parameters()})) == {"weight", "bias"}
    assert counts(linear) == (0, 0, 0)


def test_a_checkpoint_around_the_model_runs_it_itself() -> None:
    planned, eager = applied_pair()
    (images,) = batches(8)
    for model in (planned, eager):
        torch.utils.checkpoint.checkpoint(model, images, use_reentrant=False).square().sum().backward()
    assert equal([p.grad for p in planned.parameters()], [p.grad for p in eager.parameters()])  # type: ignore[misc]


@pytest.mark.parametrize("wrap", [lambda m: torch.compile(m, backend="eager"), nn.DataParallel], ids=["compiled", "dp"])
def test_what_stands_around_a_model_is_refused(wrap: Any) -> None:
    with pytest.raises(ConfigError, match="stands around"):
        monet.apply(wrap(Residual()), budget=BUDGET)


def test_what_is_asked_wrongly() -> None:
    model = Residual()
    with pytest.raises(TypeError, match="did you mean 'exact'"):
        monet.apply(model, budget=BUDGET, exakt=True)
    with pytest.raises(TypeError, match="did you mean 'budget'"):
        monet.apply(model, bugdet=BUDGET)
    with pytest.raises(TypeError, match="exactly one"):
        monet.apply(model)
    with pytest.raises(ConfigError, match="not an amount"):
        monet.apply(model, budget="lots")
    with pytest.raises(ConfigError, match="on_mismatch"):
        monet.apply(model, budget=BUDGET, on_mismatch="ignore")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="max_plans"):
        monet.apply(model, budget=BUDGET, max_plans=0)
    with pytest.raises(ConfigError, match="max_plans"):
        monet.apply(model, budget=BUDGET, max_plans="many")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"must be a torch\.nn\.Module, not a str"):
        monet.apply("model", budget=BUDGET)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"new_group.*not 'gloo'"):
        monet.apply(model, budget=BUDGET, process_group="gloo")
    with pytest.raises(ConfigError, match="not called"):
        monet.applied(model)
    assert model._compiled_call_impl is None


def test_a_budget_that_is_too_small_is_an_error_of_the_first_call() -> None:
    model = Residual()
    monet.apply(model, budget="20kB", **HASTE)
    for _ in range(2):
        with pytest.raises(monet.InfeasibleBudget):
            model(batches(8)[0])
    model.eval()(batches(8)[0])


def test_a_plan_of_another_model_is_refused_at_once() -> None:
    plan = monet.plan(Residual(), batches(8)[0], budget=BUDGET, time_limit_s=2)
    with pytest.raises(PlanMismatch):
        monet.apply(Residual(12), plan)

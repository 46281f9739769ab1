"""Calls that are not as planned: run without a plan, planned too, or refused; never wrong."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from loop_cases import BUDGET, HASTE, batches, equal, pair, told, train
from torch import Tensor, nn

import monet
from monet.api.in_place import plan_source, training_calls
from monet.api.in_place.call_geometry import call_geometry, input_geometry, quick_key
from monet.api.in_place.model_walk import ModelWalk
from monet.errors import CaptureError, PlanMismatch
from monet.executor.runner import Runner
from monet.native import allocator

pytestmark = pytest.mark.usefixtures("hasty_orders")

EXACT: dict[str, Any] = {"budget": BUDGET, "exact": True, **HASTE}


def counts(model: nn.Module) -> tuple[int, int, int]:
    found = monet.applied(model)
    return found.planned_calls, found.eager_calls, len(found.plans)


def test_every_shape_is_planned(caplog: pytest.LogCaptureFixture) -> None:
    planned, eager = pair()
    monet.apply(planned, on_mismatch="replan", max_plans=3, dynamic=None, **EXACT)
    data = batches(4, 8, 2, 8, 4, 5, 6, 2)
    assert equal(train(planned, data), train(eager, data))
    assert counts(planned) == (6, 2, 3)
    (sentence,) = told(caplog)
    assert "max_plans=3 plans already, give a larger number" in sentence and "replan" not in sentence


@pytest.mark.skipif(not allocator.available(), reason="there is no C++ compiler")
@pytest.mark.slow
def test_plans_share_an_arena_of_the_largest_size() -> None:
    model, _ = pair()
    monet.apply(model, on_mismatch="replan", **EXACT)
    train(model, batches(4))
    gc.collect()
    before, first = allocator.live_bytes(), monet.applied(model).plans[0].arena_bytes
    train(model, batches(2, 8, 4))
    gc.collect()
    largest = max(plan.arena_bytes for plan in monet.applied(model).plans)
    gradients = 2 * sum(p.nbytes for p in model.parameters())  # of the last step, held beside the arena in whole pages
    assert largest > first and allocator.live_bytes() - before <= largest - first + gradients + 64 * 4096
    monet.remove(model)
    model.zero_grad()
    gc.collect()
    assert allocator.live_bytes() < before


def _autocast(model: nn.Module) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return model(batches(8)[0])


def _threads(model: nn.Module) -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    try:
        return model(batches(8)[0])
    finally:
        torch.set_num_threads(before)


def _mode(model: nn.Module) -> Any:
    model.get_submodule("body.1").eval()
    return model(batches(8)[0])


def _frozen(model: nn.Module) -> Any:
    model.get_submodule("body").requires_grad_(False)
    return model(batches(8)[0])


def _replaced(model: nn.Module) -> Any:
    model.head = nn.Linear(8, 5)
    return model(batches(8)[0])


def _forward(model: nn.Module) -> Any:
    forward = model.forward
    model.forward = lambda x: forward(x) * 2
    return model(batches(8)[0])


def _structure(model: nn.Module) -> Any:
    return model(x=batches(8)[0])


OTHERS = {
    "autocast": (_autocast, "autocast is on with bfloat16"),
    "threads": (_threads, "threads"),
    "mode": (_mode, "submodule 'body.1' is in evaluation mode"),
    "frozen": (_frozen, "requires_grad=False"),
    "replaced": (_replaced, "submodule 'head' was replaced"),
    "forward": (_forward, "forward of the model was replaced"),
    "structure": (_structure, "is called with"),
}


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("rule", ["eager", "replan", "error"])
@pytest.mark.sampled(2)
def test_what_is_not_as_planned(other: str, rule: Any, caplog: pytest.LogCaptureFixture) -> None:
    call, sentence = OTHERS[other]
    planned, eager = pair()
    monet.apply(planned, on_mismatch=rule, **EXACT)
    train(planned, batches(8))
    train(eager, batches(8))
    if rule == "error":
        with pytest.raises(PlanMismatch, match="Residual") as refused:
            call(planned)
        assert sentence in str(refused.value)
        return
    results: list[list[Tensor]] = []
    for model in (planned, eager):
        model.zero_grad()
        torch.manual_seed(2)
        out = call(model)
        out.float().square().sum().backward()
        results.append([out.detach(), *(p.grad for p in model.parameters() if p.grad is not None)])
    assert equal(*results)
    if rule == "eager":
        assert counts(planned) == (1, 1, 1)
        (said,) = told(caplog)
        assert sentence in said and said.endswith('; on_mismatch="replan" would plan for such calls, too (told once)')
    else:
        assert counts(planned)[:2] == (2, 0) and not told(caplog)


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.drop = nn.Linear(8, 8), nn.Dropout(0.5)

    def forward(self, x: Tensor, factor: float = 1.0, extra: Any = None) -> Tensor:
        out: Tensor = self.linear(self.drop(torch.relu(self.linear(x)))) * factor
        return out


def test_numbers_are_part_of_a_plan_and_objects_are_of_none(caplog: pytest.LogCaptureFixture) -> None:
    model = Two()
    monet.apply(model, **EXACT)
    x = torch.randn(4, 8)
    for factor in (1.0, 2.0, 1.0, 3.0):
        model(x, factor=factor).sum().backward()
        model.zero_grad()
    assert counts(model) == (2, 2, 1)
    model(x, factor=1.0, extra=object()).sum().backward()
    assert counts(model) == (2, 3, 1)
    assert ["an object" in sentence for sentence in told(caplog)] == [False, True]
    assert ["on_mismatch" in sentence for sentence in told(caplog)] == [True, False]


def test_a_second_forward_before_the_backward(caplog: pytest.LogCaptureFixture) -> None:
    """A contrastive loss: both calls' gradients are eager's, whichever comes first backward."""
    planned, eager = pair()
    monet.apply(planned, **EXACT)
    first, second = batches(8, 8)
    train(planned, [first])
    train(eager, [first])
    for model in (planned, eager):
        model.zero_grad()
        one, other = model(first), model(second)
        other.square().sum().backward()
        (one * 3).sum().backward()
    assert equal([p.grad for p in planned.parameters()], [p.grad for p in eager.parameters()])  # type: ignore[misc]
    assert counts(planned) == (2, 1, 1)
    assert "before the backward pass" in caplog.text
    del one, other
    train(planned, [first])
    assert counts(planned) == (3, 1, 1)


def test_a_step_that_is_given_up_is_not_waited_for() -> None:
    planned, _ = pair()
    monet.apply(planned, **EXACT)
    for _ in range(3):
        planned(batches(8)[0])  # its graph dies at once
    assert counts(planned) == (3, 0, 1)


def test_two_backward_passes_are_an_error() -> None:
    planned, _ = pair()
    monet.apply(planned, **EXACT)
    out = planned(batches(8)[0]).sum()
    out.backward(retain_graph=True)
    with pytest.raises(monet.MonetError, match="retain_graph"):
        out.backward()


def test_micro_batches_add_up(caplog: pytest.LogCaptureFixture) -> None:
    planned, eager = pair()
    monet.apply(planned, accumulate=True, **EXACT)
    for model in (planned, eager):
        for images in batches(8, 8, 8):
            (model(images).square().mean() / 3).backward()
    assert equal([p.grad for p in planned.parameters()], [p.grad for p in eager.parameters()])  # type: ignore[misc]
    assert counts(planned) == (3, 0, 1) and not told(caplog)


def test_a_share_is_of_the_first_planned_step() -> None:
    """Every later plan is for those bytes, and so is the second start, which finds all of them."""
    for _ in range(2):
        model, _ = pair()
        monet.apply(model, budget="97%", on_mismatch="replan", dynamic=None, exact=True, **HASTE)
        train(model, batches(8, 4, 3))
        plans = monet.applied(model).plans
        solver = plans[0].solver
        full = max(solver["eager_peak_bytes"], solver["baseline_peak_bytes"])
        assert [plan.budget_bytes for plan in plans] == [full * 97 // 100] * 3


def test_a_larger_batch_that_does_not_fit(caplog: pytest.LogCaptureFixture) -> None:
    planned, _ = pair()
    monet.apply(planned, budget="1MB", on_mismatch="replan", **HASTE)
    train(planned, batches(4, 64, 64, 4))
    assert counts(planned) == (2, 2, 1)
    (said,) = [sentence for sentence in told(caplog) if "no plan can be made" in sentence]
    assert "on_mismatch" not in said and "The smallest budget known to work" in said


def test_the_second_start_plans_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {**EXACT, "gap": 0.0123}  # of no other test
    made: list[str] = []
    before = plan_source.PlanSource.__init__

    def counting(self: Any, make_plan: Any, budget: Any, *rest: Any) -> None:
        def make(*args: Any, **kwargs: Any) -> monet.Plan:
            made.append(budget)
            plan: monet.Plan = make_plan(*args, **kwargs)
            return plan

        before(self, make, budget, *rest)

    monkeypatch.setattr(plan_source.PlanSource, "__init__", counting)
    results = []
    for budget in (BUDGET, BUDGET, "11MB"):
        model, _ = pair()
        monet.apply(model, **{**options, "budget": budget})
        results.append(train(model, batches(8, 8)))
    assert made == [BUDGET, "11MB"]
    assert equal(results[0], results[1])
    model, _ = pair()
    monet.apply(model, cache=False, **options)
    train(model, batches(8))
    assert made == [BUDGET, "11MB", BUDGET]


def test_a_damaged_plan_on_disk_is_made_again(caplog: pytest.LogCaptureFixture) -> None:
    from monet.base.files.cache import cache_folder

    model, eager = pair()
    monet.apply(model, **EXACT)
    train(model, batches(8))
    for path in (cache_folder() / "plans").glob("*.plan.json"):
        path.write_text(path.read_text()[:-30])
    again, _ = pair()
    monet.apply(again, **EXACT)
    assert equal(train(again, batches(8)), train(eager, batches(8)))
    assert "made again" in caplog.text


def test_a_plan_on_disk_that_weights_no_longer_allow(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is made again for these weights, whatever the rule; no later call is."""
    first, _ = pair()
    monet.apply(first, **EXACT)
    train(first, batches(8))
    refused: list[Runner] = []

    def refuse_the_first(self: Runner, sources: Any) -> None:
        if not refused or self in refused:
            refused.append(self)
            raise PlanMismatch("a scale is too small")

    monkeypatch.setattr(Runner, "check_guards", refuse_the_first)
    planned, eager = pair()
    monet.apply(planned, **EXACT)
    assert equal(train(planned, batches(8, 8)), train(eager, batches(8, 8)))
    assert counts(planned) == (2, 0, 1) and len(refused) == 1
    refused[0] = monet.applied(planned).calls.modules[0].module._step.runner
    train(planned, batches(8))
    assert counts(planned) == (2, 1, 1)


class Marked(Tensor):
    """A parameter's tensor that is more than a tensor, as a sharded one is."""


def test_parameters_that_are_no_plain_ones() -> None:
    model = nn.Linear(4, 4)
    model.weight = nn.Parameter(torch.ones(4, 4).as_subclass(Marked))
    monet.apply(model, **EXACT)
    with pytest.raises(CaptureError, match="weight is a Marked"):
        model(torch.ones(2, 4))


def test_a_lazy_model_is_planned_in_its_second_call() -> None:
    model = nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d(affine=False))
    with pytest.raises(CaptureError, match="weight is a UninitializedParameter: a lazy model"):
        monet.plan(model, (torch.ones(2, 4),), **EXACT)
    monet.apply(model, **EXACT)
    for _ in range(2):
        model(torch.randn(2, 4)).sum().backward()
    assert (monet.applied(model).planned_calls, monet.applied(model).eager_calls) == (1, 1)


@pytest.mark.skipif(not allocator.available(), reason="there is no C++ compiler")
def test_a_step_takes_as_much_as_that_of_the_module() -> None:
    one, other = pair()
    plan = monet.plan(one, batches(8)[0], **{**EXACT, "budget": "98%"})
    monet.apply(one, plan)
    peaks = []
    for module in (one, monet.MonetModule(other, plan)):
        for _ in range(2):
            train(module, batches(8))
            module.zero_grad()
        (images,) = batches(8)
        gc.collect()
        before = allocator.live_bytes()
        allocator.reset_peak()
        module(images).sum().backward()
        peaks.append(allocator.peak_bytes() - before)
    assert peaks[0] == peaks[1]


def test_modes_are_in_the_order_of_the_modules() -> None:
    """A plan lists them so; a module that is there twice is one."""
    shared = nn.Dropout()
    model = nn.Sequential(nn.Sequential(shared, nn.ReLU()), nn.Sequential(nn.Sequential(shared), nn.Linear(2, 2)))
    model.register_module("none", None)
    for number, module in enumerate(model.modules()):
        module.training = number % 3 == 0
    inputs, walk = input_geometry((torch.ones(1),), {}), ModelWalk(model)
    assert inputs is not None
    geometry = call_geometry(model, inputs, walk)
    assert geometry.modes == tuple(module.training for module in model.modules())
    assert geometry.parameters == (True, True)


def test_a_walk_notices_what_changes() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Dropout(), nn.Linear(2, 2)))
    walk = ModelWalk(model)

    def expected() -> tuple[tuple[bool, ...], tuple[bool, ...]]:
        modules = list(model.modules())
        requires = [p.requires_grad for m in modules for p in m.parameters(recurse=False)]
        return tuple(m.training for m in modules), tuple(requires)

    inner = model.get_submodule("1")

    def swap_dictionary() -> None:
        inner.__dict__["_modules"] = {"a": nn.Linear(2, 2).eval(), **inner._modules}

    def swap_parameters() -> None:
        model.get_submodule("0").__dict__["_parameters"] = {"weight": nn.Parameter(torch.ones(2, 2), False)}

    changes: list[Callable[[], object]] = [
        lambda: None,
        inner.eval,
        lambda: inner.get_submodule("1").requires_grad_(False),
        lambda: inner.register_module("0", nn.Linear(2, 2)),
        lambda: inner.register_module("2", nn.Dropout()),
        lambda: inner._modules.pop("0"),
        lambda: model.get_submodule("0").register_parameter("third", nn.Parameter(torch.ones(1))),
        lambda: model.get_submodule("0").register_parameter("bias", None),
        swap_dictionary,
        swap_parameters,
    ]
    for change in changes:
        change()
        assert walk.modes_and_parameters() == expected()


def test_a_shape_without_a_plan_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then neither the model nor the plans are: a call that is not planned takes as long as eager's."""
    planned, eager = pair()
    monet.apply(planned, dynamic=None, **EXACT)
    train(planned, batches(8, 4))
    train(eager, batches(8, 4))
    with monkeypatch.context() as watched:
        watched.setattr(training_calls, "call_geometry", lambda *_: pytest.fail("looked at the model"))
        watched.setattr(training_calls, "input_geometry", lambda *_: pytest.fail("looked at the arguments again"))
        assert equal(train(planned, batches(4, 4)), train(eager, batches(4, 4)))
    assert counts(planned) == (1, 3, 1)
    monet.apply(planned, on_mismatch="replan", max_plans=2, dynamic=None, **EXACT)
    assert equal(train(planned, batches(8, 4, 2, 2)), train(eager, batches(8, 4, 2, 2)))
    assert counts(planned) == (2, 2, 2)


def test_keys_of_arguments_differ_where_their_geometry_does() -> None:
    x = torch.ones(2, 3)
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((x,), {}), ((x.T,), {}), ((x.double(),), {}), ((x.clone().requires_grad_(),), {}), ((x, x), {}),
        ((), {"x": x}), ((), {"y": x}), ((x,), {"y": x}), ((x, True), {}), ((x, 1), {}), ((x, None), {}),
        ((x, "1"), {}),
    ]  # fmt: skip
    keys = [quick_key(*call) for call in calls]
    assert None not in keys and len(set(keys)) == len({input_geometry(*call) for call in calls}) == len(calls)
    assert quick_key((x + 1,), {}) == keys[0]
    assert quick_key(([x],), {}) is None and quick_key((object(),), {}) is None

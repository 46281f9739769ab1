"""Hooks of a model's parts: those that look are left out and named, those that change values are planned."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
from loop_cases import HASTE
from torch import Tensor, nn

import monet
from monet.capture.guards.module_hooks import only_looks
from monet.errors import CaptureError, PlanMismatch

pytestmark = pytest.mark.usefixtures("hasty_orders")

SEEN: dict[str, Any] = {}
LOG: list[Any] = []
COUNT = 0


def keeps(module: nn.Module, args: Any, out: Tensor) -> None:
    SEEN["out"] = out.detach()
    LOG.append(float(out.abs().max().item()))


def counts(module: nn.Module, args: Any, out: Tensor) -> None:
    global COUNT
    COUNT += 1


def prints(module: nn.Module, args: Any, out: Tensor) -> None:
    print(f"{type(module).__name__} {tuple(out.shape)}")


def doubles(module: nn.Module, args: Any, out: Tensor) -> Tensor:
    return out * 2


def halves_in_place(module: nn.Module, args: Any, out: Tensor) -> None:
    out.mul_(0.5)


def zeroes_a_part(module: nn.Module, args: Any, out: Tensor) -> None:
    out[:, 0] = 0


def adds_in_place(module: nn.Module, args: Any, out: Tensor) -> None:
    out += 1


def _helper(out: Tensor) -> None:
    out.clamp_(min=0)


def clamps_elsewhere(module: nn.Module, args: Any, out: Tensor) -> None:
    _helper(out)


def stores_in_the_module(module: Any, args: Any, out: Tensor) -> None:
    module.activation = out


class Recorder:
    def __init__(self) -> None:
        self.log: list[Any] = []

    def __call__(self, module: nn.Module, args: Any, out: Tensor) -> None:
        self.log.append(out.mean().item())

    def scale(self, module: nn.Module, args: Any, out: Tensor) -> Tensor:
        self.log.append("called")
        return out * 3


class Flag:
    def __init__(self) -> None:
        self.function: Any = None

    def doubles(self, module: nn.Module, args: Any, out: Tensor) -> None:
        self._helper(out)

    def _helper(self, out: Tensor) -> None:
        out.mul_(2)

    def may(self, module: nn.Module, args: Any, out: Tensor) -> Any:
        return self.function(out) if self.function else None


def activates(module: nn.Module, args: Any, out: Tensor) -> None:
    torch.nn.functional.relu(out, inplace=True)


def activates_by_place(module: nn.Module, args: Any, out: Tensor) -> None:
    torch.nn.functional.relu(out, True)


def multiplies(module: nn.Module, args: Any, out: Tensor) -> None:
    operator.imul(out, 2)  # type: ignore[no-untyped-call]


def multiplies_by_name(module: nn.Module, args: Any, out: Tensor) -> None:
    out.__imul__(2)


def writes_into(module: nn.Module, args: Any, out: Tensor) -> None:
    torch.add(out, 1, out=out)


RELU = nn.ReLU(inplace=True)


def calls_a_module(module: nn.Module, args: Any, out: Tensor) -> None:
    RELU(out)


def calls_an_argument(module: nn.Module, args: Any, out: Tensor) -> None:
    for function in module.functions:  # type: ignore[union-attr]
        function(out)


LOOKING = [keeps, counts, prints, Recorder(), lambda m, a, out: LOG.append(out.sum().item())]
CHANGING = [doubles, halves_in_place, zeroes_a_part, adds_in_place, clamps_elsewhere, stores_in_the_module]
CHANGING += [Flag().doubles, Flag().may, activates, activates_by_place, multiplies, multiplies_by_name, calls_a_module]
REFUSED = [writes_into, calls_an_argument]


@pytest.mark.parametrize("hook", LOOKING)
def test_a_hook_that_looks_is_known_as_such(hook: Any) -> None:
    assert only_looks(hook)


@pytest.mark.parametrize(
    "hook", [*CHANGING, *REFUSED, Recorder().scale, lambda m, a, out: out + 1, torch.nn.functional.relu]
)
def test_any_other_is_not(hook: Any) -> None:
    assert not only_looks(hook)


def _model() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 4))


def _same_steps(model: Any, eager: Any) -> None:
    for _ in range(2):
        batch = torch.randn(5, 6)
        losses = []
        for one in (model, eager):
            one.zero_grad()
            losses.append(one(batch).square().sum())
            losses[-1].backward()
        assert torch.equal(*losses)
        assert all(torch.equal(a.grad, b.grad) for a, b in zip(model.parameters(), eager.parameters(), strict=True))


@pytest.mark.parametrize("of_module", [False, True])
@pytest.mark.parametrize("hook", CHANGING)
@pytest.mark.sampled(3)
def test_what_a_hook_changes_is_planned(hook: Any, of_module: bool) -> None:
    model, eager = _model(), _model()
    for one in (model, eager):
        one[0].register_forward_hook(hook)
        one[2].register_forward_pre_hook(lambda module, args: (args[0] - 1,))
    if of_module:
        planned: Any = monet.MonetModule(model, monet.plan(model, (torch.randn(5, 6),), budget="100%", **HASTE))
    else:
        planned = model
        monet.apply(model, budget="100%", exact=True, on_mismatch="error", **HASTE)
    _same_steps(planned, eager)


def test_a_hook_that_looks_does_not_run_while_planning_and_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    SEEN.clear()
    LOG.clear()
    model = _model()
    handle = model[0].register_forward_hook(keeps)
    monet.apply(model, budget="100%", on_mismatch="error", **HASTE)
    for _ in range(2):
        model(torch.randn(5, 6)).sum().backward()
    assert not SEEN and not LOG
    (said,) = [record.getMessage() for record in caplog.records if "hook" in record.getMessage()]
    assert "keeps" in said and "hook of 0" in said
    handle.remove()  # it was in no plan
    model(torch.randn(5, 6)).sum().backward()
    assert monet.applied(model).planned_calls == 3


def test_what_a_traced_hook_changes_besides_is_put_back_and_named() -> None:
    """What it computes may depend on that."""
    model, recorder = _model(), Recorder()
    model[0].register_forward_hook(recorder.scale)
    monet.apply(model, budget="100%", exact=True, on_mismatch="error", **HASTE)
    with pytest.raises(
        CaptureError, match=r"Recorder\.scale .* a hook of 0, may change values and changes log besides"
    ):
        model(torch.randn(5, 6))
    assert recorder.log == []


@pytest.mark.parametrize("hook", [activates, multiplies, calls_a_module, Flag().doubles])
def test_what_is_changed_in_place_is_in_the_plan(hook: Any) -> None:
    model, eager = _model(), _model()
    for one in (model, eager):
        one[0].register_forward_hook(hook)
    monet.apply(model, budget="100%", exact=True, on_mismatch="error", **HASTE)
    _same_steps(model, eager)


def test_a_hook_may_count_at_a_module_of_the_model() -> None:
    """As an attribute that forward assigns."""

    def counts_up(module: Any, args: Any, out: Tensor) -> Tensor:
        module.calls += 1
        return out * 2

    model, eager = _model(), _model()
    for one in (model, eager):
        vars(one[0])["calls"] = 0
        one[0].register_forward_hook(counts_up)
    monet.apply(model, budget="100%", exact=True, on_mismatch="error", **HASTE)
    _same_steps(model, eager)
    assert model[0].calls == eager[0].calls == 2


@pytest.mark.parametrize("hook", [doubles, halves_in_place])
def test_a_hook_that_is_added_or_removed_later_is_named(hook: Any) -> None:
    model, eager = _model(), _model()
    monet.apply(model, budget="100%", exact=True, **HASTE)
    _same_steps(model, eager)
    handles = [one[0].register_forward_hook(hook) for one in (model, eager)]
    _same_steps(model, eager)
    assert monet.applied(model).planned_calls == 2
    for handle in handles:
        handle.remove()
    _same_steps(model, eager)
    assert monet.applied(model).planned_calls == 4
    planned = monet.MonetModule(eager, monet.plan(eager, (torch.randn(5, 6),), budget="100%", **HASTE))
    eager[2].register_forward_hook(hook)
    with pytest.raises(PlanMismatch, match=f"2 has a hook that was not there when this was planned: {hook.__name__}"):
        planned(torch.randn(5, 6))


def test_backward_hooks_of_parts(caplog: pytest.LogCaptureFixture) -> None:
    grads: list[float] = []
    model = _model()

    def looks(module: nn.Module, into: Any, out: Any) -> None:
        grads.append(out[0].abs().max().item())

    handle = model[0].register_full_backward_hook(looks)
    monet.apply(model, budget="100%", exact=True, on_mismatch="error", **HASTE)
    _same_steps(model, _model())
    assert "looks" in caplog.text and not grads
    handle.remove()
    model[0].register_full_backward_hook(lambda module, into, out: (into[0] * 2,))  # type: ignore[index]
    with pytest.raises(PlanMismatch, match="0 has a backward hook that was not there"):
        model(torch.randn(5, 6))
    with pytest.raises(CaptureError, match="backward hook of 0"):
        monet.plan(model, (torch.randn(5, 6),), budget="100%", **HASTE)


def test_hooks_of_every_module() -> None:
    model = _model()
    handle = nn.modules.module.register_module_forward_hook(doubles)  # type: ignore[arg-type]
    try:
        with pytest.raises(CaptureError, match="hook of every module"):
            monet.plan(model, (torch.randn(5, 6),), budget="100%", **HASTE)
    finally:
        handle.remove()


def test_a_hook_that_cannot_be_traced_is_named() -> None:
    model = _model()
    model[0].register_forward_hook(lambda module, args, out: out * float(out.max()))
    with pytest.raises(CaptureError, match=r"lambda.*a hook of 0, cannot be traced"):
        monet.plan(model, (torch.randn(5, 6),), budget="100%", **HASTE)

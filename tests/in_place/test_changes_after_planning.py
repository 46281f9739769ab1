"""What users change of a model after planning: the next step is eager's, or refused by name."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from loop_cases import HASTE
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune

import monet
from monet.errors import PlanMismatch

pytestmark = [pytest.mark.usefixtures("hasty_orders"), pytest.mark.filterwarnings("ignore")]


class Tied(nn.Module):
    """A language model's ends, which share their weight, around a layer with a scale and dropout."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.emb, self.body, self.out = nn.Embedding(20, 8), nn.Linear(8, 8), nn.Linear(8, 20, bias=False)
        self.out.weight = self.emb.weight
        self.drop, self.scale = nn.Dropout(0.1), 1.0

    def forward(self, tokens: Tensor) -> Tensor:
        found: Tensor = self.out(self.drop(torch.tanh(self.body(self.emb(tokens)))) * self.scale)
        return found


def _untie(model: Any) -> None:
    model.out.weight = nn.Parameter(model.emb.weight.detach().clone())


def _assign(model: Any) -> None:
    model.load_state_dict({name: value.clone() for name, value in model.state_dict().items()}, assign=True)


EDITS: dict[str, tuple[Callable[[Any], object], str]] = {
    "untied": (_untie, "out.weight and emb.weight were one tensor when this was planned, and are two now"),
    "untied in one memory": (
        lambda m: setattr(m.out, "weight", nn.Parameter(m.emb.weight)),
        "out.weight and emb.weight were one tensor when this was planned, and are two now",
    ),
    "assigned": (_assign, "out.weight and emb.weight were one tensor when this was planned, and are two now"),
    "hook": (
        lambda m: m.body.register_forward_hook(lambda module, args, out: out * 2),
        "body has a hook that was not there when this was planned",
    ),
    "scale": (lambda m: setattr(m, "scale", 3), "the model's scale is 3, and was 1.0 when this was planned"),
    "dropout": (lambda m: setattr(m.drop, "p", 0.9), "drop.p is 0.9, and was 0.1 when this was planned"),
    "pruned": (lambda m: prune.l1_unstructured(m.body, "weight", 0.5), "body"),
    "weight_norm": (lambda m: parametrizations.weight_norm(m.body), "body is a ParametrizedLinear now"),
    "evaluated part": (lambda m: m.drop.eval(), "submodule 'drop' is in evaluation mode"),
}


def _step(model: Any, tokens: Tensor) -> list[Tensor | None]:
    torch.manual_seed(7)
    model.zero_grad(set_to_none=True)
    loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
    loss.backward()
    return [loss.detach(), *(p.grad for p in model.parameters())]


def _assert_equal(one: list[Tensor | None], other: list[Tensor | None]) -> None:
    assert len(one) == len(other)
    for a, b in zip(one, other, strict=True):
        assert (a is None) == (b is None)
        if a is not None and b is not None:
            torch.testing.assert_close(a, b, rtol=0, atol=0)


TOKENS = torch.arange(10).view(2, 5)


@pytest.mark.parametrize("rule", ["eager", "error", "replan"])
@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.sampled(2)
def test_in_a_training_loop(edit: str, rule: Any, caplog: pytest.LogCaptureFixture) -> None:
    change, said = EDITS[edit]
    model, eager = Tied(), Tied()
    monet.apply(model, budget="1MB", exact=True, on_mismatch=rule, **HASTE)
    _assert_equal(_step(model, TOKENS), _step(eager, TOKENS))
    for one in (model, eager):
        torch.manual_seed(1)
        change(one)
    if rule == "error":
        with pytest.raises(PlanMismatch, match=said):
            _step(model, TOKENS)
        return
    for _ in range(2):
        _assert_equal(_step(model, TOKENS), _step(eager, TOKENS))
    found = monet.applied(model)
    assert (found.planned_calls, found.eager_calls) == ((1, 2) if rule == "eager" else (3, 0))
    assert rule != "eager" or said in caplog.text


@pytest.mark.parametrize("edit", EDITS)
def test_in_a_module(edit: str) -> None:
    change, said = EDITS[edit]
    model = Tied()
    planned = monet.MonetModule(model, monet.plan(model, (TOKENS,), budget="100%", **HASTE))
    _step(planned, TOKENS)
    change(model)
    with pytest.raises(PlanMismatch, match=said):
        _step(planned, TOKENS)


def test_a_hook_that_is_removed_again_is_in_no_plan() -> None:
    model, eager = Tied(), Tied()
    handles = [one.body.register_forward_hook(lambda module, args, out: out * 2) for one in (model, eager)]
    monet.apply(model, budget="100%", exact=True, **HASTE)
    _assert_equal(_step(model, TOKENS), _step(eager, TOKENS))
    for handle in handles:
        handle.remove()
    _assert_equal(_step(model, TOKENS), _step(eager, TOKENS))
    assert monet.applied(model).eager_calls == 1


# The loss of a whole step.

WEIGHT = 1.0


class Loss:
    def __init__(self) -> None:
        self.weight = 1.0

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self.weight * (outputs - targets).square().mean()

    def method(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self(outputs, targets)


def _of_a_global(outputs: Tensor, targets: Tensor) -> Tensor:
    return WEIGHT * (outputs - targets).square().mean()


def _with_global(_: Any) -> None:
    global WEIGHT
    WEIGHT = 2.0


def _with_weight(loss: Any) -> None:
    getattr(loss, "__self__", loss).weight = 2.0


@pytest.fixture
def _weight_again() -> Iterator[None]:
    yield
    globals()["WEIGHT"] = 1.0


@pytest.mark.usefixtures("_weight_again")
@pytest.mark.parametrize(
    ("loss", "edit"),
    [(_of_a_global, _with_global), (Loss(), _with_weight), (Loss().method, _with_weight)],
    ids=["global", "object", "method"],
)
def test_what_a_loss_reads(loss: Any, edit: Callable[[Any], None]) -> None:
    model, x, y = nn.Linear(6, 4), torch.randn(5, 6), torch.randn(5, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    trainer = monet.optimize(model, x, y, loss_fn=loss, optimizer=optimizer, budget="100%", **HASTE)
    trainer(x, y)
    edit(loss)
    with pytest.raises(PlanMismatch, match=r"is 2\.0, and was 1\.0 when this was planned"):
        trainer(x, y)


# Inside of torch.compile: Dynamo guards neither hooks nor methods.


def _compiled(function: Any) -> Any:
    torch._dynamo.reset()
    return torch.compile(function, backend="monet", dynamic=False, options={"budget": "1MB", "exact": True, **HASTE})


def _doubles(module: nn.Module, args: Any, out: Tensor) -> Tensor:
    return out * 2


def test_a_hook_that_is_added_to_any_module_of_a_compiled_function_is_named() -> None:
    models = [nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(2)]
    batch = torch.randn(5, 6)

    def both(one: nn.Module, other: nn.Module, x: Tensor) -> Tensor:
        found: Tensor = (one(x) - other(x)).square().sum()
        return found

    function = _compiled(both)
    function(*models, batch).backward()
    models[1][0].register_forward_hook(_doubles)
    with pytest.raises(PlanMismatch, match="0 has a hook that was not there when this was planned"):
        function(*models, batch)


def test_a_hook_that_is_added_to_a_module_around_a_compiled_function_is_named() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.Tanh())

    def around(x: Tensor) -> Tensor:
        found: Tensor = model(x).square().sum()
        return found

    function = _compiled(around)
    function(torch.randn(5, 6)).backward()
    model[0].register_forward_hook(_doubles)
    with pytest.raises(PlanMismatch, match="0 has a hook"):
        function(torch.randn(5, 6))


def test_another_module_of_the_class_has_hooks_of_its_own() -> None:
    """Dynamo runs the graph of the first for the second, too."""
    models = [nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(2)]
    functions = [_compiled(models[0]), torch.compile(models[1], backend="monet", dynamic=False,
                                                     options={"budget": "1MB", "exact": True, **HASTE})]  # fmt: skip
    for function in functions:
        function(torch.randn(5, 6)).sum().backward()
    models[0][0].register_forward_hook(_doubles)
    batch = torch.randn(5, 6)
    assert torch.equal(functions[1](batch), copy.deepcopy(models[1])(batch))


def test_a_hook_that_looks_may_come_later(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    model, seen = nn.Sequential(nn.Linear(6, 6), nn.Tanh()), []
    function = _compiled(model)
    function(torch.randn(5, 6)).sum().backward()
    model[0].register_forward_hook(lambda module, args, out: seen.append(out.shape))
    function(torch.randn(5, 6)).sum().backward()


@pytest.mark.parametrize("how", ["compile", "torch.compile"])
def test_compiling_what_has_a_plan_in_place_is_said(how: str, caplog: pytest.LogCaptureFixture) -> None:
    model, eager = Tied(), Tied()
    monet.apply(model, budget="100%", exact=True, **HASTE)
    _step(model, TOKENS)
    _step(eager, TOKENS)
    if how == "compile":
        model.compile(backend="eager")
        compiled: Any = model
    else:
        compiled = torch.compile(model, backend="eager")
    _assert_equal(_step(compiled, TOKENS), _step(eager, TOKENS))
    assert "took the place of what monet.apply had put there" in caplog.text or "itself" in caplog.text

"""Attributes that a forward pass assigns: results of the plan, in eager's places, or refused by name."""

from __future__ import annotations

import copy
import importlib
import random
import sys
from contextlib import redirect_stdout
from io import StringIO
from typing import Any

import numpy
import pytest
import torch
from loop_cases import HASTE
from torch import Tensor, nn

import monet
from monet.capture import capture
from monet.capture.guards.model_guard import ModelGuard
from monet.errors import CaptureError, StatefulForward

pytestmark = pytest.mark.usefixtures("hasty_orders")


class Assigns(nn.Module):
    """Two layers, the second of which assigns what ``of`` says."""

    def __init__(self, of: str) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.second = nn.Linear(6, 6), Inner(of)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.second(torch.relu(self.first(x)), x)
        return out


class Inner(nn.Module):
    def __init__(self, of: str) -> None:
        super().__init__()
        self.of, self.layer = of, nn.Linear(6, 4)
        self.calls = 0
        self.losses: list[Tensor] = []
        self.scale = nn.Buffer(torch.ones(4))

    def forward(self, x: Tensor, inputs: Tensor) -> Tensor:
        y: Tensor = self.layer(x)
        of = self.of
        if of == "loss":
            self.aux = y.square().mean()
        elif of == "detached":
            self.last = x.detach()
        elif of == "output":
            self.last = y
            return y
        elif of == "view":
            self.last = y[:, :2]
        elif of == "nested":
            self.seen = {"pair": (x.mean(0), y.mean(0).detach()), "size": len(x), "none": None}
        elif of == "appended":
            self.losses.append(y.square().mean())
        elif of == "input":
            self.last, self.used = inputs, [self.layer.weight]
        elif of == "count":
            self.calls += 1
            self.size = tuple(x.shape)
        elif of == "used":
            self.hidden = y * 2
            y = self.hidden + 1
        return y * self.scale


def _loss(model: Assigns, y: Tensor) -> Tensor:
    loss = y.sum()
    for name in ("aux", "last", "hidden"):
        value = getattr(model.second, name, None)
        if value is not None and value.requires_grad:
            loss = loss + value.square().sum()
    if model.second.losses:
        loss = loss + torch.stack(model.second.losses).sum()
    if hasattr(model.second, "seen"):
        seen: Any = model.second.seen
        loss = loss + seen["pair"][0].sum()
    return loss


def _state(module: nn.Module) -> dict[str, Any]:
    return {key: value for key, value in vars(module).items() if not key.startswith("_")}


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return torch.equal(a, b) and a.requires_grad == b.requires_grad
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(_same, a, b))
    return bool(a == b)


KINDS = ("loss", "detached", "output", "view", "nested", "appended", "input", "count", "used")


@pytest.mark.parametrize("way", ["applied", "module", "autocast"])
@pytest.mark.parametrize("of", KINDS)
@pytest.mark.sampled(2)
def test_what_forward_assigns_is_eagers(of: str, way: str) -> None:
    eager: Any = Assigns(of)
    model: Any = copy.deepcopy(eager)
    torch.manual_seed(5)
    batches = [torch.randn(3, 6) for _ in range(3)]
    with torch.autocast("cpu", enabled=way == "autocast"):
        if way == "module":
            model = monet.MonetModule(model, monet.plan(model, (batches[0],), budget="100%", **HASTE))
        else:
            monet.apply(model, budget="100%", exact=True, on_mismatch="error", **HASTE)
    for batch in batches:
        for one in (eager, model):
            one.zero_grad()
            one.second.losses.clear()  # as users do between steps
            with torch.autocast("cpu", enabled=way == "autocast"):
                y = one(batch)
            _loss(one, y).backward()
        assert all(torch.equal(a.grad, b.grad) for a, b in zip(eager.parameters(), model.parameters(), strict=True))
        assert _same(_state(eager.second), _state(model.second))
        assert list(vars(eager.second)) == list(vars(model.second)) or of != "count"
    if way != "module":
        assert monet.applied(model).planned_calls == 3


class Refused(nn.Module):
    def __init__(self, of: str) -> None:
        super().__init__()
        self.of, self.layer, self.calls, self.before = of, nn.Linear(6, 6), 0, torch.zeros(6)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x)
        if self.of == "state":
            y = y + self.before
            self.before = y.mean(0).detach()
        elif self.of == "step":
            self.calls += 1
            if self.calls > 2:
                y = y * 2
        elif self.of == "python":
            y = y * (2 if random.random() < 0.5 else 1)
        elif self.of == "numpy":
            y = y * float(numpy.random.rand())
        elif self.of == "object":
            self.made = object()
        return y


@pytest.mark.parametrize(
    ("of", "said"),
    [("state", "before"), ("step", "calls"), ("python", "random"), ("numpy", "random"), ("object", "made")],
)
def test_what_a_plan_could_not_do_again_is_refused_by_name(of: str, said: str) -> None:
    model = Refused(of)
    before = dict(vars(model))
    state = random.getstate()
    with pytest.raises(CaptureError, match=said):
        capture(model, (torch.randn(2, 6),))
    assert random.getstate() == state
    assert all(vars(model)[key] is value for key, value in before.items()) and vars(model).keys() == before.keys()


class SetsUp(nn.Module):
    """Is made complete by its first call."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.layer = nn.Linear(6, 6)
        self.index: Tensor | None = None
        self.part: nn.Module = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        if self.index is None or len(self.index) != len(x):
            self.index = torch.arange(len(x)).flip(0)
        if isinstance(self.part, nn.Identity):
            self.part = nn.Tanh()
        y: Tensor = self.part(self.layer(x)[self.index])
        return y


def test_a_model_that_its_first_call_completes_is_planned_after_it() -> None:
    model = SetsUp()
    with pytest.raises(StatefulForward, match="run the model once"):
        monet.plan(model, (torch.randn(4, 6),), budget="100%", **HASTE)
    assert model.index is None and isinstance(model.part, nn.Identity)
    eager = copy.deepcopy(model)
    monet.apply(model, budget="100%", exact=True, **HASTE)
    for _ in range(3):
        batch = torch.randn(4, 6)
        for one in (eager, model):
            one.zero_grad()
            one(batch).square().sum().backward()
        assert torch.equal(eager.layer.weight.grad, model.layer.weight.grad)  # type: ignore[arg-type]
    assert (monet.applied(model).planned_calls, monet.applied(model).eager_calls) == (2, 1)


def test_a_whole_step_assigns_detached_tensors() -> None:
    model, eager = Assigns("loss"), Assigns("loss")
    loss_fn = lambda y, target: (y - target).square().mean()  # noqa: E731
    batch, target = torch.randn(3, 6), torch.randn(3, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    step = monet.optimize(model, batch, target, loss_fn=loss_fn, optimizer=optimizer, budget="100%", **HASTE)
    step(batch, target)
    eager(batch)
    assert torch.equal(model.second.aux, eager.second.aux) and not model.second.aux.requires_grad


def test_what_was_assigned_before_is_gone_while_a_step_runs() -> None:
    """Else the peak would be that of two steps' tensors."""
    model = Assigns("loss")
    monet.apply(model, budget="100%", **HASTE)
    batch = torch.randn(3, 6)
    model(batch).sum().backward()
    seen: list[Any] = []
    runner = monet.applied(model).calls.modules[0].module._step.runner
    real = runner.forward

    def forward(sources: Any) -> Any:
        seen.append(model.second.aux)
        return real(sources)

    runner.forward = forward  # type: ignore[method-assign]
    model(batch).sum().backward()
    assert seen == [None] and model.second.aux is not None


def test_leaving_an_attribute_out_accepts_no_other_change() -> None:
    """As a second arena does, when a step is under way in the first."""
    model = Assigns("loss")
    guard = ModelGuard(model)
    model.second.of = "view"
    guard.leave_out([("second", "aux")])
    difference = guard.difference()
    assert difference is not None and "second.of is 'view', and was 'loss'" in difference.sentence


class Meter:
    def __init__(self) -> None:
        self.n = 0
        self.last: Any = None


HISTORY: list[Any] = []
CALLS = 0


class Fills(nn.Module):
    """Changes what its attributes hold, in the way ``of``."""

    total: Any = 0.0
    default: Any = None

    def __init__(self, of: str) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.layer, self.of, self.log = nn.Linear(6, 4), of, ""
        self.items: list[Any] = []
        self.table: dict[str, Any] = {"kept": 1}
        self.sizes: set[int] = set()
        self.stats: dict[str, list[Any]] = {"loss": []}
        self.meter = Meter()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x)
        mean = y.detach().mean()
        match self.of:
            case "append":
                self.items.append(mean)
            case "+= [...]":
                self.items += [mean]
            case "clear and append":
                self.items.clear()
                self.items.append(mean)
                y = y + self.items[0]
            case "an entry":
                self.table["mean"] = mean
                y = y + self.table["mean"]
            case "update":
                self.table.update(mean=mean, size=len(x))
            case "a set":
                self.sizes.add(len(x))
            case "an object's tensor":
                self.meter.last = mean
            case "an object's number":
                self.meter.n += 1
            case "the class's default":
                self.default = mean
                y = y + self.default
            case "+= tensor":
                self.total += mean
            case "+= text":
                self.log += "."
            case "sum of items":
                self.items.append(mean)
                y = y + sum(self.items)
            case "stack of items":
                self.items.append(mean)
                y = y + torch.stack(self.items).sum()
            case "an entry that was there":
                y = y + self.table["kept"]
                self.table["kept"] = 2
            case "nested":
                self.stats["loss"].append(mean)
            case "global list":
                HISTORY.append(len(HISTORY))
            case "global number":
                global CALLS
                CALLS += 1
        return y


DONE = ("append", "+= [...]", "clear and append", "an entry", "update", "a set", "an object's tensor",
        "an object's number", "the class's default")  # fmt: skip
REFUSED = {
    "+= tensor": "reads the model's total and then assigns it",
    "+= text": "reads the model's log and then assigns it",
    "sum of items": "reads what the model's items holds before it empties it",
    "stack of items": "reads what the model's items holds before it empties it",
    "an entry that was there": "reads what the model's table holds before it empties it",
    "nested": "changes what is held inside of the model's stats",
    "global list": "changes HISTORY, which is no attribute of the model",
    "global number": "changes CALLS, which is no attribute of the model",
}


def _held(model: Any) -> list[Any]:
    return [model.items, model.table, model.sizes, model.meter.n, model.meter.last, model.default]


@pytest.mark.parametrize("of", DONE)
def test_what_a_forward_pass_fills_is_eagers(of: str) -> None:
    eager, model = Fills(of), Fills(of)
    monet.apply(model, budget="100%", exact=True, on_mismatch="error", **HASTE)
    for seed in range(3):
        torch.manual_seed(seed)
        batch = torch.randn(3, 6)
        for one in (eager, model):
            one.zero_grad()
            one(batch).square().sum().backward()
        assert all(_same(a.grad, b.grad) for a, b in zip(eager.parameters(), model.parameters(), strict=True))
        assert all(map(_same, _held(eager), _held(model)))
    assert monet.applied(model).planned_calls == 3


@pytest.mark.parametrize("of", REFUSED)
def test_what_depends_on_the_calls_before_is_refused_by_name(of: str) -> None:
    model = Fills(of)
    with pytest.raises(StatefulForward, match=REFUSED[of]):
        monet.plan(model, (torch.randn(3, 6),), budget="100%", **HASTE)
    assert all(map(_same, _held(model), _held(Fills(of)))), "it is what it was"
    assert (HISTORY, CALLS, model.stats) == ([], 0, {"loss": []})


class Imports(nn.Linear):
    """Its forward pass looks for a module, and imports it."""

    def forward(self, x: Tensor) -> Tensor:
        if "this" not in sys.modules:
            with redirect_stdout(StringIO()):
                importlib.import_module("this")
        return super().forward(x)


def test_a_forward_pass_may_import() -> None:
    sys.modules.pop("this", None)
    monet.plan(Imports(6, 4), (torch.randn(3, 6),), budget="100%", **HASTE)
    assert "this" in sys.modules


LOG: list[Any] = []


def test_a_log_outside_of_the_model_gets_nothing_which_is_said(caplog: pytest.LogCaptureFixture) -> None:
    around: list[Any] = []

    class Logs(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            LOG.append(x.mean())
            around.append(x.shape)
            return super().forward(x)

    model = Logs(6, 4)
    monet.apply(model, budget="100%", on_mismatch="error", **HASTE)
    for _ in range(2):
        model(torch.randn(3, 6)).sum().backward()
    assert not LOG and not around
    for name in ("LOG", "around"):
        assert caplog.text.count(f"adds to {name}, which is no attribute of the model") == 1

"""A model that is another one while it is traced is refused; all others are as before the comparison."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor

import monet
from monet.capture import capture, kept_captures
from monet.capture.guards import same_outputs
from monet.capture.guards.same_outputs import require_same_outputs
from monet.errors import CaptureError
from monet.ops.estimating.quick import quick_rates
from monet.pipeline.preparation import Preparing, prepare


def _asks_compiler(x: Tensor) -> bool:
    return torch.compiler.is_compiling()


def _asks_tensor(x: Tensor) -> bool:
    return isinstance(x, FakeTensor | FunctionalTensor)


class Asking(nn.Module):
    """Twice as large while it is traced."""

    def __init__(self, is_traced: Callable[[Tensor], bool], factor: float = 2.0) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.is_traced = is_traced
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x).tanh()
        return out * self.factor if self.is_traced(x) else out


@pytest.mark.parametrize("is_traced", [_asks_compiler, _asks_tensor])
def test_a_model_that_is_another_one_while_it_is_traced_is_refused(is_traced: Any) -> None:
    model, x = Asking(is_traced), torch.randn(3, 4)
    with pytest.raises(CaptureError, match=r"another one while it is traced: output 0 differs from eager's by up to"):
        monet.plan(model, (x,), budget="1GB", cache=False)
    with pytest.raises(CaptureError, match="another one while it is traced"):
        monet.plan(model, {"x": x}, budget="1GB", cache=False, dynamic={"x": {0: torch.export.Dim("batch", max=3)}})
    with pytest.raises(CaptureError, match="another one while it is traced"):
        monet.optimize(
            model, x, torch.zeros(3, 4), budget="1GB", loss_fn=nn.functional.mse_loss, cache=False,
            optimizer=torch.optim.SGD(model.parameters(), 0.1),
        )  # fmt: skip


def test_apply_refuses_it_at_its_first_call() -> None:
    model, x = Asking(_asks_compiler), torch.randn(3, 4)
    monet.apply(model, budget="100%", cache=False)
    with pytest.raises(CaptureError, match="another one while it is traced"):
        model(x)


def test_what_is_only_rounded_otherwise_is_planned() -> None:
    model, x = Asking(_asks_compiler, factor=1 + 1e-6), torch.randn(3, 4)
    assert monet.plan(model, (x,), budget="1GB", cache=False).budget_bytes


class Ordinary(nn.Module):
    """Draws, has buffers, changes its input in place and counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5))
        self.calls = 0

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        self.calls += 1
        x.mul_(2)
        out = self.layers(x)
        return {"out": out, "best": out.argmax(1)}


def test_the_model_and_the_random_states_are_as_before() -> None:
    model, x = Ordinary(), torch.randn(3, 4)
    before, given = copy.deepcopy(model.state_dict()), x.clone()
    captured = capture(model, (x,))
    states = torch.get_rng_state(), random.getstate()
    require_same_outputs(captured, model, (x,), {})
    assert torch.equal(torch.get_rng_state(), states[0]) and random.getstate() == states[1]
    assert model.calls == 0 and torch.equal(x, given)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_what_was_captured_of_another_model_is_not_the_same() -> None:
    model, x = Ordinary(), torch.randn(3, 4)
    captured = capture(model, (x,))
    model.layers[2] = nn.Identity()
    with pytest.raises(CaptureError, match=r"output 0 differs from eager's by up to"):
        require_same_outputs(captured, model, (x,), {})


def test_a_capture_is_compared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = Ordinary(), torch.randn(3, 4)
    compared: list[nn.Module] = []
    monkeypatch.setattr(kept_captures, "require_same_outputs", lambda _, model, *call: compared.append(model))
    kept_captures.capture_once(model, (x,))
    assert not compared
    for _ in range(2):  # the second time from disk
        kept_captures.capture_once(model, (x,), compared=True)
        assert compared == [model]
        monkeypatch.setattr(kept_captures, "_in_memory", {})


def test_nothing_is_run_where_costs_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(same_outputs, "_own", lambda *call, **how: pytest.fail("the model was run"))
    prepare(Ordinary(), (torch.randn(3, 4),), {}, Preparing(costs=quick_rates()))


def test_islands_are_called() -> None:
    class Choosing(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.sin() if float(x.sum()) > 0 else x.cos()

    model, x = nn.Sequential(nn.Linear(4, 4), Choosing(), nn.Linear(4, 4)), torch.randn(3, 4)
    captured = capture(model, (x,))
    assert captured.islands
    require_same_outputs(captured, model, (x,), {})
    with torch.no_grad():
        captured.islands[next(iter(captured.islands))].forward_of = lambda x: x * 2
    with pytest.raises(CaptureError, match="another one"):
        require_same_outputs(captured, model, (x,), {})


def test_what_is_not_the_same_twice_says_nothing() -> None:
    calls = iter(range(1000))

    class Changing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.layer(x) * float(next(calls))
            return out

    model, x = Changing(), torch.randn(3, 4)
    require_same_outputs(capture(model, (x,)), model, (x,), {})


def test_inputs_that_eager_fails_on_say_nothing() -> None:
    model, tokens = nn.Sequential(nn.Embedding(3, 4), nn.Linear(4, 4)), torch.full((2, 2), 7)
    require_same_outputs(capture(model, (tokens,)), model, (tokens,), {})

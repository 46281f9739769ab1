"""A model that is another one while it is traced is refused; all others are as before the comparison."""

from __future__ import annotations

import copy
import importlib
import random
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor

import monet
from monet.capture import capture, kept_captures
from monet.capture.effects import same_outputs
from monet.capture.effects.same_outputs import require_same_outputs
from monet.errors import CaptureError
from monet.models.torchvision_schemas import with_torchvision_schemas
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


def test_beside_a_cache_of_keys_and_values_too() -> None:
    """Which is another object in each call, and equal to none."""
    config: Any = llama().LlamaConfig(
        vocab_size=20, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1
    )

    class Model(nn.Module):
        def __init__(self, *, asks: bool) -> None:
            super().__init__()
            self.inner, self.config, self.asks = llama().LlamaModel(config), config, asks

        def forward(self, input_ids: Tensor) -> Any:
            out = self.inner(input_ids)
            if self.asks and _asks_compiler(input_ids):
                out.last_hidden_state = out.last_hidden_state * 2
            return out

    ids = torch.zeros(2, 5, dtype=torch.long)
    assert Model(asks=False)(ids).past_key_values is not None
    for asks in (False, True):
        model = Model(asks=asks).train()
        captured = capture(model, (ids,))
        if not asks:
            require_same_outputs(captured, model, (ids,), {})
            continue
        with pytest.raises(CaptureError, match="another one while it is traced: output 0 differs from eager's"):
            require_same_outputs(captured, model, (ids,), {})


def llama() -> Any:
    return with_torchvision_schemas(lambda: importlib.import_module("transformers.models.llama.modeling_llama"))


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

    def _compares(_: Any, model: nn.Module, *call: Any, **how: Any) -> bool:
        compared.append(model)
        return True

    monkeypatch.setattr(kept_captures, "require_same_outputs", _compares)
    kept_captures.capture_once(model, (x,))
    assert not compared
    for _ in range(2):  # the second time from disk
        kept_captures.kept_capture(model, (x,)).require_same_outputs(model, (x,), {})
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
    assert require_same_outputs(captured, model, (x,), {})
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
    assert not _compares(model, x)


def test_inputs_that_eager_fails_on_say_nothing() -> None:
    model, tokens = nn.Sequential(nn.Embedding(3, 4), nn.Linear(4, 4)), torch.full((2, 2), 7)
    assert not _compares(model, tokens)


def _with(forward: Callable[..., Any], **members: Any) -> nn.Module:
    """A module that has a linear layer of four features and ``members``."""

    class Made(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)
            for name, member in members.items():
                self.register_buffer(name, member) if isinstance(member, Tensor) else setattr(self, name, member)

        def forward(self, *args: Tensor) -> Any:
            return forward(self, *args)

    return Made()


def _compares(model: nn.Module, *args: Tensor) -> bool:
    return require_same_outputs(capture(model, args), model, args, {})


def test_a_table_that_cannot_be_written_to(tmp_path: Path) -> None:
    np.zeros(64, np.float32).tofile(tmp_path / "table")
    with warnings.catch_warnings():  # of torch, that it cannot be written to
        warnings.simplefilter("ignore")
        table = torch.from_numpy(np.memmap(tmp_path / "table", np.float32, "r"))
    with torch.inference_mode():
        number = torch.ones(1)
    model = _with(lambda self, x: self.layer(x) * self.one + self.table[:4], table=table, one=torch.ones(1).expand(4))
    assert _compares(model, torch.randn(3, 4))
    assert _compares(_with(lambda self, x: self.layer(x) * self.one.clone(), one=number), torch.randn(3, 4))


@pytest.mark.parametrize("training", [True, False])
def test_a_backward_pass_that_is_pending_goes_on(training: bool) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).train(training)
    loss = model(torch.randn(3, 4)).sum()
    monet.plan(model, (torch.randn(5, 4),), budget="1GB", cache=False)
    loss.backward()


def test_the_casts_of_weights_are_none_that_eager_uses() -> None:
    layer, x = nn.Linear(4, 4), torch.randn(3, 4)
    with torch.autocast("cpu"):
        monet.plan(nn.Sequential(layer), (x,), budget="1GB", cache=False)
        with torch.no_grad():
            layer.weight.mul_(100)
        inside = layer(x)
    with torch.autocast("cpu"):
        assert torch.equal(inside, layer(x))


def test_inputs_are_given_as_they_are() -> None:
    part, shown = torch.randn(3, 8)[:, ::2], torch.randn(1, 4).expand(3, 4)
    assert _compares(_with(lambda self, x: self.layer(x) * (3 if x.is_contiguous() else 1)), part)
    assert _compares(_with(lambda self, x: self.layer(x) * (1 if x.stride(0) == 0 else 3)), shown)
    twice = _with(lambda self, x, other: self.layer(x) * (1 if x is other else 3))
    with pytest.raises(CaptureError, match="another one"):  # a trace has two tensors of one
        _compares(twice, part, part)


def test_an_island_runs_by_the_kernels_of_a_step() -> None:
    """What cancels out is nothing but roundings."""
    torch.manual_seed(1)
    model = _with(lambda self, x: nn.functional.layer_norm(self.lstm(x)[0], (32,)).mean(), lstm=nn.LSTM(32, 32))
    assert _compares(model, torch.randn(16, 20, 32))


def test_an_encoder_that_writes_zeros_where_it_is_padded_says_what_to_do() -> None:
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2).eval().requires_grad_(False)
    padded = torch.tensor([[False, False, True], [False] * 3])
    model = _with(lambda self, x, pad: self.layer(self.encoder(x, src_key_padding_mask=pad)), encoder=encoder).eval()
    inputs = torch.randn(2, 3, 4), padded
    with pytest.raises(CaptureError, match="set_fastpath_enabled"):
        _compares(model, *inputs)
    enabled = torch.backends.mha.get_fastpath_enabled()
    try:
        torch.backends.mha.set_fastpath_enabled(False)
        assert _compares(model, *inputs)
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)


def test_what_says_nothing_is_compared_again() -> None:
    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.layer = nn.Embedding(3, 4), nn.Linear(4, 4)

        def forward(self, tokens: Tensor) -> Tensor:
            out: Tensor = self.layer(self.table(tokens))
            return out * 2 if torch.compiler.is_compiling() else out

    model = Tokens()
    monet.plan(model, (torch.full((2, 2), 7),), budget="1GB")
    with pytest.raises(CaptureError, match="another one"):
        monet.plan(model, (torch.ones(2, 2, dtype=torch.int64),), budget="1GB")


@pytest.mark.parametrize(
    ("forward", "said"),
    [
        (lambda self, x, traced: {"q" if traced else "p": self.layer(x)}, "arranged otherwise"),
        (lambda self, x, traced: (self.layer(x), 7 if traced else None), "arranged otherwise"),
        (lambda self, x, traced: (self.layer(x), self.sums.add_(2 if traced else 1))[0], "buffer sums"),
        (lambda self, x, traced: (self.layer(x), (x * (2 + traced)).to(torch.float8_e4m3fn)), "output 1 differs"),
        (lambda self, x, traced: (self.layer(x), x > traced * 9), "output 1 has other values"),
    ],
    ids=["keys", "no tensor", "buffer", "float8", "choice"],
)
def test_what_is_compared(forward: Any, said: str) -> None:
    model = _with(lambda self, x: forward(self, x, torch.compiler.is_compiling()), sums=torch.zeros(4))
    with pytest.raises(CaptureError, match=said):
        _compares(model, torch.rand(3, 4))


def test_a_buffer_that_is_changed_and_returned() -> None:
    class Averages(nn.Module):
        mean: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)
            self.register_buffer("mean", torch.zeros(8))

        def forward(self, x: torch.Tensor) -> Any:
            y: Tensor = self.layer(x)
            return y, self.mean.add_(y.detach().mean(0))

    model, x = Averages(), torch.randn(4, 8)
    eager = copy.deepcopy(model)
    captured = capture(model, (x,))
    require_same_outputs(captured, model, (x,), {})
    assert torch.equal(model.mean, eager.mean)

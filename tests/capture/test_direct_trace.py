"""The trace of a model itself: the graph of torch.export's detour, and the detour where the two might differ."""

from __future__ import annotations

import functools
import gc
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from monet.base.graph import Operator, operator_inputs
from monet.base.live_objects import live_objects
from monet.capture import capture, tracing
from monet.capture.captured import Captured
from monet.capture.direct_trace import direct_trace
from monet.models.examples import tiny_resnet

aten = torch.ops.aten


class _Of(nn.Module):
    """A layer, and a function of it and the input."""

    layer: Any
    norm: Any
    kept: Any
    last: Any

    def __init__(self, function: Callable[[_Of, torch.Tensor], Any]) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.seen: list[int] = []
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self, x)


def _tied() -> nn.Module:
    model = nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 7, bias=False))
    model[3].weight = model[0].weight
    return model


def _shared() -> nn.Module:
    """An embedding of two names, as an encoder and a decoder have it, and batch norm's buffers of two."""
    model = _Of(lambda of, x: of.last(of.norm((of.layer[1](of.layer[0](x)) + of.kept[1](of.kept[0](x))).flatten(0, 1))))
    embedding = nn.Embedding(7, 4)
    model.layer = nn.Sequential(embedding, nn.Linear(4, 4))
    model.kept = nn.Sequential(embedding, nn.Linear(4, 4))
    model.last = model.norm
    return model


def _of_numbers(model: _Of, x: torch.Tensor) -> Any:
    return model.layer(x) * torch.tensor([1.0, 2.0, 3.0, 4.0]) + torch.tensor(0.5)


def _in_place(model: _Of, x: torch.Tensor) -> Any:
    y = model.norm(model.layer(x)).relu_() * 2
    y[:, 1:] += 1
    with torch.no_grad():
        scale = y.mean()
    return {"y": y * scale, "n": y.detach().argmax(1)}


SAME: dict[str, tuple[Callable[[], nn.Module], Callable[[], torch.Tensor]]] = {
    "convolutions": (lambda: tiny_resnet(), lambda: torch.randn(2, 3, 32, 32)),
    "tied weights": (_tied, lambda: torch.randint(7, (2, 3))),
    "attention": (lambda: nn.TransformerEncoderLayer(8, 2, 16), lambda: torch.randn(3, 2, 8, requires_grad=True)),
    "a GRU's cell": (lambda: nn.GRUCell(4, 3), lambda: torch.randn(2, 4)),
    "numbers": (lambda: _Of(_of_numbers), lambda: torch.randn(2, 4)),
    "a shared module": (_shared, lambda: torch.randint(7, (2, 3))),
    "in place": (lambda: _Of(_in_place), lambda: torch.randn(2, 4)),
}


def _in_order(captured: Captured) -> dict[str, Any]:
    """What is captured, with numbers in place of the names that tracing gives."""
    graph = captured.graph
    number: dict[str, int] = {}
    operators: list[Operator] = [*graph.forward, *graph.backward]
    for name in (name for op in operators for name in (*operator_inputs(op), *op.outputs) if name is not None):
        number.setdefault(name, len(number))

    def plain(argument: Any) -> Any:
        if isinstance(argument, list | tuple):
            return [plain(item) for item in argument]
        name = argument if isinstance(argument, str) else getattr(argument, "name", None)
        return number[name] if name in number else str(argument)

    def value(name: str) -> Any:
        of = graph.values[name]
        size = of.storage_bytes
        return of.shape, of.stride, of.offset, of.dtype, number.get(of.storage), size, of.conjugate, of.negative

    return {
        "operators": [
            (str(op.target), plain(op.args), plain(op.kwargs), plain(op.outputs), op.view, op.random)
            for op in operators
        ],
        "values": [value(name) for name in number],
        "sources": sorted(
            (number[s.value], s.kind, s.requires_grad, s.kind == "constant" or s.target)
            for s in graph.sources
            if s.value in number
        ),
        "constants": [captured.constants[s.target].tolist() for s in graph.sources if s.kind == "constant"],
        "gradients": sorted((number.get(a, a), number[b]) for a, b in graph.gradients.items()),
        "outputs": plain(graph.outputs),
        "tangents": [name and number.get(name) for name in graph.tangents],
        "specs": (captured.in_spec, captured.out_spec, captured.literals, captured.output_literals),
    }


@pytest.mark.parametrize("cast", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("of", SAME)
def test_the_graph_is_that_of_the_detour(of: str, cast: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Operators, their lines, values, sources, gradients; without ``torch.export``."""
    make, make_input = SAME[of]
    model, x = make(), make_input()
    with torch.autocast("cpu", torch.bfloat16, enabled=cast):
        with monkeypatch.context() as without:
            without.setattr(tracing, "forward_graph", None)
            direct = capture(model, (x,))
        monkeypatch.setattr(tracing, "direct_trace", lambda *call, **options: "the long way")
        other = capture(model, (x,))
    assert _in_order(direct) == _in_order(other)
    lines, others = ([op.where for op in (*of.graph.forward, *of.graph.backward)] for of in (direct, other))
    targets = [op.target for op in (*direct.graph.forward, *direct.graph.backward)]
    assert all(line or target is aten.copy_.default for line, target in zip(lines, targets, strict=True))
    # The detour has none under no_grad.
    assert all(b in (a, "") for a, b in zip(lines, others, strict=True))


def _autocast(model: _Of, x: torch.Tensor) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        return model.layer(model.layer(x))


def _replaces_a_buffer(model: _Of, x: torch.Tensor) -> Any:
    model.norm.running_mean = model.norm.running_mean + 1
    return model.layer(x) + model.norm.running_mean


def _hooks(model: _Of, x: torch.Tensor) -> Any:
    y = model.layer(x)
    y.register_hook(lambda gradient: gradient * 2)
    return y.relu()


DETOUR: dict[str, Callable[[_Of, torch.Tensor], Any]] = {
    "autocast": _autocast,
    "a checkpoint": lambda model, x: checkpoint(model.layer, x, use_reentrant=False),
    "a hook": _hooks,
    "a buffer": _replaces_a_buffer,
    "data": lambda model, x: model.layer(x) * model.layer.weight.data.sum(),
    "a gradient": lambda model, x: torch.autograd.grad(model.layer(x).sum(), model.layer.weight, create_graph=True)[0],
    "a part": lambda model, x: model.layer(x)[:, :2],
    "one output twice": lambda model, x: [model.layer(x)] * 2,
    "a parameter": lambda model, x: (model.layer(x), model.layer.weight),
    "what is decided by values": lambda model, x: model.layer(x) if x.sum() > 0 else x,
}


@pytest.mark.parametrize("of", DETOUR)
def test_what_may_differ_takes_the_detour(of: str) -> None:
    """And leaves the module as it was."""
    model = _Of(DETOUR[of])
    before = {name: dict(vars(module)) for name, module in model.named_modules()}
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    assert isinstance(direct_trace(model, (torch.randn(2, 4),), {}), str)
    assert {name: dict(vars(module)) for name, module in model.named_modules()} == before
    assert model.seen == []
    after = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    assert all(after[name] is tensor for name, tensor in tensors.items())


def test_a_shared_module_keeps_its_weights() -> None:
    model = nn.Sequential(*[nn.Linear(4, 4)] * 2)
    weight = model[0].weight
    assert not isinstance(direct_trace(model, (torch.randn(2, 4),), {}), str)
    assert model[0].weight is weight


def test_an_lstm_has_its_own_weights_afterwards() -> None:
    """It notes in its forward pass which tensors its weights are."""
    model = nn.LSTM(4, 3)
    assert isinstance(direct_trace(model, (torch.randn(2, 1, 4),), {}), str)
    assert all(a is b for a, b in zip(model._flat_weights, model.parameters(), strict=True))


def test_a_weight_that_autocast_casts_for_several_uses_takes_the_detour() -> None:
    twice = _Of(lambda model, x: model.layer(model.layer(x)))
    with torch.autocast("cpu", torch.bfloat16):
        assert isinstance(direct_trace(twice, (torch.randn(2, 4),), {}), str)
    assert not isinstance(direct_trace(twice, (torch.randn(2, 4),), {}), str)


def test_what_a_model_writes_is_written_once(capsys: pytest.CaptureFixture[str]) -> None:
    def talks(model: _Of, x: torch.Tensor) -> Any:
        print("hello")
        print("there", file=sys.stderr)
        return model.layer(x)

    capture(_Of(talks), (torch.randn(2, 4),))
    assert tuple(capsys.readouterr()) == ("hello\n", "there\n")


@functools.lru_cache
def _mask(width: int) -> torch.Tensor:
    return torch.ones(width).cumsum(0)


def test_what_is_cached_from_call_to_call() -> None:
    """By a function, which then has it made again, or by an object that the model holds."""
    captured = capture(_Of(lambda model, x: model.layer(x) * _mask(4)), (torch.randn(2, 4),))
    assert "aten.cumsum.default" in {str(op.target) for op in captured.graph.forward}

    def keeps(model: _Of, x: torch.Tensor) -> Any:
        if model.kept.mask is None:
            model.kept.mask = torch.ones(4).cumsum(0)
        return model.layer(x) * model.kept.mask

    model = _Of(keeps)
    model.kept = types.SimpleNamespace(mask=None)
    assert isinstance(direct_trace(model, (torch.randn(2, 4),), {}), str) and model.kept.mask is None


def test_what_is_cached_is_found_among_frozen_objects() -> None:
    gc.freeze()
    assert not any(found is _mask for found in gc.get_objects())
    assert any(found is _mask for found in live_objects())
    assert gc.get_freeze_count()

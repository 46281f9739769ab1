"""What is captured: pairs of gradients, tied weights, outputs, mutation."""

from __future__ import annotations

import contextlib
import io
import logging
import sys
from collections.abc import Callable

import pytest
import torch
from small_models import Awkward, Inverted, Residual, Transformer
from torch import nn
from torch._subclasses import FakeTensorMode

import monet
from monet.base.graph import BUFFER, INPUT, operator_inputs
from monet.capture import capture
from monet.errors import CaptureError

aten = torch.ops.aten

INPUTS: dict[Callable[[], nn.Module], Callable[[], torch.Tensor]] = {
    Residual: lambda: torch.zeros(2, 3, 8, 8),
    Inverted: lambda: torch.zeros(2, 4, 8, 8),
    Transformer: lambda: torch.zeros(2, 6, dtype=torch.long),
}


def test_convolution_gradients_are_apart() -> None:
    graph = capture(Residual(), (torch.randn(2, 3, 8, 8),)).graph
    masks = [op.args[-1] for op in graph.backward if op.target is aten.convolution_backward.default]
    assert masks and all(not (m[0] and (m[1] or m[2])) for m in masks)
    names = [op.name for op in graph.backward]
    for name in names:
        if name.endswith("_input") and name.removesuffix("_input") + "_params" in names:
            assert names.index(name) == names.index(name.removesuffix("_input") + "_params") + 1


def test_buffers_are_updated_in_place_once() -> None:
    model = Residual()
    graph = capture(model, (torch.randn(2, 3, 8, 8),)).graph
    assert not graph.mutations
    norms = sum(isinstance(m, nn.BatchNorm2d) for m in model.modules())
    assert sum(op.target is aten.native_batch_norm.default for op in graph.forward) == norms
    assert sum(op.target is aten.add_.Tensor for op in graph.forward) == norms
    assert not any(op.target is aten.copy_.default for op in graph.forward)
    buffers = {s.value for s in graph.sources if s.kind == BUFFER}
    assert not any(buffers & set(operator_inputs(op)) for op in graph.backward)


def test_tied_weights_are_one_storage() -> None:
    model = Awkward()
    captured = capture(model, (torch.zeros(2, 4, dtype=torch.long),), {"scale": torch.randn(2, 4, 8)})
    graph = captured.graph
    weights = [s for s in graph.sources if s.target in ("embed.weight", "out.weight")]
    assert len({graph.storage(s.value) for s in weights}) == 1
    assert sum(s.value in graph.gradients for s in weights) == 1
    assert set(captured.constants) == {"shift"}
    assert captured.output_literals == {2: 3}


def test_outputs_have_memory_of_their_own() -> None:
    captured = capture(Awkward(), (torch.zeros(2, 4, dtype=torch.long),), {"scale": torch.randn(2, 4, 8)})
    graph = captured.graph
    storages = [graph.storage(name) for name in graph.outputs if name is not None]
    assert len(storages) == len(set(storages)) == 4
    assert not set(storages) & {graph.storage(s.value) for s in graph.sources}


def test_fingerprint_depends_on_shape_and_structure_only() -> None:
    x = torch.randn(2, 3, 8, 8)
    first = capture(Residual(), (x,)).graph.fingerprint()
    assert first == capture(Residual(), (torch.zeros(2, 3, 8, 8),)).graph.fingerprint()
    assert first != capture(Residual(), (torch.randn(3, 3, 8, 8),)).graph.fingerprint()
    assert first != capture(Residual(16), (x,)).graph.fingerprint()
    assert first != capture(Residual().eval(), (x,)).graph.fingerprint()


@pytest.mark.parametrize("make", INPUTS)
def test_fake_models_are_captured_like_real_ones(make: Callable[[], nn.Module]) -> None:
    real = capture(make(), (INPUTS[make](),)).graph
    with FakeTensorMode():
        fake = capture(make(), (INPUTS[make](),)).graph
    assert real.fingerprint() == fake.fingerprint()


def test_tied_weights_of_a_fake_model_are_one_storage() -> None:
    with FakeTensorMode():
        model, args = Awkward(), (torch.zeros(2, 4, dtype=torch.long),)
        graph = capture(model, args, {"scale": torch.zeros(2, 4, 8)}).graph
    weights = [s.value for s in graph.sources if s.target in ("embed.weight", "out.weight")]
    assert len(weights) == 2 and len({graph.storage(name) for name in weights}) == 1
    assert sum(name in graph.gradients for name in weights) == 1


def test_a_model_on_the_meta_device_is_refused() -> None:
    with torch.device("meta"):
        model, x = nn.Linear(3, 3), torch.zeros(2, 3)
    with pytest.raises(CaptureError, match=r"weight is on the meta device.*FakeTensorMode"):
        capture(model, (x,))
    with pytest.raises(CaptureError, match="weight is on the meta device"):
        monet.plan(model, (x,), budget="1MB")


class Graph(nn.Module):
    """A layer of a graph network, whose adjacency is a buffer, an input, or made in the model."""

    def __init__(self, buffer: torch.Tensor | None = None) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("adjacency", buffer)

    def forward(self, x: torch.Tensor, adjacency: torch.Tensor | None = None) -> torch.Tensor:
        if self.adjacency is None and adjacency is None:
            adjacency = (x @ x.T).detach().to_sparse()
        out: torch.Tensor = torch.sparse.mm(self.adjacency if adjacency is None else adjacency, self.layer(x))
        return out


def test_sparse_tensors_are_refused_by_name() -> None:
    x, sparse = torch.randn(4, 4), torch.eye(4).to_sparse()
    made: list[tuple[nn.Module, tuple[torch.Tensor, ...], str]] = [
        (Graph(sparse), (x,), "adjacency"), (Graph(), (x, sparse), "input 1"), (Graph(), (x,), "")
    ]  # fmt: skip
    for model, args, name in made:
        with pytest.raises(CaptureError, match=f"{name}.* layout torch.sparse_coo.*to_dense"):
            capture(model, args)


class Split(nn.Linear):
    def forward(self, x: torch.Tensor, at: torch.Tensor) -> list[torch.Tensor]:  # type: ignore[override]
        return [*torch.tensor_split(super().forward(x), at)]


def test_shapes_by_values_are_refused_by_name() -> None:
    with pytest.raises(CaptureError, match=r"shape of \w+ depends on the values.*\n  at File .*test_capture.py"):
        capture(Split(4, 4), (torch.randn(6, 4), torch.tensor([2, 5])))


def test_checks_of_casts_are_no_operators() -> None:
    class Cast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x * self.weight).to(torch.float64).sum()

    graph = capture(Cast(), (torch.randn(2, 3),)).graph
    assert aten._to_copy.default in [op.target for op in graph.forward]
    assert not any("_assert" in op.signature for op in (*graph.forward, *graph.backward))


def test_random_operators_are_known() -> None:
    graph = capture(nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5)), (torch.randn(2, 3),)).graph
    assert [op.random for op in graph.forward if op.target is aten.native_dropout.default] == [True]


def test_two_inputs_that_share_memory() -> None:
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x * self.weight + y

    x = torch.randn(4, 3)
    graph = capture(Sum(), (x, x)).graph
    assert len([s for s in graph.sources if s.kind == INPUT]) == 2


def test_reading_a_changed_buffer_in_backward_is_refused() -> None:
    class Changed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))
            self.register_buffer("seen", torch.ones(3))
            self.seen: torch.Tensor

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x * self.weight * self.seen
            self.seen.add_(1)
            return y

    with pytest.raises(CaptureError):
        capture(Changed(), (torch.randn(2, 3),))


def test_what_cannot_be_planned_says_what_to_do() -> None:
    with pytest.raises(CaptureError, match=r"mkldnn\.flags\(enabled=False\)"):
        capture(nn.LSTM(16, 32), (torch.randn(4, 6, 16),))
    with torch.backends.mkldnn.flags(enabled=False):
        assert capture(nn.LSTM(16, 32), (torch.randn(4, 6, 16),)).graph.gradients
    with pytest.raises(CaptureError, match="max_norm"):
        capture(nn.Embedding(5, 3, max_norm=1.0), (torch.tensor([1, 2]),))


def test_operators_that_raise_by_values_are_refused_with_another_form() -> None:
    class Inverts(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            inverse: torch.Tensor = torch.linalg.inv(super().forward(x))
            return inverse

    class InvertsUnchecked(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            inverse: torch.Tensor = torch.linalg.inv_ex(super().forward(x)).inverse
            return inverse

    with pytest.raises(CaptureError, match="inv_ex"):
        capture(Inverts(3, 3), (torch.randn(3, 3),))
    assert capture(InvertsUnchecked(3, 3), (torch.randn(3, 3),)).graph.gradients


def test_reflection_of_more_than_there_is_is_refused() -> None:
    class Reflects(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.pad(super().forward(x), (0, 0, 3, 3), mode="reflect")

    with pytest.raises(CaptureError, match="padding"):
        capture(Reflects(3, 5), (torch.randn(1, 1, 3, 3),))
    assert capture(Reflects(3, 3), (torch.randn(1, 1, 4, 3),)).graph.gradients


def _branches(x: torch.Tensor) -> torch.Tensor:
    return x if x.sum() > 0 else -x


def _repeats(x: torch.Tensor) -> torch.Tensor:
    for _ in range(int(x.sum())):
        x = x * 2
    return x


def _scales(x: torch.Tensor) -> torch.Tensor:
    return x * x.max().item()


def _masks(x: torch.Tensor) -> torch.Tensor:
    return x[x > 0]


def _counts(x: torch.Tensor) -> torch.Tensor:
    lengths = (x > 0).sum(dim=1).tolist()
    return x * len(set(lengths))


class ByValues(nn.Linear):
    def __init__(self, then: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__(3, 3)
        self.then = then

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.then(super().forward(x))


@pytest.mark.parametrize(
    ("then", "line"),
    [
        (_branches, "return x if x.sum"),
        (_repeats, "for _ in range"),
        (_scales, "return self.then"),
        (_masks, "return self.then"),
        (_counts, "return x . len"),
    ],
)
def test_what_depends_on_values_is_said_with_the_line(
    then: Callable[[torch.Tensor], torch.Tensor], line: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(CaptureError, match=rf"depends on the values.*torch\.where.*\n +at File .*: {line}") as found:
        capture(ByValues(then), (torch.randn(2, 3),))
    assert capfd.readouterr() == ("", "")  # of torch's own reports
    assert len(str(found.value).splitlines()) == 2


def test_what_a_model_writes_stays() -> None:
    def talks(x: torch.Tensor) -> torch.Tensor:
        print("hello", file=sys.stderr)
        return x if x.sum() > 0 else -x

    with contextlib.redirect_stderr(io.StringIO()) as written, pytest.raises(CaptureError):
        capture(ByValues(talks), (torch.randn(2, 3),))
    assert written.getvalue() == "hello\n"


@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic"])
def test_interpolation_is_one_operator(mode: str) -> None:
    """Torch's own tracing makes it of indexing and arithmetic; afterwards it does so again."""
    model = nn.Upsample(scale_factor=2, mode=mode)
    x = torch.randn(1, 2, 3, 3, requires_grad=True)
    graph = capture(model, (x,)).graph
    kernel = getattr(aten, f"upsample_{mode}2d")
    assert [op.target for op in graph.forward] == [kernel.default]
    assert [op.target for op in graph.backward] == [getattr(aten, f"upsample_{mode}2d_backward").default]
    assert torch._C.DispatchKey.Autograd in kernel.vec.py_kernels


def test_views_of_what_the_backward_pass_makes_stay_there() -> None:
    """Zeros for the parts of a tensor that take no gradient are made late, and so are their views."""
    graph = capture(_Part(), (torch.randn(2, 3, requires_grad=True),)).graph
    made = {source.value for source in graph.sources} | set(graph.tangents)
    for op in (*graph.forward, *graph.backward):
        assert {*operator_inputs(op)} <= made, op.name
        made |= set(op.outputs)


class _Part(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = (x * 2).unbind(1)
        return parts[0] * parts[1]


def test_checks_of_data_are_left_out() -> None:
    """``one_hot`` looks whether classes are in range; nothing reads what the check makes."""

    class Encoded(nn.Module):
        def forward(self, x: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
            return x * nn.functional.one_hot(classes, 5)

    graph = capture(Encoded(), (torch.randn(4, 5, requires_grad=True), torch.tensor([0, 4, 2, 1]))).graph
    assert not any("assert" in str(op.target) for op in graph.forward)


def test_what_the_model_fails_on_by_itself_is_said_to_be_its_own(caplog: pytest.LogCaptureFixture) -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with caplog.at_level(logging.INFO), pytest.raises(CaptureError) as failed:
        capture(model, (torch.randn(1, 4, 8, 8),), {})
    message = str(failed.value)
    assert message.startswith("the model fails on such inputs, planned or not: RuntimeError: Given groups=1")
    assert "torch.export" not in message and not caplog.text
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in before.items())

"""The samples of every operator's record: each implementation against the first, and the first against eager."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from evaluation import compare_with_eager, evaluate, strides, try_every_implementation
from repository import ROOT

from monet.base.graph import Ref, Value
from monet.capture import Captured, capture
from monet.cli.commands.operator_table import captured_sample, table
from monet.errors import ProfileError
from monet.ops.catalogue import catalogue
from monet.ops.measuring import bench
from monet.ops.measuring.bench import Bench
from monet.ops.measuring.profiling import implementations
from monet.ops.measuring.signature import signature
from monet.ops.offers.implementation import Implementation
from monet.ops.offers.record import Record
from monet.ops.offers.sample import Sample
from monet.ops.registry import RECORDS

# Of the 16-bit formats a third: their kernels are float32's, with other roundings.
SAMPLES = [
    pytest.param(
        record, sample, dtype, id=f"{sample.name}-{str(dtype).removeprefix('torch.')}",
        marks=[pytest.mark.slow] if dtype.itemsize == 2 and number % 3 else [],
    )
    for record in RECORDS
    for number, sample in enumerate(record.samples)
    for dtype in sample.dtypes
]  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Small operators on several threads wait for each other where other programs run too: 20 times as long."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def resident_bench() -> Iterator[Bench]:
    """One for all: its memory is made resident once."""
    made = Bench()
    yield made
    made._inputs.clear()  # they must not outlive their arenas, as they could in the traceback of a failed test


@pytest.mark.parametrize(("record", "sample", "dtype"), SAMPLES)
@pytest.mark.sampled(6)
def test_sample(
    record: Record, sample: Sample, dtype: torch.dtype, resident_bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operator occurs; its first implementations equal eager bit by bit, all others are as exact as they say;
    and each can be measured."""
    monkeypatch.setattr(bench, "ENOUGH_S", 0.0)  # requests matter here, not seconds
    module, captured, offers = captured_sample(sample, dtype)
    inputs = sample.inputs(dtype)
    targets = {op.target for op in (*captured.graph.forward, *captured.graph.backward)}
    assert targets & {*record.forward_targets, *record.backward_targets}, f"{record.name} does not occur"
    env = evaluate(offers, captured, module, list(inputs))
    _compare_with_graph(captured, env)
    compare_with_eager(captured, env, module, inputs, {})
    try_every_implementation(offers, captured, module, env)
    for implementation in implementations(offers):
        assert "monet" not in signature(implementation, offers.values), "a key that a move of files would change"
        resident_bench.measure(implementation, offers.values)


def _turned(x: torch.Tensor) -> torch.Tensor:
    return x.mT.contiguous().mT if x.dim() > 1 else x


def _channels_last(x: torch.Tensor) -> torch.Tensor:
    """With dimension 1 innermost, of any number of dimensions."""
    return x.movedim(1, -1).contiguous().movedim(-1, 1) if x.dim() > 2 else x


class _InLayout(torch.nn.Module):
    """A program whose activations come in another order of memory, and its outputs' gradients too."""

    def __init__(self, module: torch.nn.Module, layout: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.module, self.layout = module, layout

    def forward(self, *activations: torch.Tensor) -> Any:
        results = self.module(*(self.layout(x) if x.is_floating_point() else x for x in activations))
        single = isinstance(results, torch.Tensor)
        turned = tuple(self.layout(r) if r.is_floating_point() else r for r in ((results,) if single else results))
        return turned[0] if single else turned


# A tensor in such a layout cannot be viewed as this sample does; and this one's kernel in channels-last, 1x1 with
# strides, writes past its memory in torch 2.13's own oneDNN (F.conv2d(x, w, stride=2) ends eager, too).
_NOT_IN_LAYOUTS = {"views", "conv2d-1x1-strided"}


@pytest.mark.parametrize(
    ("sample", "layout"),
    [
        pytest.param(sample, layout, id=f"{sample.name}-{layout.__name__.strip('_')}")
        for record in RECORDS
        for sample in record.samples
        for layout in ((_channels_last,) if record.family == "convolutions" else (_turned, _channels_last))
        if sample.name not in _NOT_IN_LAYOUTS and torch.float32 in sample.dtypes
        # Of three dimensions, the two are one.
        if any(isinstance(a, tuple) and len(a) > 1 and (len(a) == 2) <= (layout is _turned) for a in sample.activations)
        if layout is _channels_last or any(isinstance(a, tuple) and len(a) in (2, 4, 5) for a in sample.activations)
    ],
)
@pytest.mark.sampled(8)
def test_graph_tells_the_geometry_in_other_layouts(
    sample: Sample, layout: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    """Bits and packings are in the order of memory: results lie where the graph says, in whatever order inputs do."""
    module, inputs = _InLayout(sample.module(), layout), sample.inputs()
    captured = capture(module, inputs)
    env = evaluate(catalogue(captured.graph), captured, module, list(inputs))
    _compare_with_graph(captured, env)


def test_result_that_the_graph_does_not_tell_is_an_error(resident_bench: Bench) -> None:
    """A kernel whose results are in another memory format than traced stops planning."""
    x = Value("x", (5, 7), (1, 5), 0, torch.float32, torch.device("cpu"), "x", 140)
    turned = Implementation("aten", torch.ops.aten.sin.default, (Ref("x"),), (), ("y",))
    resident_bench.measure(turned, {"x": x, "y": replace(x, name="y", storage="y")})
    told = {"x": x, "y": replace(x, name="y", storage="y", stride=(7, 1))}
    with pytest.raises(ProfileError, match=r"\[1, 5\], but torch traced it as float32 \[5, 7\] with strides \[7, 1\]"):
        resident_bench.measure(turned, told)
    with pytest.raises(ProfileError, match="traced it as bfloat16"):
        resident_bench.measure(turned, {"x": x, "y": replace(x, name="y", dtype=torch.bfloat16)})


def _compare_with_graph(captured: Captured, env: Mapping[str, torch.Tensor]) -> None:
    """What the graph says of a value is so: implementations rely on its strides."""
    for name, value in captured.graph.values.items():
        meant = [step for step, size in zip(value.stride, value.shape, strict=True) if size > 1]
        found = env[name]
        assert (found.shape, found.dtype, strides(found)) == (value.shape, value.dtype, meant), name


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.name)
@pytest.mark.sampled(2)
def test_samples_have_every_operator_of_their_record(record: Record) -> None:
    assert record.samples
    missing = {*record.forward_targets, *record.backward_targets}
    for sample in record.samples:
        if not missing:
            break
        graph = captured_sample(sample, sample.dtypes[0])[1].graph
        missing -= {op.target for op in (*graph.forward, *graph.backward)}
    assert not missing


@pytest.mark.slow  # half a minute for a generated page
@pytest.mark.usefixtures("kernels_of_the_table")
def test_document_is_the_table() -> None:
    """After a change of what is offered: ``monet operators > docs/operators.md``."""
    assert (ROOT / "docs" / "operators.md").read_text() == table()

"""The samples of every operator's record: each implementation against the first, and the first against eager."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import torch
from evaluation import compare_with_eager, evaluate, strides, try_every_implementation

from monet.capture import Captured
from monet.operator_table import captured_sample, table
from monet.ops import measure
from monet.ops.measure import Bench
from monet.ops.profiling import implementations
from monet.ops.record import Record
from monet.ops.registry import RECORDS
from monet.ops.sample import Sample

SAMPLES = [
    pytest.param(record, sample, dtype, id=f"{sample.name}-{str(dtype).removeprefix('torch.')}")
    for record in RECORDS
    for sample in record.samples
    for dtype in sample.dtypes
]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Small operators on several threads wait for each other where other programs run too: 20 times as long."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    """One for all: its memory is made resident once."""
    made = Bench()
    yield made
    made._inputs.clear()  # they must not outlive their arenas, as they could in the traceback of a failed test


@pytest.mark.parametrize(("record", "sample", "dtype"), SAMPLES)
def test_sample(
    record: Record, sample: Sample, dtype: torch.dtype, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operator occurs; its first implementations equal eager bit by bit, all others are as exact as they say;
    and each can be measured."""
    monkeypatch.setattr(measure, "ENOUGH_S", 0.0)  # requests matter here, not seconds
    module, captured, offers = captured_sample(sample, dtype)
    inputs = sample.inputs(dtype)
    targets = {op.target for op in (*captured.graph.forward, *captured.graph.backward)}
    assert targets & {*record.forward_targets, *record.backward_targets}, f"{record.name} does not occur"
    env = evaluate(offers, captured, module, list(inputs))
    _compare_with_graph(captured, env)
    compare_with_eager(captured, env, module, inputs, {})
    try_every_implementation(offers, captured, module, env)
    for implementation in implementations(offers):
        bench.measure(implementation, offers.values)


def _compare_with_graph(captured: Captured, env: Mapping[str, torch.Tensor]) -> None:
    """What the graph says of a value is so: implementations rely on its strides."""
    for name, value in captured.graph.values.items():
        meant = [step for step, size in zip(value.stride, value.shape, strict=True) if size > 1]
        found = env[name]
        assert (found.shape, found.dtype, strides(found)) == (value.shape, value.dtype, meant), name


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.name)
def test_samples_have_every_operator_of_their_record(record: Record) -> None:
    assert record.samples
    missing = {*record.forward_targets, *record.backward_targets}
    for sample in record.samples:
        if not missing:
            break
        graph = captured_sample(sample, sample.dtypes[0])[1].graph
        missing -= {op.target for op in (*graph.forward, *graph.backward)}
    assert not missing


@pytest.mark.usefixtures("kernels_of_the_table")
def test_document_is_the_table() -> None:
    """After a change of what is offered: ``monet operators > docs/operators.md``."""
    assert (Path(__file__).parents[1] / "docs" / "operators.md").read_text() == table()

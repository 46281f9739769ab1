"""The samples of every operator's record: each implementation against the first, and the first against eager."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree
from evaluation import evaluate, strides, try_every_implementation

from monet.capture import Captured, capture
from monet.ops.catalogue import catalogue
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
    module, inputs = sample.module(dtype), sample.inputs(dtype)
    captured = capture(module, inputs)
    offers = catalogue(captured.graph)
    targets = {op.target for op in (*captured.graph.forward, *captured.graph.backward)}
    assert targets & {*record.forward_targets, *record.backward_targets}, f"{record.name} does not occur"
    torch.manual_seed(7)
    env = evaluate(offers, captured, module, list(inputs))
    _compare_with_graph(captured, env)
    _compare_with_eager(captured, env, module, inputs)
    try_every_implementation(offers, captured, module, env)
    monkeypatch.setattr("monet.ops.measure.ENOUGH_S", 0.0)  # requests are compared, seconds don't matter
    for implementation in implementations(offers):
        bench.measure(implementation, offers.values)


def _compare_with_graph(captured: Captured, env: dict[str, Any]) -> None:
    """What the graph says of a value is so: implementations rely on its strides."""
    for name, value in captured.graph.values.items():
        meant = [step for step, size in zip(value.stride, value.shape, strict=True) if size > 1]
        found = env[name]
        assert (found.shape, found.dtype, strides(found)) == (value.shape, value.dtype, meant), name


def _compare_with_eager(captured: Captured, env: dict[str, Any], module: torch.nn.Module, inputs: Any) -> None:
    torch.manual_seed(7)
    leaves = [x.detach().clone().requires_grad_(x.requires_grad) for x in inputs]
    outputs = pytree.tree_leaves(module(*leaves))
    graph = captured.graph
    for name, expected in zip(graph.outputs, outputs, strict=True):
        assert name is not None and torch.equal(env[name], expected), name
    graded = [(o, env[t]) for o, t in zip(outputs, graph.tangents, strict=True) if t is not None]
    torch.autograd.backward([o for o, _ in graded], [t for _, t in graded])
    for source in graph.sources:
        if source.value in graph.gradients:
            leaf = leaves[int(source.target)] if source.kind == "input" else module.get_parameter(source.target)
            found = env[graph.gradients[source.value]]
            assert leaf.grad is not None and torch.equal(found, leaf.grad), f"gradient of {source.value}"


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.name)
def test_samples_have_every_operator_of_their_record(record: Record) -> None:
    assert record.samples
    missing = {*record.forward_targets, *record.backward_targets}
    for sample in record.samples:
        if not missing:
            break
        graph = capture(sample.module(sample.dtypes[0]), sample.inputs(sample.dtypes[0])).graph
        missing -= {op.target for op in (*graph.forward, *graph.backward)}
    assert not missing

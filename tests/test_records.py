"""The samples of every operator's record: each implementation against the first, and the first against eager."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from evaluation import compare_with_eager, evaluate, try_every_implementation

from monet.operator_table import captured_sample, table
from monet.ops import measure
from monet.ops.profiling import profile
from monet.ops.record import Record
from monet.ops.registry import RECORDS
from monet.ops.sample import Sample

SAMPLES = [
    pytest.param(record, sample, dtype, id=f"{sample.name}-{str(dtype).removeprefix('torch.')}")
    for record in RECORDS
    for sample in record.samples
    for dtype in sample.dtypes
]


@pytest.mark.parametrize(("record", "sample", "dtype"), SAMPLES)
def test_sample(record: Record, sample: Sample, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """The operator occurs; its first implementations equal eager bit by bit, all others are as exact as they say;
    and each can be measured."""
    monkeypatch.setattr(measure, "ENOUGH_S", 0.0)  # requests matter here, not seconds
    module, captured, offers = captured_sample(sample, dtype)
    inputs = sample.inputs(dtype)
    targets = {op.target for op in (*captured.graph.forward, *captured.graph.backward)}
    assert targets & {*record.forward_targets, *record.backward_targets}, f"{record.name} does not occur"
    env = evaluate(offers, captured, module, list(inputs))
    compare_with_eager(captured, env, module, inputs, {})
    try_every_implementation(offers, captured, module, env)
    profile(offers)


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.name)
def test_samples_have_every_operator_of_their_record(record: Record) -> None:
    assert record.samples
    found = set()
    for sample in record.samples:
        graph = captured_sample(sample, sample.dtypes[0])[1].graph
        found |= {op.target for op in (*graph.forward, *graph.backward)}
    assert not {*record.forward_targets, *record.backward_targets} - found


def test_document_is_the_table() -> None:
    """After a change of what is offered: ``monet operators > docs/operators.md``."""
    assert (Path(__file__).parents[1] / "docs" / "operators.md").read_text() == table()

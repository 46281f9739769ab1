"""Every implementation that the catalogue offers, against eager's kernel, on values of a real step."""

from __future__ import annotations

import pytest
import torch
from evaluation import evaluate, try_every_implementation
from offer_cases import CASES

from monet.base.graph import Ref
from monet.base.measurement import Request
from monet.capture import capture
from monet.ops.catalogue import Catalogue, catalogue
from monet.ops.families.convolution import offers as convolution_offers
from monet.ops.families.convolution.offers import chunk_counts
from monet.ops.measuring.bench import Bench
from monet.ops.measuring.profiling import implementations, profile
from monet.ops.offers.implementation import Implementation
from monet.ops.offers.offering import Offering


@pytest.mark.parametrize("case", CASES)
def test_every_implementation_computes_what_the_first_does(case: str) -> None:
    model, args, kwargs = CASES[case]
    torch.manual_seed(0)
    captured = capture(model, args, kwargs)
    offers = catalogue(captured.graph)
    env = evaluate(offers, captured, model, [*args, *kwargs.values()])
    assert try_every_implementation(offers, captured, model, env) > 20


def test_families_offer_what_they_should() -> None:
    """Guards the table itself: a condition that is never true would leave the tests above empty."""
    offered: set[tuple[str, str]] = set()
    for model, args, kwargs in CASES.values():
        offers = catalogue(capture(model, args, kwargs).graph)
        for kind, group in (
            ("forward", offers.forward),
            ("recompute", offers.recompute),
            ("backward", offers.backward),
        ):
            offered |= {(kind, i.name) for named in group.values() for i in named.values()}
        offered |= {("intermediate", s.implementation.name) for saved in offers.intermediates.values() for s in saved}
    assert offered >= {
        ("forward", "in-place"),
        ("forward", "chunks-4"),
        ("recompute", "saved-statistics"),
        ("recompute", "statistics-again"),
        ("backward", "from-output"),
        ("backward", "from-bits"),
        ("backward", "from-bits-in-place"),
        ("backward", "from-cells"),
        ("backward", "chunks-4"),
        ("backward", "from-output-aten"),
        ("backward", "from-output-in-place"),
        ("intermediate", "bits"),
        ("intermediate", "cells"),
    }


def test_exact_leaves_only_exact_implementations() -> None:
    model, args, kwargs = CASES["residual"]
    graph = capture(model, args, kwargs).graph
    assert any(not i.exact for i in implementations(catalogue(graph)))
    assert all(i.exact for i in implementations(catalogue(graph, Offering(exact=True))))


def test_a_product_is_overwritten_where_it_is_seen_as_another_shape() -> None:
    """A linear layer's product is a matrix; what reads it sees (batch, length, width). A part is not all of it."""

    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.wide, self.back = torch.nn.Linear(8, 32), torch.nn.Linear(32, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x + self.back(torch.nn.functional.gelu(self.wide(x)))
            z: torch.Tensor = y * self.back(torch.nn.functional.gelu(self.wide(y)[:, 1:])).sum()
            return z

    torch.manual_seed(0)
    model, x = Layer(), torch.randn(2, 5, 8, requires_grad=True)
    captured = capture(model, (x,), {})
    offers = catalogue(captured.graph)
    found = [
        (run.call_name, run.name)
        for group in (offers.forward, offers.backward)
        for named in group.values()
        for run in named.values()
        if run.overwrites is not None and captured.graph.storage(run.overwrites) != run.overwrites
    ]
    assert found.count(("aten.gelu_.default", "in-place")) == 1
    assert {("aten.add_.Tensor", "in-place-other"), ("aten.gelu_backward.grad_input", "in-place")} <= set(found)
    env = evaluate(offers, captured, model, [x])
    assert try_every_implementation(offers, captured, model, env) > 20


@pytest.mark.parametrize("taken", [True, False])
def test_convolutions_that_are_not_onednns_have_only_their_kernel(taken: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eager adds images up in bfloat16 there: another implementation would be right, and not what eager has."""
    monkeypatch.setattr(convolution_offers, "onednn_takes", lambda dtype: taken)
    model = torch.nn.Sequential(*(torch.nn.Conv2d(64, 64, 3, padding=1) for _ in range(2))).bfloat16()
    runs = implementations(catalogue(capture(model, (torch.randn(8, 64, 32, 32).bfloat16(),), {}).graph))
    assert all(run.exact for run in runs) != taken


def test_measurements_tell_outputs_from_temporaries() -> None:
    """A chunked convolution's workspace is smaller, and every output is one request."""
    model, args, kwargs = CASES["residual"]
    offers = catalogue(capture(model, args, kwargs).graph)
    measured = profile(offers)
    for implementation in implementations(offers):
        found = measured.of(implementation, offers)
        placed = [r.output for r in found.requests if r.output is not None]
        assert len(placed) == len(set(placed))
        assert all(r.end is None for r in found.requests if r.output is not None)
        assert all(r.end is not None and r.begin < r.end <= found.ticks for r in found.requests if r.output is None)
        named = [i for i, n in enumerate(implementation.outputs) if n is not None]
        expected = named[1:] if implementation.overwrites else named
        assert sorted(placed) == expected
        for request in found.requests:
            if request.output is not None:
                name = implementation.outputs[request.output]
                assert name is not None and request.bytes == offers.values[name].storage_bytes
    node = next(n for n, named in offers.forward.items() if "chunks-8" in named)
    whole = measured.of(offers.forward[node]["aten"], offers).workspace_bytes()
    chunked = measured.of(offers.forward[node]["chunks-8"], offers).workspace_bytes()
    assert chunked < whole


def test_measuring_in_place_keeps_no_memory_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an implementation wrote over is filled again before the next reads it, in the same resident memory: all
    memory that is kept is that of an input, which ``MOST_INPUT_BYTES`` counts."""
    model, args, kwargs = CASES["residual"]
    offers = catalogue(capture(model, args, kwargs).graph)
    monkeypatch.setattr("monet.ops.measuring.bench.SMALL_BYTES", 1 << 20)
    bench = Bench()
    writing = [i for i in implementations(offers) if i.overwrites is not None]
    for _ in range(2):  # a place may grow the first time
        first = {i.name: _measured(bench, i, offers) for i in writing}
    places = {place: tensor.data_ptr() for place, tensor in bench._inputs.items()}
    # Large inputs have homes of their own, small ones share.
    assert len(writing) > 3 and set() < bench._homes.keys() < bench._inputs.keys() and bench._spoilt
    spoilt, shared = dict(bench._spoilt), (len(bench._shared), bench._taken)
    assert {i.name: _measured(bench, i, offers) for i in writing} == first
    assert {place: tensor.data_ptr() for place, tensor in bench._inputs.items()} == places
    assert (len(bench._shared), bench._taken) == shared and bench._spoilt == spoilt
    value = next(offers.values[i.overwrites] for i in writing if i.overwrites and i.args[0] == Ref(i.overwrites))
    place, other = (0, value.dtype, value.device), Bench()
    before = bench._inputs[place].clone()
    assert spoilt[place] and torch.equal(bench._tensor(value, place), other._tensor(value, place))
    assert bench._spoilt.keys() == spoilt.keys() - {place}
    assert not torch.equal(bench._inputs[place], before)


def _measured(bench: Bench, implementation: Implementation, offers: Catalogue) -> tuple[Request, ...]:
    return bench.measure(implementation, offers.values).requests


@pytest.mark.parametrize(
    ("batch", "expected"),
    [(184, [4, 23]), (1, []), (7, [7]), (256, [4, 16]), (176, [4, 16]), (97, []), (10**12, [4, 16])],
)
def test_chunks_divide_the_batch(batch: int, expected: list[int]) -> None:
    assert chunk_counts(batch) == expected


@pytest.mark.parametrize("scale", [1.0, 1e-3, -0.5])
def test_batch_norm_from_output_is_accurate_to_its_least_scale(scale: float) -> None:
    """Against float64 and against the kernel from the input: error grows as 6e-8 / |scale|."""
    from monet.ops.families.normalization.batch_norm import batch_norm_from_output

    torch.manual_seed(0)
    x, gradient = torch.randn(16, 4, 9, 9) * 3 + 1, torch.randn(16, 4, 9, 9)
    weight, bias = torch.full((4,), scale), torch.randn(4)
    y, mean, invstd = torch.ops.aten.native_batch_norm(x, weight, bias, None, None, True, 0.1, 1e-5)
    mask = [True, True, True]
    expected = torch.ops.aten.native_batch_norm_backward(
        gradient, x, weight, None, None, mean, invstd, True, 1e-5, mask
    )
    found = batch_norm_from_output(gradient, y, weight, bias, invstd, 1e-5, mask)
    for a, b in zip(found, expected, strict=True):
        assert float((a - b).abs().max() / b.abs().max()) < 1e-6 / min(1.0, abs(scale)) * 0.5

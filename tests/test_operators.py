"""Every implementation that the catalogue offers, against eager's kernel, on values of a real step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from small_models import Awkward, Inverted, Residual, Running, Transformer
from torch import nn

from monet.capture import Captured, capture
from monet.graph import Operator, Ref
from monet.ops.catalogue import Catalogue, catalogue
from monet.ops.convolution import chunk_counts
from monet.ops.implementation import Implementation
from monet.ops.profiling import implementations, profile

CASES: dict[str, tuple[nn.Module, tuple[Any, ...], dict[str, Any]]] = {
    "residual": (Residual(16), (torch.randn(8, 3, 64, 64),), {}),
    "inverted": (Inverted(), (torch.randn(3, 4, 8, 8),), {}),
    "transformer": (Transformer(), (torch.randint(0, 50, (2, 7)),), {}),
    "running": (Running(), (torch.randn(5, 8),), {}),
    "awkward": (Awkward(), (torch.randint(0, 11, (2, 4)),), {"scale": torch.randn(2, 4, 8, requires_grad=True)}),
}


def _call(implementation: Implementation, env: Mapping[str, torch.Tensor], private: set[str]) -> list[Any]:
    """Run it on copies of what it may write to."""
    copies: dict[str, torch.Tensor] = {}

    def real(argument: Any) -> Any:
        if isinstance(argument, Ref):
            if argument.name not in copies:
                tensor = env[argument.name]
                copies[argument.name] = tensor.clone() if argument.name in private else tensor
            return copies[argument.name]
        return [real(a) for a in argument] if isinstance(argument, list | tuple) else argument

    result = implementation.call(
        *(real(a) for a in implementation.args), **{k: real(v) for k, v in implementation.kwargs}
    )
    return [result] if implementation.single else list(result)


def _view(op: Operator) -> Implementation:
    return Implementation("view", op.target, op.args, op.kwargs, op.outputs, op.single)


def _evaluate(offers: Catalogue, captured: Captured, model: nn.Module, inputs: list[torch.Tensor]) -> dict[str, Any]:
    """All values of one step by each operator's first implementation."""
    env: dict[str, Any] = {}
    graph = captured.graph
    for source in graph.sources:
        if source.kind == "input":
            env[source.value] = inputs[int(source.target)].detach()
        elif source.kind == "constant":
            env[source.value] = captured.constants[source.target]
        else:
            find = model.get_parameter if source.kind == "parameter" else model.get_buffer
            env[source.value] = find(source.target).detach().clone()
    for name in graph.tangents:
        if name is not None:
            env[name] = torch.randn(graph.values[name].shape)

    def run(op: Operator, named: Mapping[str, Implementation]) -> None:
        first = _view(op) if op.view else next(iter(named.values()))
        results = _call(first, env, set())
        env.update({n: r for n, r in zip(first.outputs, results, strict=False) if n is not None})
        for saved in offers.intermediates.get(op.name, ()):
            env[saved.value.name] = _call(saved.implementation, env, set())[0]

    for op in graph.forward:
        run(op, offers.forward.get(op.name, {}))
    for op in graph.backward:
        run(op, offers.backward.get(op.name, {}))
    return env


@pytest.mark.parametrize("case", CASES)
def test_every_implementation_computes_what_the_first_does(case: str) -> None:
    model, args, kwargs = CASES[case]
    torch.manual_seed(0)
    captured = capture(model, args, kwargs)
    offers = catalogue(captured.graph)
    with torch.no_grad():
        env = _evaluate(offers, captured, model, [*args, *kwargs.values()])
        sources = captured.graph.sources
        old = {s.value: model.get_buffer(s.target) for s in sources if s.kind == "buffer"}
        # A view of a buffer made before it changed shows the new content by now: read it anew.
        old |= {
            op.outputs[0]: _call(_view(op), {**env, **old}, set())[0]
            for op in captured.graph.forward
            if op.view and op.outputs[0] is not None and captured.graph.storage(op.outputs[0]) in old
        }
        tried = 0
        for group, again in ((offers.forward, False), (offers.recompute, True), (offers.backward, False)):
            for node, named in group.items():
                for implementation in named.values():
                    if not again and not any(implementation.outputs):
                        continue  # a counter or a write-back: covered by comparing buffers
                    written = {implementation.overwrites} if implementation.overwrites else set()
                    before = torch.get_rng_state()
                    if implementation.call.__name__ == "draw":
                        torch.set_rng_state(env[f"{node}.rng"])
                    # Running statistics are updated by a forward run: give it copies.
                    seen = env if again or group is offers.backward else {**env, **old}
                    results = _call(implementation, seen, written | _running(captured))
                    if again:
                        assert torch.equal(before, torch.get_rng_state()), f"{node} moves the generator"
                    for name, result in zip(implementation.outputs, results, strict=False):
                        if name is None:
                            continue
                        tried += 1
                        expected = env[name]
                        what = f"{node} by {implementation.name}: {name}"
                        assert result.shape == expected.shape and result.stride() == expected.stride(), what
                        if implementation.exact:
                            assert torch.equal(result, expected), what
                        else:
                            error = (result - expected).abs().max() / _scale(implementation, env, name, expected)
                            assert float(error) <= implementation.tolerance, f"{what}: {float(error)}"
    assert tried > 20


def _scale(implementation: Implementation, env: Mapping[str, Any], name: str, expected: torch.Tensor) -> torch.Tensor:
    """What an error is relative to: for a sum, the sum of its terms' magnitudes, as they may cancel."""
    if implementation.name.startswith("chunks"):
        magnitudes = {n: env[n].abs() for n in implementation.inputs()}
        results = dict(zip(implementation.outputs, _call(implementation, magnitudes, set()), strict=False))
        largest: torch.Tensor = results[name].abs().max()
        return largest
    return expected.abs().max().clamp_min(1e-30)


def _running(captured: Captured) -> set[str]:
    return {source.value for source in captured.graph.sources if source.kind == "buffer"}


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
        ("intermediate", "bits"),
        ("intermediate", "cells"),
    }


def test_exact_leaves_only_exact_implementations() -> None:
    model, args, kwargs = CASES["residual"]
    graph = capture(model, args, kwargs).graph
    assert any(not i.exact for i in implementations(catalogue(graph)))
    assert all(i.exact for i in implementations(catalogue(graph, exact=True)))


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


@pytest.mark.parametrize(
    ("batch", "expected"), [(184, [4, 23]), (1, []), (7, [7]), (256, [4, 16]), (176, [4, 16]), (97, [])]
)
def test_chunks_divide_the_batch(batch: int, expected: list[int]) -> None:
    assert chunk_counts(batch) == expected


@pytest.mark.parametrize("scale", [1.0, 1e-3, -0.5])
def test_batch_norm_from_output_is_accurate_to_its_least_scale(scale: float) -> None:
    """Against float64 and against the kernel from the input: error grows as 6e-8 / |scale|."""
    from monet.ops.normalization import from_output

    torch.manual_seed(0)
    x, gradient = torch.randn(16, 4, 9, 9) * 3 + 1, torch.randn(16, 4, 9, 9)
    weight, bias = torch.full((4,), scale), torch.randn(4)
    y, mean, invstd = torch.ops.aten.native_batch_norm(x, weight, bias, None, None, True, 0.1, 1e-5)
    mask = [True, True, True]
    expected = torch.ops.aten.native_batch_norm_backward(
        gradient, x, weight, None, None, mean, invstd, True, 1e-5, mask
    )
    found = from_output(gradient, y, weight, bias, invstd, 1e-5, mask)
    for a, b in zip(found, expected, strict=True):
        assert float((a - b).abs().max() / b.abs().max()) < 1e-6 / min(1.0, abs(scale)) * 0.5

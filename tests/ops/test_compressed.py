"""Sparse and 16-bit storages: what is offered, implementations and whole steps against eager."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest
import torch
from evaluation import call, evaluate
from offer_cases import CASES
from torch import nn

from monet.capture import capture
from monet.errors import ConfigError
from monet.ops.catalogue import catalogue
from monet.ops.compressed import sparse
from monet.ops.kernels.packed import sparse_unpack, sparse_words
from monet.ops.measuring.bench import Bench
from monet.ops.measuring.profiling import profile
from monet.ops.offers.implementation import Implementation
from monet.ops.offers.offering import DENSITY, Offering

BOTH = frozenset({"sparse", "half"})
SPARSE = frozenset({"sparse"})


class Clamped(nn.Module):
    """Convolutions after ReLU and ReLU6, one ReLU read by two of them and one by a sigmoid as well."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, groups=8)
        self.third, self.fourth, self.fifth = nn.Conv2d(8, 6, 1), nn.Conv2d(8, 6, 1, bias=False), nn.Conv2d(6, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.relu6(self.first(x) * 4)
        x = torch.relu(self.second(x))
        x = torch.relu(self.third(x) + self.fourth(x))
        out: torch.Tensor = self.fifth(x) + (x * x).mean()
        return out


TABLE = {**CASES, "clamped": (Clamped(), (torch.randn(4, 3, 16, 16),), {})}


@pytest.mark.parametrize("case", TABLE)
@pytest.mark.sampled(3)
def test_default_catalogue_has_neither(case: str) -> None:
    """With storages, what was there stays there, in the same order; nothing else is added but theirs."""
    model, args, kwargs = TABLE[case]
    graph = capture(model, args, kwargs).graph
    default, more = catalogue(graph), catalogue(graph, Offering(storage=BOTH))
    assert default == catalogue(graph, Offering(storage=frozenset()))
    assert list(more.values)[: len(default.values)] == list(default.values)
    assert all(n.endswith((".sparse", ".half")) for n in more.values.keys() - default.values.keys())
    assert default.forward == more.forward and default.recompute == more.recompute
    for node, named in more.backward.items():
        kept = [n for n in named if n not in {"from-sparse", "from-half"}]
        assert kept == list(default.backward[node]) == list(named)[: len(kept)]
        assert all(named[n] == default.backward[node][n] for n in kept)
    for node, saved in more.intermediates.items():
        assert tuple(s for s in saved if s.kind not in BOTH) == default.intermediates.get(node, ())
    exact = catalogue(graph, Offering(exact=True, storage=BOTH))
    assert not any(s.kind == "half" for saved in exact.intermediates.values() for s in saved)
    assert all(i.exact for named in exact.backward.values() for i in named.values())


def test_unknown_storage_or_density() -> None:
    graph = capture(nn.Linear(2, 2), (torch.randn(1, 2),), {}).graph
    with pytest.raises(ConfigError, match="'quarter' is none of half, sparse"):
        catalogue(graph, Offering(storage=frozenset({"sparse", "quarter"})))
    for density in (0.0, -1.0, 1.01, math.nan):
        with pytest.raises(ConfigError, match="density"):
            catalogue(graph, Offering(storage=SPARSE, density=density))


@pytest.mark.parametrize("case", ["residual", "clamped", "inverted"])
def test_every_implementation_computes_what_eager_does(case: str) -> None:
    """From a sparse storage bit by bit, from a 16-bit one within what its record says."""
    model, args, kwargs = TABLE[case]
    torch.manual_seed(0)
    captured = capture(model, args, kwargs)
    offers = catalogue(captured.graph, Offering(storage=BOTH, density=1.0))
    tried = {"from-sparse": 0, "from-half": 0}
    with torch.no_grad():
        env = evaluate(offers, captured, model, [*args, *kwargs.values()])
        for node, named in offers.backward.items():
            plain = next(iter(named.values()))
            for name in tried.keys() & named.keys():
                implementation = named[name]
                results = call(implementation, env, set())
                for output, result in zip(implementation.outputs, results, strict=True):
                    if output is None:
                        continue
                    expected, what = env[output], f"{node} by {name}: {output}"
                    assert result.shape == expected.shape and result.stride() == expected.stride(), what
                    if implementation.exact:
                        assert name == "from-sparse" and torch.equal(result, expected), what
                    else:
                        error = (result - expected).abs().max() / _magnitude(plain, env, output)
                        assert float(error) <= implementation.tolerance, f"{what}: {float(error)}"
                    tried[name] += 1
    assert tried["from-half"] >= 3 and tried["from-sparse"] >= {"residual": 2, "clamped": 4, "inverted": 2}[case]


def _magnitude(plain: Implementation, env: Mapping[str, torch.Tensor], output: str) -> torch.Tensor:
    """What an error is relative to: for a convolution's gradient, the sum of the magnitudes of its terms."""
    if plain.call is not torch.ops.aten.convolution_backward.default:
        return env[output].abs().max()
    results = call(plain, {n: env[n].abs() for n in plain.inputs()}, set())
    largest: torch.Tensor = results[plain.outputs.index(output)].abs().max()
    return largest


def test_what_is_offered() -> None:
    """A sparse storage for ReLU and ReLU6 before convolutions; none where something else reads the dense value."""
    model, args, kwargs = TABLE["clamped"]
    offers = catalogue(capture(model, args, kwargs).graph, Offering(storage=BOTH))
    kinds = {node: [s.kind for s in saved] for node, saved in offers.intermediates.items()}
    assert kinds == {
        "hardtanh": ["sign-bits", "sparse", "half"],
        "relu": ["sign-bits", "sparse", "half"],
        "relu_1": ["sign-bits"],
    }
    readers = {node for node, named in offers.backward.items() if "from-sparse" in named}
    assert len(readers) == 3
    for saved in offers.intermediates["relu"]:
        count = offers.values["relu"].numel
        size = {"sign-bits": count // 8, "sparse": count // 8 + 4 * int(DENSITY * count), "half": 2 * count + 2}[
            saved.kind
        ]
        assert saved.value.storage_bytes == size


def test_density_sets_the_bytes() -> None:
    model, args, kwargs = TABLE["clamped"]
    graph = capture(model, args, kwargs).graph
    for density in (0.001, 0.25, 1.0):
        offers = catalogue(graph, Offering(storage=SPARSE, density=density))
        count = offers.values["relu"].numel
        assert offers.values["relu.sparse"].storage_bytes == 4 * math.ceil(count / 32) + 4 * math.ceil(density * count)


@pytest.mark.parametrize("count", [1, 33, 1000, sparse._SAMPLE + 7, 2 * sparse._SAMPLE + 12_345])
@pytest.mark.parametrize("density", [0.01, 0.5, 1.0])
def test_samples_are_as_full_as_planned(count: int, density: float) -> None:
    capacity = math.ceil(density * count)
    flat = torch.empty(count)
    sparse._fill(flat, capacity)
    kept = int((flat != 0).sum())
    assert kept <= capacity and kept >= capacity - 1 - count / 1000
    packed = torch.empty(sparse_words(count) + capacity, dtype=torch.int32)
    sparse._fill_packed(packed, (None, packed, [count], [1]), {})
    assert torch.equal(sparse_unpack(packed, (count,), (1,)), flat)


def test_measuring_runs_on_storages_as_full_as_planned() -> None:
    """Time depends on the number of values, and noise in every element would not fit."""
    model, args, kwargs = TABLE["clamped"]
    offers = catalogue(capture(model, args, kwargs).graph, Offering(storage=SPARSE, density=0.3))
    value = offers.values["relu"]
    capacity = math.ceil(0.3 * value.numel)
    (make,) = (s.implementation for s in offers.intermediates["relu"] if s.kind == "sparse")
    bench = Bench()  # its tensors must not outlive it
    bench.measure(make, offers.values)
    (kept,) = (int((tensor != 0).sum()) for tensor in bench._inputs.values())
    assert capacity - 1 <= kept <= capacity
    read = next(
        named["from-sparse"]
        for named in offers.backward.values()
        if "from-sparse" in named and "relu.sparse" in named["from-sparse"].inputs()
    )
    bench.measure(read, offers.values)
    (kept,) = (
        int((sparse_unpack(tensor, value.shape, value.stride) != 0).sum())
        for tensor in bench._inputs.values()
        if tensor.dtype is torch.int32
    )
    assert capacity - 1 <= kept <= capacity


def test_measured_memory() -> None:
    """Packing asks for the storage alone; a reader for eager's requests and the dense tensor."""
    model, args, kwargs = TABLE["residual"]
    offers = catalogue(capture(model, args, kwargs).graph, Offering(storage=BOTH, density=0.3))
    measured = profile(offers)
    tried = 0
    for saved in (s for group in offers.intermediates.values() for s in group if s.kind in BOTH):
        (request,) = measured.of(saved.implementation, offers).requests
        assert request.bytes == saved.value.storage_bytes and request.output == 0 and request.end is None
    for named in offers.backward.values():
        for name in {"from-sparse", "from-half"} & named.keys():
            plain, unpacking = measured.of(named["aten"], offers), measured.of(named[name], offers)
            dense = next(offers.values[n].storage_bytes for n in named["aten"].inputs()[1:])
            asked, before = (
                sorted((r.bytes, r.output) for r in m.requests if r.output is None) for m in (unpacking, plain)
            )
            assert (dense, None) in asked
            asked.remove((dense, None))
            assert asked == before
            assert unpacking.time_s > 0
            tried += 1
    assert tried >= 4

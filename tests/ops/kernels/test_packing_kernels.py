"""The kernels of sparse and 16-bit storages against NumPy, bit by bit."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from monet.errors import ExecutionError
from monet.ops.kernels.packed import half_pack, half_unpack, library, sparse_pack, sparse_unpack, sparse_words

SIZES = (1, 31, 32, 33, 1000, 8191, 8192, 8193, 100_003)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view({2: torch.int16, 4: torch.int32}[tensor.itemsize])


def _some_zeros(size: int, density: float, seed: int = 0) -> torch.Tensor:
    """Noise of about this density, with -0, NaN of two kinds and infinities where there is room."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(size, generator=generator) * (torch.rand(size, generator=generator) < density)
    x = torch.where(x == 0, torch.zeros(()), x)  # no -0 but the one below
    special = torch.tensor([-0.0, math.nan, math.inf, -math.inf])
    if size >= 1000 and density > 0.0:
        x[torch.randperm(size, generator=generator)[:4]] = special
        x.view(torch.int32)[size // 2] = -4194303  # a NaN with a payload and a sign
    return x


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("density", [0.0, 0.01, 0.3, 0.5, 0.99, 1.0])
def test_sparse_pack_against_numpy(size: int, density: float, threads: int) -> None:
    x = _some_zeros(size, density)
    words = x.view(torch.int32).numpy()
    kept = words[words != 0]
    for room in (0, 5):
        packed = sparse_pack(x, len(kept) + room)
        mask = np.packbits(words != 0, bitorder="little")
        count = sparse_words(size)
        assert packed.shape == (count + len(kept) + room,) and packed.dtype is torch.int32
        assert np.array_equal(packed.numpy()[:count].view(np.uint8)[: len(mask)], mask)
        assert not packed.numpy()[:count].view(np.uint8)[len(mask) :].any()
        assert np.array_equal(packed.numpy()[count : count + len(kept)], kept)
        out = sparse_unpack(packed, (size,), (1,))
        assert torch.equal(_bits(out), _bits(x))


def test_sparse_keeps_what_compares_equal_to_zero_but_is_not() -> None:
    x = torch.tensor([0.0, -0.0, 1e-45, math.nan])
    out = sparse_unpack(sparse_pack(x, 3), (4,), (1,))
    assert torch.equal(_bits(out), _bits(x))
    with pytest.raises(ExecutionError):
        sparse_pack(x, 2)


def test_sparse_of_nothing() -> None:
    assert sparse_pack(torch.empty(0), 0).shape == (0,)
    assert sparse_unpack(torch.empty(0, dtype=torch.int32), (0, 3), (3, 1)).shape == (0, 3)


def test_sparse_unpacks_into_the_strides_it_was_packed_from() -> None:
    x = torch.relu(torch.randn(3, 5, 7, 11)).contiguous(memory_format=torch.channels_last)
    out = sparse_unpack(sparse_pack(x, x.numel()), x.shape, x.stride())
    assert out.stride() == x.stride() and torch.equal(out, x)


@pytest.mark.parametrize("size", SIZES)
def test_sparse_over_capacity(size: int, threads: int) -> None:
    """One value too many is an error that says how many, and nothing is written behind the storage."""
    x = _some_zeros(size, 0.7)
    kept = int((x.view(torch.int32) != 0).sum())
    if kept == 0:
        x[0], kept = 1.0, 1
    with pytest.raises(ExecutionError, match=rf"% \({kept}\) non-zero values, planned for .* \({kept - 1}\)"):
        sparse_pack(x, kept - 1)
    kernels, count = library(), sparse_words(size)
    assert kernels is not None
    memory = torch.full((count + kept + 8,), 77, dtype=torch.int32)
    assert kernels.monet_sparse_pack(x.data_ptr(), memory.data_ptr(), size, kept - 1) == kept
    assert (memory[count:] == 77).all()
    assert kernels.monet_sparse_pack(x.data_ptr(), memory.data_ptr(), size, kept) == kept
    assert (memory[count + kept :] == 77).all()
    out = torch.full((size + 8,), 7.0)
    assert kernels.monet_sparse_unpack(memory.data_ptr(), out.data_ptr(), size, kept - 1) == kept
    assert (out == 7).all()
    assert kernels.monet_sparse_unpack(memory.data_ptr(), out.data_ptr(), size, kept) == kept
    assert (out[size:] == 7).all() and torch.equal(_bits(out[:size]), _bits(x))


def test_over_capacity_message_names_the_shares() -> None:
    x = torch.zeros(10, 10)
    x[:6] = 1.0
    with pytest.raises(ExecutionError, match=r"shape \(10, 10\) has 60 % .* planned for 50 % .* larger density"):
        sparse_pack(x, 50)


def _half_reference(x: torch.Tensor) -> tuple[Any, int]:
    """NumPy's float16 of x * 2^k, rounded once from float64, and k."""
    finite = x[torch.isfinite(x)].abs()
    largest = float(finite.max()) if finite.numel() else 0.0
    k = min(15 - math.frexp(largest)[1], 126) if largest else 0
    with np.errstate(over="ignore", invalid="ignore"):
        return (x.numpy().astype(np.float64) * 2.0**k).astype(np.float16), k


@pytest.mark.parametrize("magnitude", [1e-42, 1e-38, 1e-12, 1e-3, 1.0, 6e4, 1e8, 3e38])
@pytest.mark.parametrize("size", [1, 7, 8192, 30_001])
def test_half_pack_against_numpy(size: int, magnitude: float, threads: int) -> None:
    """Every exponent below the largest one, so that float16's small numbers and its zeros come up too."""
    generator = torch.Generator().manual_seed(size)
    spread = torch.rand(size, generator=generator).mul(-50).exp2()
    x = (torch.rand(size, generator=generator) * 2 - 1) * spread * magnitude
    if size > 100:
        x[3:7] = torch.tensor([math.inf, -math.inf, math.nan, -0.0])
    expected, k = _half_reference(x)
    packed = half_pack(x)
    assert packed.shape == (size + 1,) and int(packed[-1]) == k
    found = packed[:-1].numpy()
    assert np.array_equal(np.isnan(found), np.isnan(expected))
    there = ~np.isnan(expected)
    assert np.array_equal(found.view(np.uint16)[there], expected.view(np.uint16)[there])
    out = half_unpack(packed, (size,), (1,))
    exact = torch.from_numpy((expected.astype(np.float64) * 2.0**-k).astype(np.float32))
    assert torch.equal(_bits(out[torch.from_numpy(there)]), _bits(exact[torch.from_numpy(there)]))
    assert torch.equal(out.isnan(), x.isnan())
    finite = torch.isfinite(x)
    largest = float(x[finite].abs().max())
    bound = torch.maximum(x[finite].abs() * 2.0**-11, torch.tensor(largest * 2.0**-39))
    if largest >= 2.0**-112:
        assert ((out - x)[finite].abs() <= bound).all()


def test_half_unpack_knows_every_number() -> None:
    every = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.float16)
    out = half_unpack(torch.cat([every, torch.zeros(1, dtype=torch.float16)]), every.shape, (1,))
    assert torch.equal(out.isnan(), every.isnan())
    assert torch.equal(_bits(out[~out.isnan()]), _bits(every.float()[~out.isnan()]))


@pytest.mark.parametrize("x", [torch.zeros(9), torch.full((9,), math.nan), torch.full((9,), -math.inf), torch.empty(0)])
def test_half_without_a_finite_magnitude(x: torch.Tensor) -> None:
    packed = half_pack(x)
    assert float(packed[-1]) == 0.0
    assert torch.equal(half_unpack(packed, x.shape, (1,)).nan_to_num(nan=5.0), x.nan_to_num(nan=5.0))

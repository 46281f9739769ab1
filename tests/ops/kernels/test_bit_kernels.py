"""The kernels of one bit an element against PyTorch's own, on every float16 and bfloat16 number and on special ones."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from all_numbers import DTYPES, every, same

from monet.errors import ExecutionError
from monet.ops.families.dropout import masked
from monet.ops.kernels import bits, norm_variants, norms


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("nan", [True, False])
@pytest.mark.parametrize("high", [None, 1.5])
def test_inside_bits(dtype: torch.dtype, nan: bool, high: float | None, threads: int) -> None:
    x = every(dtype)[:-1]  # a number that 8 does not divide
    found = np.unpackbits(bits.inside_bits(x, -0.5, high, nan, x.stride()).numpy(), bitorder="little")[: x.numel()]
    wide = x.float()
    expected = (wide > -0.5) & ((wide < high) if high is not None else True) | (wide.isnan() & nan)
    assert np.array_equal(found.astype(bool), expected.numpy())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("inside", "outside"), [(1.0, None), (1 / 6, None), (1.0, 0.2), (1.0, -0.01), (1.25, 0.0)])
def test_branch_gradient(dtype: torch.dtype, inside: float, outside: float | None, threads: int) -> None:
    gradient = every(dtype)
    mask = torch.rand(gradient.shape, generator=torch.Generator().manual_seed(1)) < 0.5
    packed = bits.mask_bits(mask, mask.stride())
    assert packed.shape == ((gradient.numel() + 7) // 8,)
    clear = torch.zeros_like(gradient) if outside is None else gradient * outside
    expected = torch.where(mask, gradient * inside, clear)
    assert same(bits.branch_gradient(gradient, packed, inside, outside, gradient.stride()), expected)
    target = gradient.clone()
    assert bits.branch_gradient_(target, packed, inside, outside, target.stride()) is target and same(target, expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_dropout_from_bits_is_the_product_with_the_mask(dtype: torch.dtype) -> None:
    gradient = every(dtype)
    mask = torch.rand(gradient.shape, generator=torch.Generator().manual_seed(1)) < 0.7
    scale = float(torch.ones((), dtype=dtype).div_(0.7))
    expected = masked(gradient, mask, scale)
    assert expected.isnan().any() and (expected == 0).any() and expected.isinf().any()
    packed = bits.mask_bits(mask, mask.stride())
    assert same(bits.branch_gradient(gradient, packed, scale, 0.0, gradient.stride()), expected)


def test_another_memory_format_than_planned_is_an_error() -> None:
    """Bits are in the order of memory: read in another, they would belong to other elements."""
    x = torch.randn(5, 7)
    packed, turned = bits.inside_bits(x, 0.0, None, True, (7, 1)), x.t().contiguous().t()
    for call in (bits.branch_gradient, bits.branch_gradient_):
        with pytest.raises(ExecutionError, match=r"strides \(1, 5\), planned for \(7, 1\)"):
            call(turned, packed, 1.0, None, (7, 1))
    with pytest.raises(ExecutionError, match="an activation of shape"):
        bits.inside_bits(turned, 0.0, None, True, (7, 1))
    with pytest.raises(ExecutionError, match="a mask of shape"):
        bits.mask_bits(turned > 0, (7, 1))
    weight, rstd = torch.ones(7), torch.ones(5, 1)
    with pytest.raises(ExecutionError, match="a gradient of shape"):
        norms.layer_norm_from_output(turned, x, weight, weight, rstd, [True] * 3)
    with pytest.raises(ExecutionError, match="an output of shape"):
        norms.layer_norm_from_output(x, turned, weight, weight, rstd, [True] * 3)
    with pytest.raises(ExecutionError, match="an input of shape"):
        norm_variants.layer_norm_apply(turned, weight, weight, rstd, rstd)
    images = torch.randn(2, 3, 4, 5)
    last, statistics = images.contiguous(memory_format=torch.channels_last), torch.ones(2, 1)
    with pytest.raises(ExecutionError, match="a gradient of shape"):
        norms.group_norm_from_output(last, images, None, None, statistics, [True, False, False])
    with pytest.raises(ExecutionError, match="an input of shape"):
        norm_variants.batch_norm_apply(images.transpose(2, 3), None, None, torch.ones(3), torch.ones(3))

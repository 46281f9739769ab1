"""8-bit pool indices on one and two threads, bit by bit against aten; the records' samples run on one thread."""

from __future__ import annotations

import pytest
import torch

from monet.ops.kernels import pool_index
from monet.ops.kernels.formats import FORMATS

aten = torch.ops.aten


@pytest.mark.parametrize("channels", [1, 3, 64, 130])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("dtype", FORMATS)
def test_overlapping_windows(channels: int, last: bool, dtype: torch.dtype, threads: int) -> None:
    """Several outputs take the same cell, so the order of additions shows; few values, so that ties do too."""
    generator = torch.Generator().manual_seed(channels)
    x = torch.randint(5, (2, channels, 5, 9, 8), generator=generator).to(dtype)
    form = torch.channels_last_3d if last else torch.contiguous_format
    x = x.contiguous(memory_format=form)
    y, indices = aten.max_pool3d_with_indices(x, [3, 4, 2], [1, 2, 1], [1, 2, 0], [1, 1, 3])
    gradient = torch.randn(y.shape, generator=generator).to(dtype).contiguous(memory_format=form)
    expected = aten.max_pool3d_with_indices_backward(
        gradient, x, [3, 4, 2], [1, 2, 1], [1, 2, 0], [1, 1, 3], False, indices
    )
    geometry = [[5, 9, 8], [3, 4, 2], [1, 2, 1], [1, 2, 0], [1, 1, 3]]
    cells = pool_index.pool_pack(indices, geometry)
    assert cells.dtype is torch.uint8 and cells.stride() == indices.stride() and int(cells.max()) < 24
    found = pool_index.pool_gradient(gradient, cells, list(x.shape), list(x.stride()), geometry)
    assert torch.equal(found, expected) and found.stride() == x.stride()
    other = gradient.contiguous(memory_format=torch.contiguous_format)
    assert torch.equal(pool_index.pool_gradient(other, cells, list(x.shape), list(x.stride()), geometry), expected)


def test_cells_that_cannot_be_write_nothing_outside() -> None:
    """A cell beyond the window, or in the padding, adds nothing."""
    cells = torch.full((1, 2, 2, 2), 255, dtype=torch.uint8)
    geometry = [[4, 4], [2, 2], [2, 2], [0, 0], [1, 1]]
    for stride, whole in (((8, 4, 2, 1), (32, 16, 4, 1)), ((8, 1, 4, 2), (32, 1, 8, 2))):
        strided = cells.as_strided((1, 2, 2, 2), stride)
        out = pool_index.pool_gradient(torch.ones(1, 2, 2, 2), strided, [1, 2, 4, 4], whole, geometry)
        assert out.stride() == whole and not out.any()

"""Where the arena for CUDA cannot be built: said once, and PyTorch's allocator serves."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from monet.errors import ExecutionError
from monet.native import compiling, cuda_allocator, devices

pytestmark = pytest.mark.skipif(torch.version.cuda is not None, reason="it can be built here")
DEVICE = torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def nothing_built() -> Iterator[None]:
    cuda_allocator.library.cache_clear()
    yield
    cuda_allocator.library.cache_clear()


def test_without_cuda_nothing_is_said(caplog: pytest.LogCaptureFixture) -> None:
    assert devices.library(DEVICE) is None
    assert not caplog.records
    with pytest.raises(ExecutionError, match="allocator for CUDA is not available"):
        devices.arena(DEVICE, [[(64, 0)]], 64)


@pytest.mark.skipif(compiling.compiler() is None, reason="no C++ compiler")
@pytest.mark.slow
def test_a_failed_build_is_said_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """This PyTorch says that it has CUDA, and has no such library to link."""
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    for _ in range(2):
        assert devices.library(DEVICE) is None
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 2
    assert messages[0].startswith("cuda_allocator.cpp could not be built") and "c10_cuda" in messages[0]
    assert messages[1].startswith("the arena for CUDA cannot be built here: planned steps run on PyTorch's")

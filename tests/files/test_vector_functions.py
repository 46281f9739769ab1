"""Vector functions whose kernels are found before a plan runs."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from monet.base.vector_functions import find_kernels


class Called(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: set[tuple[str, torch.dtype]] = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if args and isinstance(args[0], torch.Tensor):
            assert args[0].numel() <= 16  # one thread's
            self.found.add((function.overloadpacket.__name__, args[0].dtype))
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", ["tanh", "exp", "erf", "sqrt", "log", "sin"])
def test_each_is_called_once_a_precision(name: str) -> None:
    find_kernels.cache_clear()
    with Called() as called:
        find_kernels()
    assert {(name, torch.float32), (name, torch.float64)} <= called.found
    with Called() as again:
        find_kernels()
    assert not again.found

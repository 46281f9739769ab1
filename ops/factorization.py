"""Factorizations whose kernels check what they are given: what they are measured on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

aten = torch.ops.aten


def _no_exchange(pivots: torch.Tensor, _: tuple[Any, ...]) -> None:
    """Row i stays at i; LAPACK counts from 1."""
    pivots.copy_(torch.arange(1, pivots.shape[-1] + 1))


def _identity(matrix: torch.Tensor, _: tuple[Any, ...]) -> None:
    """Is positive definite."""
    matrix.copy_(torch.eye(matrix.shape[-1]))


SAMPLES: dict[Callable[..., Any], tuple[int, Callable[[torch.Tensor, tuple[Any, ...]], None]]] = {
    aten.lu_unpack.default: (1, _no_exchange),
    aten.linalg_lu_solve.default: (1, _no_exchange),
    aten.cholesky.default: (0, _identity),
}
"""Operator → position of an argument, and what to fill it with."""

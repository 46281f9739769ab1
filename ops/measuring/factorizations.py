"""Factorizations whose kernels check what they are given: what they are measured on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from monet.ops.offers.contents import Contents, Operators

aten = torch.ops.aten


def _no_exchange(pivots: torch.Tensor, _: Sequence[Any], __: Mapping[str, Any]) -> None:
    """Row i stays at i; LAPACK counts from 1."""
    pivots.copy_(torch.arange(1, pivots.shape[-1] + 1))


def _identity(matrix: torch.Tensor, _: Sequence[Any], __: Mapping[str, Any]) -> None:
    """Is positive definite."""
    matrix.copy_(torch.eye(matrix.shape[-1]))


CONTENTS: Operators = {
    aten.lu_unpack.default: Contents(1, _no_exchange),
    aten.linalg_lu_solve.default: Contents(1, _no_exchange),
}
if hasattr(aten, "cholesky"):  # until torch 2.14; later ones have linalg_cholesky_ex alone
    CONTENTS = {**CONTENTS, aten.cholesky.default: Contents(0, _identity)}

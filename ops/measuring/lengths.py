"""Operators on groups of rows whose sizes a tensor gives: what they are measured on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from monet.ops.offers.contents import Contents, Operators

aten = torch.ops.aten


def _adding_up(lengths: torch.Tensor, total: int) -> None:
    """Whole numbers whose sum over the last dimension is ``total``, as even as they can be."""
    count = lengths.shape[-1]
    if count:
        lengths.fill_(total // count)
        lengths[..., : total % count] += 1


def _repeats(repeats: torch.Tensor, _: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    _adding_up(repeats, kwargs["output_size"])


def _rows(position: int) -> Contents:
    """Lengths of segments of the data at ``position``."""

    def fill(lengths: torch.Tensor, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        _adding_up(lengths, args[position].shape[kwargs.get("axis", 0)])

    return Contents("lengths", fill)


CONTENTS: Operators = {
    aten.repeat_interleave.Tensor: Contents(0, _repeats),
    aten.segment_reduce.default: _rows(0),
    aten._segment_reduce_backward.default: _rows(2),
}

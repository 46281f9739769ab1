"""What the kernels of ``kernels/norms.py`` can read, which take bare memory for contiguous tensors of one format."""

from __future__ import annotations

from typing import Any

from monet.base.graph import Ref, Value
from monet.ops.kernels.bits import dense
from monet.ops.offers.context import Context
from monet.ops.strides import contiguous


def contiguous_data(value: Value) -> bool:
    """Whether the kernels for rows can read the value: contiguous memory of a format that they know."""
    return dense(value) and value.stride == contiguous(value.shape)


def parameters_as(context: Context, statistics: str, *parameters: Any) -> bool:
    """Whether parameters (values, or None) are contiguous and in the statistics' format."""
    values = [context.value(p.name) for p in parameters if isinstance(p, Ref)]
    dtype = context.value(statistics).dtype
    return all(v.dtype is dtype and v.stride == contiguous(v.shape) for v in values)

"""Gradients from the output of a normalization divide by its scale: how small the scale may be, and which source of the
graph has it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from monet.base.graph import Operator, Ref
from monet.ops.offers.context import Context
from monet.ops.offers.implementation import Guard, Implementation
from monet.ops.strides import contiguous, same

aten = torch.ops.aten

# The normalized input is known from the output y to (|scale| + |shift|) / |scale| roundings of y, so what is bounded is
# the scale over the shift, or over 1. At these bounds its absolute error is at most 1/16 in the 16-bit formats and 1e-5
# in float32, where the scale's gradient was measured to be 1e-5 off at 5e-3, 4e-6 at 1e-2, and 5e-5 at 1e-3.
LEAST_SCALE = {torch.float32: 5e-3, torch.bfloat16: 2.0**-5, torch.float16: 2.0**-8}

# The relative error of the gradients for scales around 1, of the largest element. 16-bit formats: 16 roundings, those
# of y that one element of an input's gradient sees and those of results in the same format. float32: sums over a batch
# in another order, and of terms that cancel; measured 2e-6 for the scale's gradient from 8,192 terms.
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2.0**-5, torch.float16: 2.0**-8}

# What a parameter goes through on its way to a kernel that changes no element by more than a rounding.
_KEEPING = (
    aten.repeat.default,
    aten.expand.default,
    aten.view.default,
    aten.reshape.default,
    aten._unsafe_view.default,
    aten.unsqueeze.default,
    aten.squeeze.dim,
    aten.permute.default,
    aten.detach.default,
    aten.clone.default,
    aten._to_copy.default,
)


def source_of(weight: Ref, context: Context) -> str | None:
    """The source whose elements a scale has, repeated (instance norm) or cast.

    None where the scale is computed, or the source's elements are not at even distances: ``smallest_scale`` could not
    read them in a step without memory of its own.
    """
    name = weight.name
    sources = {source.value for source in context.graph.sources}
    while name not in sources:
        maker: Operator | None = context.producer.get(name)
        if maker is None or maker.target not in _KEEPING:
            return None
        name = maker.args[0].name
    value = context.value(name)
    even = len(value.shape) == 1 or same(value.shape, value.stride, contiguous(value.shape))
    return name if even else None


def guarded(
    implementation: Implementation, weight: Any, bias: Any, dtype: torch.dtype, context: Context
) -> list[Implementation]:
    """The implementation with its tolerance for outputs of ``dtype`` and the guard on its scale.

    Empty where the scale or the shift is computed in the step, and so cannot be checked before it. ``weight`` and
    ``bias``: None for a normalization without one.
    """
    if dtype not in TOLERANCE:
        return []
    found = replace(implementation, exact=False, tolerance=TOLERANCE[dtype])
    if weight is None:
        return [found]
    scale = source_of(weight, context)
    shift = source_of(bias, context) if bias is not None else None
    if scale is None or (shift is None and bias is not None):
        return []
    if shift is not None and context.value(shift).shape != context.value(scale).shape:
        return []
    return [replace(found, guard=Guard(scale, shift, LEAST_SCALE[dtype]))]

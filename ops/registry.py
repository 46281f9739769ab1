"""Which record serves which operator. An operator without one is handled by its own aten kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from monet.graph import Operator
from monet.ops import activation, convolution, dropout, generic, normalization, pooling
from monet.ops.implementation import Context, Implementation, SavedIntermediate

aten = torch.ops.aten

Offers = Callable[[Operator, Context], list[Implementation]]


def _none(op: Operator, context: Context) -> list[SavedIntermediate]:
    return []


@dataclass(frozen=True, slots=True)
class Record:
    """The implementations of one operator, by what they are for."""

    forward: Offers = generic.forward
    recompute: Callable[[Operator, Context], list[Implementation] | None] = generic.recompute
    backward: Offers = generic.backward
    intermediates: Callable[[Operator, Context], list[SavedIntermediate]] = _none


GENERIC = Record()

RECORDS: dict[Callable[..., Any], Record] = {
    aten.convolution.default: Record(forward=convolution.forward, recompute=convolution.recompute),
    aten.convolution_backward.default: Record(backward=convolution.backward),
    aten.native_batch_norm.default: Record(recompute=normalization.recompute),
    aten.native_batch_norm_backward.default: Record(backward=normalization.backward),
    aten.native_dropout.default: Record(forward=dropout.forward, recompute=dropout.recompute),
    aten.native_dropout_backward.default: Record(backward=dropout.backward),
    aten.relu.default: Record(intermediates=activation.intermediates),
    aten.hardtanh.default: Record(intermediates=activation.intermediates),
    aten.threshold_backward.default: Record(backward=activation.backward),
    aten.hardtanh_backward.default: Record(backward=activation.backward),
    aten.max_pool2d_with_indices.default: Record(intermediates=pooling.intermediates),
    aten.max_pool2d_with_indices_backward.default: Record(backward=pooling.backward),
}


def record(op: Operator) -> Record:
    return RECORDS.get(op.target, GENERIC)

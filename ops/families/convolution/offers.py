"""Convolution and its two gradients: by oneDNN on the whole batch or on chunks of it, or by im2col.

Measured on layers of ResNet-50, VGG-16, MobileNet-V2, ResNeXt and a 3d U-Net at batches of 8 to 32, each is offered
where some layer had it on the front of time and workspace (``benchmarks/bench_convolution.py`` measures what is
offered):

- Chunks: wherever the tensors are large, unless the filter is 1 x 1.
- im2col: 1 x 1 filters of any stride, where it is as fast as oneDNN and takes no workspace (so no chunks either), and
  where the filters outweigh an image's columns (512 channels at 14 x 14: oneDNN reorders 9 MiB of filters, the columns
  are 4 MiB). Elsewhere columns take more than a chunk, and are slower.
- Nothing but the kernel where the tensors are channels-last already: it has hardly any workspace there. Nor for dtypes
  that oneDNN does not take on this machine: eager's own sums are so rough there that no other is close to them.
- Channels-last copies: for the input gradient of a strided convolution. Elsewhere, chunks take less and are
  faster: what is gained in the kernel goes into two copies.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from monet.base.graph import Operator, Ref, Value
from monet.ops.families.convolution import chunks, im2col
from monet.ops.families.convolution.onednn import onednn_takes
from monet.ops.families.convolution.samples import SAMPLES, TRANSPOSED
from monet.ops.offers.context import Context, plain
from monet.ops.offers.implementation import Implementation
from monet.ops.offers.record import Record
from monet.ops.offers.shape_only import shape_only
from monet.ops.strides import channels_last, contiguous

aten = torch.ops.aten

# About how many chunks to offer; the nearest divisors of the batch are taken, so that all are equal. One image at a
# time was no better than about 16 chunks in any measured layer, and in 3d oneDNN has another kernel for it,
# whose workspace is larger.
CHUNKS = (4, 16)
# Relative to the sum of the terms' magnitudes. float32: oneDNN may take another kernel for a smaller batch, chunks and
# images of a weight gradient are added in another order (1.4e-6 measured). bfloat16: sums are float32, but a product's
# result is rounded to 8 bits before a bias, chunks, images or windows are added in, and so are the sum and eager's
# result: 2^-8 at most each, 1.17e-2 together (7.1e-3 measured where no terms cancel).
TOLERANCES = {torch.float32: 4e-6, torch.bfloat16: 1.2e-2}
# A smaller tensor has a workspace that does not matter.
LEAST_BYTES = 1 << 20


def chunk_counts(batch: int) -> list[int]:
    """Numbers of equal chunks to offer for a batch: divisors near ``CHUNKS``."""
    small = [d for d in range(1, math.isqrt(batch) + 1) if batch % d == 0]
    divisors = sorted({*small, *(batch // d for d in small)} - {1})
    nearest = {min(divisors, key=lambda d: (max(d, wanted) / min(d, wanted), d)) for wanted in CHUNKS if divisors}
    return sorted(d for d in nearest if d <= 4 * CHUNKS[-1])


@dataclass(frozen=True, slots=True)
class _Convolution:
    """The plain convolution that an operator is, or, if ``transposed``, is the input gradient of: ``x`` is what its
    windows lie in, ``y`` what has one element a window."""

    x: Value
    weight: Value
    y: Value
    geometry: list[Any]  # stride to groups, as aten takes them
    transposed: bool

    @property
    def lists(self) -> list[list[int]]:
        """Stride, padding and dilation, one number a dimension each."""
        rank = len(self.x.shape) - 2
        return [list(n) * rank if len(n) == 1 else list(n) for n in self.geometry[:3]]

    @property
    def groups(self) -> int:
        return int(self.geometry[-1])

    @property
    def large(self) -> bool:
        """Whether anything beside the kernel on the whole batch is worth a column of the program."""
        value = self.x
        known = (
            value.device.type == "cpu"
            and value.dtype in TOLERANCES
            and onednn_takes(value.dtype)
            and {self.weight.dtype, self.y.dtype} == {value.dtype}
        )
        batched = len(value.shape) >= 3 and value.shape[0] > 1
        dense = all(v.stride[0] >= max(v.stride) for v in (self.x, self.y))
        size = max(v.storage_bytes for v in (self.x, self.weight, self.y))
        last = len(value.shape) > 3 and any(v.stride[1] == 1 and v.shape[1] > 1 for v in (self.x, self.y))
        return known and batched and dense and not last and size >= LEAST_BYTES

    @property
    def pointwise(self) -> bool:
        return all(n == 1 for n in self.weight.shape[2:])

    @property
    def columns_pay(self) -> bool:
        """Whether an image's columns are less than what oneDNN may reorder for one image."""
        stride, padding, _ = self.lists
        x, y, kernel = self.x.shape[1:], self.y.shape[1:], self.weight.shape[2:]
        temporary = im2col.temporary_numbers(x[0], x[1:], y[1:], kernel, stride, padding)
        return self.pointwise or temporary < math.prod(x) + math.prod(y) + math.prod(self.weight.shape)

    @property
    def counts(self) -> list[int]:
        return [] if self.pointwise else chunk_counts(self.x.shape[0])


def _convolution(context: Context, x: Any, weight: Any, y: str, geometry: Any) -> _Convolution | None:
    """None where there is nothing to offer but the kernel."""
    if not isinstance(x, Ref) or not isinstance(weight, Ref):
        return None
    transposed = bool(geometry[3])
    small, large = (
        (context.value(x.name), context.value(y)) if transposed else (context.value(y), context.value(x.name))
    )
    found = _Convolution(large, context.value(weight.name), small, list(geometry), transposed)
    return found if found.large else None


def _inexact(name: str, call: Any, args: tuple[Any, ...], outputs: Any, dtype: torch.dtype) -> Implementation:
    tolerance = TOLERANCES[dtype]
    return Implementation(name, call, args, (), tuple(outputs), len(outputs) == 1, exact=False, tolerance=tolerance)


def forward(op: Operator, context: Context) -> list[Implementation]:
    """aten's own; in chunks and by im2col where the tensors are large."""
    found, result = [plain(op)], op.outputs[0]
    x, weight, bias, *geometry = op.args
    it = _convolution(context, x, weight, result, geometry) if result is not None else None
    if it is None or result is None:
        return found
    value = context.value(result)
    shape, stride = list(value.shape), list(value.stride)
    for count in it.counts:
        args = (x, weight, bias, geometry, shape, stride, count)
        found.append(_inexact(f"chunks-{count}", chunks.forward, args, op.outputs, value.dtype))
    if it.columns_pay:
        call = im2col.input_gradient if it.transposed else im2col.forward
        columns = (x, weight, bias, shape, stride, it.lists, it.groups)
        found.append(_inexact("im2col", call, columns, op.outputs, value.dtype))
    return found


def recompute(op: Operator, context: Context) -> list[Implementation] | None:
    """As ``forward``; None where the forward pass changes an input."""
    return None if context.reads_written(op) else forward(op, context)


def backward(op: Operator, context: Context) -> list[Implementation]:
    """Of the gradient of the input, or of those of weight and bias: capture has made them operators of their own."""
    gradient, x, weight, _, *geometry, mask = op.args
    it = _convolution(context, x, weight, gradient.name, geometry)
    if (mask[0] and (mask[1] or mask[2])) or not isinstance(x, Ref) or not isinstance(weight, Ref):
        return [plain(op)]
    if mask[0]:
        return _input_gradients(op, context, it)
    if not mask[1]:
        return [shape_only(op, context, (1, 2))]
    # A weight that is a parameter is in memory anyway.
    found = [plain(op) if context.graph.storage(weight.name) in context.sources else shape_only(op, context, (2,))]
    result = op.outputs[1]
    if it is None or result is None:
        return found
    value = context.value(result)
    outputs = op.outputs[1:] if mask[2] else op.outputs[1:2]
    for count in it.counts:
        args = (gradient, x, weight, list(op.args[3:-1]), mask[2], list(value.stride), count)
        found.append(_inexact(f"chunks-{count}", chunks.parameter_gradient, args, outputs, value.dtype))
    if it.columns_pay:
        pair = (x, gradient) if it.transposed else (gradient, x)
        summed = [gradient] if mask[2] else []
        columns = (*pair, list(value.shape), list(value.stride), it.lists, it.groups, summed)
        found.append(_inexact("im2col", im2col.weight_gradient, columns, outputs, value.dtype))
    return found


def _input_gradients(op: Operator, context: Context, it: _Convolution | None) -> list[Implementation]:
    gradient, x, weight, *rest = op.args
    geometry, outputs, value = rest[:-1], op.outputs[:1], context.value(x.name)
    shape, stride = list(value.shape), list(value.stride)
    if value.device.type != "cpu":
        if value.stride != contiguous(value.shape):  # which layout a kernel takes depends on the input's
            return [plain(op)]
        return [
            Implementation("aten", chunks.input_gradient_elsewhere, (gradient, weight, geometry, shape), (), outputs)
        ]
    found = [Implementation("aten", chunks.input_gradient, (gradient, weight, geometry, shape, stride), (), outputs)]
    if it is None or op.outputs[0] is None:
        return found
    result = list(context.value(op.outputs[0]).stride)
    for count in it.counts:
        args = (gradient, weight, geometry, shape, stride, result, count)
        found.append(_inexact(f"chunks-{count}", chunks.input_gradient_in_parts, args, outputs, value.dtype))
    last = channels_last(shape)
    if last is not None and not it.transposed and max(it.lists[0]) > 1 and not it.pointwise:
        for count in (1, *it.counts):
            name = "channels-last" if count == 1 else f"channels-last-chunks-{count}"
            args = (gradient, weight, geometry, shape, list(last), result, count)
            found.append(_inexact(name, chunks.input_gradient_in_parts, args, outputs, value.dtype))
    if it.columns_pay:
        call = im2col.forward if it.transposed else im2col.input_gradient
        columns = (gradient, weight, None, shape, result, it.lists, it.groups)
        found.append(_inexact("im2col", call, columns, outputs, value.dtype))
    return found


def _record(name: str, samples: Any) -> Record:
    return Record(
        name=name,
        family="convolutions",
        forward_targets=(aten.convolution.default,),
        backward_targets=(aten.convolution_backward.default,),
        equations="MONeT, section 4.1: sums over the batch in chunks; im2col: Chellapilla et al. 2006; gradients of "
        "parameters and input apart",
        samples=samples,
        forward=forward,
        recompute=recompute,
        backward=backward,
    )


RECORDS = (_record("convolution", (*SAMPLES, *TRANSPOSED)),)

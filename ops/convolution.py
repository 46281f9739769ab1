"""Convolution and its two gradients: oneDNN on the whole batch, or on chunks of it with smaller workspaces.

oneDNN reorders dense tensors into blocked layouts of its own, in workspaces as large as the
tensors; on one chunk at a time the workspaces shrink with the chunk (MONeT, section 4.1, chooses
among cuDNN's algorithms in the same way).
"""

from __future__ import annotations

from typing import Any

import torch

from monet.graph import Operator, Ref, references
from monet.ops.implementation import Context, Implementation, plain
from monet.ops.record import Record
from monet.ops.sample import Sample
from monet.ops.shape import stand_in

aten = torch.ops.aten

# About how many chunks to offer; the nearest divisors of the batch are taken, so that all are equal.
CHUNKS = (4, 16)
# oneDNN may take another kernel for a smaller batch, and chunks of a weight gradient are added in another
# order: 1.4e-6 measured, relative to the sum of the terms' magnitudes.
TOLERANCE = 4e-6
# A smaller tensor has a workspace that does not matter.
LEAST_BYTES = 1 << 20


def chunk_counts(batch: int) -> list[int]:
    """Numbers of equal chunks to offer for a batch: divisors near ``CHUNKS``."""
    divisors = [d for d in range(2, batch + 1) if batch % d == 0]
    nearest = {min(divisors, key=lambda d: (max(d, wanted) / min(d, wanted), d)) for wanted in CHUNKS if divisors}
    return sorted(d for d in nearest if d <= 4 * CHUNKS[-1])


def forward(op: Operator, context: Context) -> list[Implementation]:
    found = [plain(op)]
    result = op.outputs[0]
    if result is None or not _chunkable(op, context, result):
        return found
    for count in chunk_counts(context.value(op.args[0].name).shape[0]):
        found.append(
            Implementation(
                f"chunks-{count}", chunked, (*op.args, count), (), op.outputs, exact=False, tolerance=TOLERANCE
            )
        )
    return found


def recompute(op: Operator, context: Context) -> list[Implementation] | None:
    return forward(op, context)


def backward(op: Operator, context: Context) -> list[Implementation]:
    gradient, x, weight, *geometry, mask = op.args
    if not mask[0] and isinstance(x, Ref) and isinstance(weight, Ref):
        found = [plain(op)]
        if _chunkable(op, context, gradient.name) and op.outputs[1] is not None:
            for count in chunk_counts(context.value(gradient.name).shape[0]):
                found.append(
                    Implementation(
                        f"chunks-{count}",
                        chunked_parameter_gradient,
                        (gradient, x, weight, geometry, mask[2], count),
                        (),
                        op.outputs[1:] if mask[2] else op.outputs[1:2],
                        not mask[2],
                        exact=False,
                        tolerance=TOLERANCE,
                    )
                )
        return found
    if mask[1] or mask[2] or not isinstance(weight, Ref):
        return [plain(op)]
    shape = list(context.value(x.name).shape)
    found = [Implementation("aten", input_gradient, (gradient, shape, weight, geometry), (), op.outputs[:1])]
    if _chunkable(op, context, gradient.name):
        for count in chunk_counts(shape[0]):
            found.append(
                Implementation(
                    f"chunks-{count}",
                    chunked_input_gradient,
                    (gradient, shape, weight, geometry, count),
                    (),
                    op.outputs[:1],
                    exact=False,
                    tolerance=TOLERANCE,
                )
            )
    return found


def _chunkable(op: Operator, context: Context, result: str) -> bool:
    value = context.value(result)
    batched = len(value.shape) >= 3 and value.shape[0] > 1 and value.device.type == "cpu"
    dense = all(context.value(n).stride[0] >= max(context.value(n).stride) for n in references(op.args[:1]))
    return (
        batched and dense and max(context.value(n).storage_bytes for n in (*references(op.args), result)) >= LEAST_BYTES
    )


def chunked(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
    count: int,
) -> torch.Tensor:
    """Convolution of x (N, C, ...) in ``count`` equal chunks of the batch."""
    size = x.shape[0] // count
    out: torch.Tensor | None = None
    for start in range(0, x.shape[0], size):
        part = aten.convolution.default(
            x[start : start + size], weight, bias, stride, padding, dilation, transposed, output_padding, groups
        )
        if out is None:
            out = part.new_empty((x.shape[0], *part.shape[1:]))
        out[start : start + size] = part
        del part
    assert out is not None
    return out


def input_gradient(gradient: torch.Tensor, shape: list[int], weight: torch.Tensor, geometry: list[Any]) -> torch.Tensor:
    """The input gradient alone; of the input only the shape is needed."""
    like = stand_in(shape, [0] * len(shape), gradient.dtype)
    result: torch.Tensor = aten.convolution_backward.default(gradient, like, weight, *geometry, [True, False, False])[0]
    return result


def chunked_input_gradient(
    gradient: torch.Tensor, shape: list[int], weight: torch.Tensor, geometry: list[Any], count: int
) -> torch.Tensor:
    size = shape[0] // count
    out = gradient.new_empty(shape)
    for start in range(0, shape[0], size):
        out[start : start + size] = input_gradient(gradient[start : start + size], [size, *shape[1:]], weight, geometry)
    return out


def chunked_parameter_gradient(
    gradient: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, geometry: list[Any], with_bias: bool, count: int
) -> Any:
    """Gradient of the weight (and bias), summed over chunks of the batch."""
    size = x.shape[0] // count
    of_weight: torch.Tensor | None = None
    of_bias: torch.Tensor | None = None
    for start in range(0, x.shape[0], size):
        _, part, bias_part = aten.convolution_backward.default(
            gradient[start : start + size], x[start : start + size], weight, *geometry, [False, True, with_bias]
        )
        if of_weight is None:
            of_weight, of_bias = part, bias_part
        else:
            of_weight.add_(part)
            if of_bias is not None:
                of_bias.add_(bias_part)
        del part, bias_part
    return (of_weight, of_bias) if with_bias else of_weight


RECORDS = (
    Record(
        name="convolution",
        family="convolutions",
        forward_targets=(aten.convolution.default,),
        backward_targets=(aten.convolution_backward.default,),
        equations="MONeT, section 4.1: sums over the batch in chunks; gradients of parameters and input apart",
        samples=(
            Sample(
                "conv2d",
                lambda x, w, b: torch.nn.functional.conv2d(x, w, b, padding=1),
                ((8, 8, 40, 40),),
                ((16, 8, 3, 3), (16,)),
            ),
        ),
        forward=forward,
        recompute=recompute,
        backward=backward,
    ),
)

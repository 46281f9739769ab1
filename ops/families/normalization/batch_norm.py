"""Batch norm: run again from saved statistics; backward from its input or from its output."""

from __future__ import annotations

from typing import Any

import torch

from monet.base.graph import Operator, Ref
from monet.ops import strides
from monet.ops.families.normalization.kernel_inputs import parameters_as
from monet.ops.families.normalization.least_scale import guarded
from monet.ops.kernel_names import kernel
from monet.ops.kernels import norm_variants
from monet.ops.kernels.bits import dense
from monet.ops.offers import generic
from monet.ops.offers.context import Context, plain
from monet.ops.offers.implementation import Implementation
from monet.ops.offers.record import Record
from monet.ops.offers.sample import HALVES, Sample, between, running, single
from monet.ops.strides import contiguous

aten = torch.ops.aten


def recompute(op: Operator, context: Context) -> list[Implementation] | None:
    """Training statistics are not touched: from the saved ones, or computed anew from the same input."""
    if op.target is not aten.native_batch_norm.default or not op.args[5] or op.outputs[0] is None:
        return generic.recompute(op, context)
    x, weight, bias, _, _, _, _, eps = op.args[:8]
    again = Implementation(
        "statistics-again", aten.native_batch_norm.default, (x, weight, bias, None, None, True, 0.0, eps), (),
        (op.outputs[0], None, None), False,
    )  # fmt: skip
    mean, invstd = op.outputs[1:3]
    if mean is None or invstd is None or not parameters_as(context, mean, weight, bias):
        return [again]
    if not _kernel_reads(context, x.name, mean):
        return [again]
    call = (x, weight, bias, Ref(mean), Ref(invstd))
    return [Implementation("saved-statistics", norm_variants.batch_norm_apply, call, (), (op.outputs[0],)), again]


def _kernel_reads(context: Context, x: str, mean: str) -> bool:
    """Whether the kernel can run again on this input, bit by bit as aten."""
    value = context.value(x)
    if len(value.shape) < 2 or not dense(value):
        return False
    channels_last = value.stride != contiguous(value.shape)
    if channels_last and value.stride != strides.channels_last(value.shape):
        return False
    kind = value.dtype, context.value(mean).dtype, channels_last
    return norm_variants.variant_of(norm_variants.try_batch_norm, *kind) is not None


def backward(op: Operator, context: Context) -> list[Implementation]:
    """aten's own from the input, and the same kernel from the output (MONeT, section 4.2).

    With y = gamma * xhat + beta, the kernel sees y as an input with mean beta and inverse deviation
    1 / gamma, so that its xhat is the same; the scale gamma^2 * invstd makes the input gradient
    gamma * invstd * (...) again. Not bitwise: xhat is rounded once more. With running statistics, the input's
    gradient is the incoming one times gamma / sqrt(var + eps), and needs neither.
    """
    gradient, _, weight, _, var, mean, invstd, training, eps, mask = op.args
    found = [plain(op)]
    maker = context.producer.get(mean.name) if isinstance(mean, Ref) else None
    if maker is None or maker.target not in _FORWARD or maker.outputs[0] is None:
        return found
    bias, y = maker.args[2], context.value(maker.outputs[0])
    call: tuple[Any, ...] = (gradient, Ref(y.name), weight, bias, invstd, eps, mask)
    if training and isinstance(invstd, Ref):
        made = Implementation("from-output", batch_norm_from_output, call, (), op.outputs, False)
        return found + guarded(made, weight, bias, y.dtype, context)
    same = context.value(gradient.name)
    if training or not isinstance(var, Ref) or y.dtype is not torch.float32 or not dense(same):
        return found
    if same.stride != y.stride or context.value(var.name).dtype is not torch.float32:
        return found
    if not mask[1]:
        call = (gradient, weight, var, eps, mask)
        made = Implementation("from-gradient", batch_norm_from_gradient, call, (), op.outputs, False)
        return found + guarded(made, None, None, y.dtype, context)
    call = (gradient, Ref(y.name), weight, bias, var, eps, mask)
    made = Implementation("from-output", batch_norm_from_output_of_running, call, (), op.outputs, False)
    return found + guarded(made, weight, bias, y.dtype, context)


@kernel("batch_norm_gradient_from_output")
def batch_norm_from_output(
    gradient: torch.Tensor,
    y: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    invstd: torch.Tensor,
    eps: float,
    mask: list[bool],
) -> tuple[torch.Tensor | None, ...]:
    """Gradients of batch norm's input, weight and bias from its output y (N, C, ...).

    Scales are computed in float32, in which the kernel takes them for 16-bit data, too.
    """
    one = invstd.new_ones(invstd.shape, dtype=torch.float32)
    scale = one if weight is None else weight.float()
    shift = torch.zeros_like(one) if bias is None else bias.float()
    results: tuple[torch.Tensor | None, ...] = aten.native_batch_norm_backward.default(
        gradient, y, scale * scale * invstd, None, None, shift, scale.reciprocal(), True, eps, mask
    )
    if weight is None or weight.dtype is torch.float32:
        return results
    return (results[0], *(None if r is None else r.to(weight.dtype) for r in results[1:]))


@kernel("batch_norm_gradient_from_output_of_running")
def batch_norm_from_output_of_running(
    gradient: torch.Tensor,
    y: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    var: torch.Tensor,
    eps: float,
    mask: list[bool],
) -> tuple[torch.Tensor | None, ...]:
    """Gradients of evaluation-mode batch norm from its output: those of the parameters are as in training."""
    of_parameters = batch_norm_from_output(gradient, y, weight, bias, var, eps, [False, *mask[1:]])
    return (batch_norm_from_gradient(gradient, weight, var, eps, mask)[0], *of_parameters[1:])


@kernel("batch_norm_gradient_from_gradient")
def batch_norm_from_gradient(
    gradient: torch.Tensor, weight: torch.Tensor | None, var: torch.Tensor, eps: float, mask: list[bool]
) -> tuple[torch.Tensor | None, ...]:
    """Gradients of evaluation-mode batch norm's input and bias, which its input has no part in."""
    dx = None
    if mask[0]:
        scale = (var + eps).rsqrt_()
        scale = scale if weight is None else scale.mul_(weight)
        dx = gradient.mul(scale.view(-1, *([1] * (gradient.dim() - 2))))
    others = [i for i in range(gradient.dim()) if i != 1]
    return dx, None, gradient.sum(others) if mask[2] else None


_FORWARD = (aten.native_batch_norm.default, aten._native_batch_norm_legit_no_training.default)


def _trained(x: Any, w: Any, b: Any, mean: Any, var: Any) -> Any:
    return torch.nn.functional.batch_norm(x, mean, var, w, b, training=True)


def _frozen(x: Any, w: Any, b: Any, mean: Any, var: Any) -> Any:
    return torch.nn.functional.batch_norm(x, mean, var, w, b)


def _in_channels_last(x: Any, *others: Any) -> Any:
    return _trained(x.contiguous(memory_format=torch.channels_last), *others)


_SCALE, _MEAN, _VAR = between(0.5, 1.5, (6,)), running((6,), 0.0), running((6,), 1.0)
_IMAGES = ((4, 6, 7, 7),)

RECORDS = (
    Record(
        name="batch_norm, instance_norm",
        family="normalizations",
        forward_targets=_FORWARD,
        backward_targets=(aten.native_batch_norm_backward.default,),
        equations="MONeT, section 4.2: the gradient from the output; instance norm is batch norm of one image with "
        "more channels",
        samples=(
            Sample("batch_norm", _trained, _IMAGES, (_SCALE, (6,), _MEAN, _VAR), HALVES),
            Sample("batch_norm_in_channels_last", _in_channels_last, _IMAGES, (_SCALE, (6,), _MEAN, _VAR)),
            Sample(
                "batch_norm_of_float32_parameters", _trained, _IMAGES,
                (single(0.5, 1.5, (6,)), single(-1.0, 1.0, (6,)), single(-1.0, 1.0, (6,), requires_grad=False),
                 single(0.5, 1.5, (6,), requires_grad=False)), (torch.bfloat16,),
            ),
            Sample("batch_norm_in_evaluation", _frozen, _IMAGES, (_SCALE, (6,), _MEAN, _VAR)),
            Sample(
                "batch_norm_of_frozen_parameters", lambda x, mean, var: _frozen(x, None, None, mean, var), _IMAGES,
                (_MEAN, _VAR),
            ),
            Sample(
                "batch_norm_without_statistics",
                lambda x, w, b: torch.nn.functional.batch_norm(x, None, None, w, b, training=True), _IMAGES,
                (_SCALE, (6,)),
            ),
            Sample(
                "instance_norm", lambda x, w, b: torch.nn.functional.instance_norm(x, weight=w, bias=b), _IMAGES,
                (_SCALE, (6,)),
            ),
            Sample("instance_norm_without_parameters", torch.nn.functional.instance_norm, _IMAGES),
        ),
        recompute=recompute,
        backward=backward,
    ),
)  # fmt: skip

"""Batch norm: run again from saved statistics; backward from its input or from its output."""

from __future__ import annotations

import torch

from monet.graph import Operator, Ref
from monet.ops import generic, native
from monet.ops.implementation import Context, Implementation, plain
from monet.ops.record import Record
from monet.ops.sample import Sample, running

aten = torch.ops.aten

# Below this |scale| the output has too few digits of the input left: the relative error of the
# gradient grows as 6e-8 / |scale| (measured 4e-7 at 1e-3).
LEAST_SCALE = 1e-3


def recompute(op: Operator, context: Context) -> list[Implementation] | None:
    """Training statistics are not touched: from the saved ones, or computed anew from the same input."""
    x, weight, bias, _, _, training, _, eps = op.args[:8]
    if not training or op.outputs[0] is None:
        return generic.recompute(op, context)
    again = Implementation(
        "statistics-again", aten.native_batch_norm.default, (x, weight, bias, None, None, True, 0.0, eps), (),
        (op.outputs[0], None, None), False,
    )  # fmt: skip
    value = context.value(x.name)
    dense = value.dtype is torch.float32 and value.device.type == "cpu" and value.storage_bytes == 4 * value.numel
    standard = dense and value.stride == _contiguous(value.shape) and len(value.shape) >= 2
    if standard and native.batch_norm_is_exact() and op.outputs[1] is not None and op.outputs[2] is not None:
        mean, invstd = Ref(op.outputs[1]), Ref(op.outputs[2])
        apply = Implementation(
            "saved-statistics", native.batch_norm_apply, (x, weight, bias, mean, invstd), (), (op.outputs[0],)
        )
        return [apply, again]
    return [again]


def backward(op: Operator, context: Context) -> list[Implementation]:
    """aten's own from the input, and the same kernel from the output (MONeT, section 4.2).

    With y = gamma * xhat + beta, the kernel sees y as an input with mean beta and inverse deviation
    1 / gamma, so that its xhat is the same; the scale gamma^2 * invstd makes the input gradient
    gamma * invstd * (...) again. Not bitwise: xhat is rounded once more (6e-8 relative).
    """
    gradient, _, weight, _, _, mean, invstd, training, eps, mask = op.args
    if not training:
        return [plain(op)]
    found = [plain(op)]
    maker = context.producer.get(mean.name) if isinstance(mean, Ref) else None
    if maker is None or maker.target is not aten.native_batch_norm.default:
        return found
    bias, y = maker.args[2], maker.outputs[0]
    if y is None or not isinstance(weight, Ref) or not isinstance(bias, Ref) or not isinstance(invstd, Ref):
        return found
    found.append(
        Implementation(
            "from-output",
            from_output,
            (gradient, Ref(y), weight, bias, invstd, eps, mask),
            (),
            op.outputs,
            False,
            exact=False,
            tolerance=1e-5,
            guard=weight.name,
            guard_least=LEAST_SCALE,
        )
    )
    return found


def from_output(
    gradient: torch.Tensor,
    y: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    invstd: torch.Tensor,
    eps: float,
    mask: list[bool],
) -> tuple[torch.Tensor, ...]:
    """Gradients of batch norm's input, weight and bias from its output y (N, C, ...)."""
    scale = weight * weight * invstd
    results: tuple[torch.Tensor, ...] = aten.native_batch_norm_backward.default(
        gradient, y, scale, None, None, bias, weight.reciprocal(), True, eps, mask
    )
    return results


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


RECORDS = (
    Record(
        name="batch_norm",
        family="normalizations",
        forward_targets=(aten.native_batch_norm.default,),
        backward_targets=(aten.native_batch_norm_backward.default,),
        equations="MONeT, section 4.2: the gradient from the output",
        samples=(
            Sample(
                "batch_norm",
                lambda x, w, b, mean, var: torch.nn.functional.batch_norm(x, mean, var, w, b, training=True),
                ((4, 6, 7, 7),),
                ((6,), (6,), running((6,), 0.0), running((6,), 1.0)),
                (torch.float32,),
            ),
        ),
        recompute=recompute,
        backward=backward,
    ),
)

"""Dropout on CPU as eager computes it: the same mask, the same rounding of the scale.

Eager multiplies by noise = Bernoulli(1 - p) / (1 - p) in the input's dtype. The traced
``native_dropout`` keeps the mask as bytes but rounds 1 / (1 - p) differently; with eager's scale
both are bitwise equal, since multiplying by 1 first changes nothing.
"""

from __future__ import annotations

import torch

from monet.graph import Operator, Ref
from monet.ops import generic
from monet.ops.implementation import Context, Implementation
from monet.ops.record import Record
from monet.ops.sample import Sample

aten = torch.ops.aten


def _scale(op: Operator, context: Context) -> float | None:
    """Eager's 1 / (1 - p); None where the traced kernel is eager's own (not CPU, p of 0 or 1, evaluation)."""
    result = op.outputs[0]
    probability, training = float(op.args[1]), op.args[2]
    if result is None or context.value(result).device.type != "cpu" or not training or not 0.0 < probability < 1.0:
        return None
    return float(torch.ones((), dtype=context.value(result).dtype).div_(1.0 - probability).item())


def forward(op: Operator, context: Context) -> list[Implementation]:
    scale = _scale(op, context)
    if scale is None:
        return generic.forward(op, context)
    outputs = (*op.outputs, f"{op.name}.rng")
    return [Implementation("eager", generic.draw, (dropout, op.args[0], op.args[1], scale), (), outputs, False)]


def recompute(op: Operator, context: Context) -> list[Implementation] | None:
    scale = _scale(op, context)
    if scale is None:
        return generic.recompute(op, context)
    args = (dropout, Ref(f"{op.name}.rng"), op.args[0], op.args[1], scale)
    return [Implementation("eager", generic.draw_again, args, (), op.outputs, False)]


def backward(op: Operator, context: Context) -> list[Implementation]:
    gradient, mask, _ = op.args
    maker = context.maker(mask.name)
    scale = _scale(maker, context) if maker is not None and maker.target is aten.native_dropout.default else None
    if scale is None:
        return generic.backward(op, context)
    return [Implementation("eager", masked, (gradient, mask, scale), (), op.outputs)]


def dropout(x: torch.Tensor, probability: float, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    """x * mask * scale and the boolean mask, drawn as eager's ``dropout`` draws it."""
    mask = torch.empty_like(x, dtype=torch.bool).bernoulli_(1.0 - probability)
    return x.mul(mask).mul_(scale), mask


def masked(gradient: torch.Tensor, mask: torch.Tensor, scale: float) -> torch.Tensor:
    return gradient.mul(mask).mul_(scale)


RECORDS = (
    Record(
        name="dropout",
        family="dropout",
        forward_targets=(aten.native_dropout.default,),
        backward_targets=(aten.native_dropout_backward.default,),
        equations="the mask that eager draws, and eager's rounding of 1 / (1 - p)",
        samples=(Sample("dropout", lambda x: torch.nn.functional.dropout(x, 0.3), ((5, 67),)),),
        forward=forward,
        recompute=recompute,
        backward=backward,
    ),
)

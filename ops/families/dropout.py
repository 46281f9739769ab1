"""Dropout on CPU as eager computes it: the same mask, the same rounding of the scale.

Eager multiplies by noise = Bernoulli(1 - p) / (1 - p) in the input's dtype. The traced
``native_dropout`` keeps the mask as bytes but rounds 1 / (1 - p) differently; with eager's scale
both are bitwise equal, since multiplying by 1 first changes nothing.

For the backward pass the mask can also be kept as one bit an element, an eighth of its bytes, or drawn again from the
generator's saved state.
"""

from __future__ import annotations

import torch

from monet.base.graph import Operator, Ref, Value
from monet.ops.kernel_names import kernel
from monet.ops.kernels import bits
from monet.ops.offers import generic
from monet.ops.offers.context import Context
from monet.ops.offers.implementation import Implementation, SavedIntermediate
from monet.ops.offers.record import Record
from monet.ops.offers.sample import HALVES, Sample
from monet.ops.strides import without_gaps

aten = torch.ops.aten


def _scale(op: Operator, context: Context) -> float | None:
    """Eager's 1 / (1 - p); None where the traced kernel is eager's own (not CPU, p of 0 or 1, evaluation)."""
    result = op.outputs[0]
    probability, training = float(op.args[1]), op.args[2]
    if result is None or context.value(result).device.type != "cpu" or not training or not 0.0 < probability < 1.0:
        return None
    return float(torch.ones((), dtype=context.value(result).dtype).div_(1.0 - probability).item())


def forward(op: Operator, context: Context) -> list[Implementation]:
    """Eager's dropout, with the generator's state from before."""
    scale = _scale(op, context)
    if scale is None:
        return generic.forward(op, context)
    outputs = (*op.outputs, f"{op.name}.rng")
    return [Implementation("eager", generic.draw, (dropout, op.args[0], op.args[1], scale), (), outputs, False)]


def recompute(op: Operator, context: Context) -> list[Implementation] | None:
    """The same mask, drawn again from the saved state."""
    scale = _scale(op, context)
    if scale is None:
        return generic.recompute(op, context)
    args = (dropout, Ref(f"{op.name}.rng"), op.args[0], op.args[1], scale)
    return [Implementation("eager", generic.draw_again, args, (), op.outputs, False)]


def _mask_bits(op: Operator, context: Context) -> Value | None:
    """The mask of a forward dropout, one bit an element; None where no kernel makes it."""
    result, mask = op.outputs
    if result is None or mask is None or _scale(op, context) is None or bits.library() is None:
        return None
    y, dense = context.value(result), context.value(mask)
    if not bits.dense(y) or y.stride != dense.stride or not without_gaps(dense):
        return None
    return bits.bit_value(f"{op.name}.bits", dense)


def intermediates(op: Operator, context: Context) -> list[SavedIntermediate]:
    """The mask as bits."""
    packed = _mask_bits(op, context)
    if packed is None or op.outputs[1] is None:
        return []
    stride = list(context.value(op.outputs[1]).stride)
    make = Implementation("bits", bits.mask_bits, (Ref(op.outputs[1]), stride), (), (packed.name,))
    return [SavedIntermediate(packed, make, "mask-bits")]


def backward(op: Operator, context: Context) -> list[Implementation]:
    """Eager's product with the mask, and the same from its bits: gradient * 1 * scale is gradient * scale, and
    gradient * 0 keeps its sign or is NaN however it is scaled."""
    gradient, mask, _ = op.args
    maker = context.maker(mask.name)
    scale = _scale(maker, context) if maker is not None and maker.target is aten.native_dropout.default else None
    if scale is None or maker is None:
        return generic.backward(op, context)
    found = [Implementation("eager", masked, (gradient, mask, scale), (), op.outputs)]
    result, packed = op.outputs[0], _mask_bits(maker, context)
    if result is None:
        return found
    in_place = context.may_overwrite(gradient.name, op, result)
    if in_place:
        found.append(
            Implementation("in-place", masked_, (gradient, mask, scale), (), op.outputs, True, overwrites=gradient.name)
        )
    given = context.value(gradient.name)
    if packed is None or not bits.dense(given) or given.stride != context.value(mask.name).stride:
        return found
    call = (gradient, Ref(packed.name), scale, 0.0, list(given.stride))
    found.append(Implementation("from-bits", bits.branch_gradient, call, (), op.outputs))
    if in_place:
        found.append(
            Implementation(
                "from-bits-in-place", bits.branch_gradient_, call, (), op.outputs, True, overwrites=gradient.name
            )
        )
    return found


@kernel("dropout")
def dropout(x: torch.Tensor, probability: float, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    """x * mask * scale and the boolean mask, drawn as eager's ``dropout`` draws it."""
    mask = torch.empty_like(x, dtype=torch.bool).bernoulli_(1.0 - probability)
    return x.mul(mask).mul_(scale), mask


@kernel("dropout_gradient")
def masked(gradient: torch.Tensor, mask: torch.Tensor, scale: float) -> torch.Tensor:
    """gradient * mask * scale, multiplied in eager's order."""
    return gradient.mul(mask).mul_(scale)


@kernel("dropout_gradient_in_place")
def masked_(gradient: torch.Tensor, mask: torch.Tensor, scale: float) -> torch.Tensor:
    """``masked`` in place."""
    return gradient.mul_(mask).mul_(scale)


RECORDS = (
    Record(
        name="dropout",
        family="dropout",
        forward_targets=(aten.native_dropout.default,),
        backward_targets=(aten.native_dropout_backward.default,),
        equations="the mask that eager draws, and eager's rounding of 1 / (1 - p); for the gradient as bits, "
        "or drawn again from the generator's state",
        samples=(Sample("dropout", lambda x: torch.nn.functional.dropout(x, 0.3), ((5, 67),), (), HALVES),),
        forward=forward,
        recompute=recompute,
        backward=backward,
        intermediates=intermediates,
    ),
)

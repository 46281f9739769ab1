"""Layer and group norm: run again from saved statistics; backward from the input or from the output."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from monet.base.graph import Operator, Ref
from monet.ops.families.normalization.kernel_inputs import contiguous_data, parameters_as
from monet.ops.families.normalization.least_scale import guarded
from monet.ops.kernels import norm_variants, norms
from monet.ops.offers import generic
from monet.ops.offers.context import Context, plain
from monet.ops.offers.implementation import Implementation
from monet.ops.offers.record import Record
from monet.ops.offers.sample import HALVES, Sample, between, single

aten = torch.ops.aten


def _recompute(
    op: Operator, context: Context, apply: Callable[..., Any], trial: norm_variants.Trial, more: tuple[Any, ...]
) -> list[Implementation] | None:
    """aten's own, and from saved statistics where that is the same bit by bit."""
    found = generic.recompute(op, context)
    y, mean, rstd = op.outputs
    x, weight, bias = op.args[0], *_weight_and_bias(op)
    if found is None or y is None or mean is None or rstd is None:
        return found
    value, kind = context.value(x.name), context.value(mean).dtype
    if not contiguous_data(value) or not parameters_as(context, mean, weight, bias):
        return found
    if norm_variants.variant_of(trial, value.dtype, kind, False) is None:
        return found
    call = (x, weight, bias, Ref(mean), Ref(rstd), *more)
    # No name of a forward implementation: the planner takes the faster one.
    again = [replace(i, name="statistics-again") for i in found]
    return [Implementation("saved-statistics", apply, call, (), (y,)), *again]


def _weight_and_bias(op: Operator) -> tuple[Any, Any]:
    return (op.args[2], op.args[3]) if op.target is aten.native_layer_norm.default else (op.args[1], op.args[2])


def recompute_layer_norm(op: Operator, context: Context) -> list[Implementation] | None:
    """aten's own, and from the rows' saved statistics."""
    return _recompute(op, context, norm_variants.layer_norm_apply, norm_variants.try_layer_norm, ())


def recompute_group_norm(op: Operator, context: Context) -> list[Implementation] | None:
    """aten's own, and from the groups' saved statistics."""
    if op.args[1] is None:  # aten then centres first, which no other kernel of its does
        return generic.recompute(op, context)
    return _recompute(op, context, norm_variants.group_norm_apply, norm_variants.try_group_norm, (op.args[6],))


def backward_layer_norm(op: Operator, context: Context) -> list[Implementation]:
    """aten's own, and from the output; see ``_backward``."""
    gradient, _, _, _, rstd, *_, mask = op.args
    return _backward(op, context, gradient, rstd, mask, norms.layer_norm_from_output, norms.layer_norm_from_output_)


def backward_group_norm(op: Operator, context: Context) -> list[Implementation]:
    """The same of group norm."""
    gradient, _, _, rstd, *_, mask = op.args
    return _backward(op, context, gradient, rstd, mask, norms.group_norm_from_output, norms.group_norm_from_output_)


def _backward(
    op: Operator,
    context: Context,
    gradient: Ref,
    rstd: Ref,
    mask: list[bool],
    into_new: Callable[..., Any],
    in_place: Callable[..., Any],
) -> list[Implementation]:
    """aten's own from the input, and from the output with xhat = (y - beta) / gamma (MONeT, section 4.2, for rows).

    dx = rstd (h - mean(h) - xhat mean(h xhat)) with h = gamma g; dgamma = sum(g xhat), dbeta = sum(g). Not bitwise:
    xhat is rounded once more, and sums have another order.
    """
    found = [plain(op)]
    maker = context.maker(rstd.name)
    if maker is None or maker.target not in _FORWARD or maker.outputs[0] is None:
        return found
    y, given = context.value(maker.outputs[0]), context.value(gradient.name)
    weight, bias = _weight_and_bias(maker)
    if not contiguous_data(y) or not contiguous_data(given) or given.dtype is not y.dtype:
        return found
    if (weight is None and bias is not None) or not parameters_as(context, rstd.name, weight, bias):
        return found
    if norms.library(y.dtype) is None:
        return found
    call = (gradient, Ref(y.name), weight, bias, rstd, mask)
    new = Implementation("from-output", into_new, call, (), op.outputs, False)
    made = guarded(new, weight, bias, y.dtype, context)
    found += made
    result = op.outputs[0]
    if mask[0] and result is not None and context.may_overwrite(gradient.name, op, result):
        found += [replace(m, name="from-output-in-place", call=in_place, overwrites=gradient.name) for m in made]
    return found


_FORWARD = (aten.native_layer_norm.default, aten.native_group_norm.default)
_f = torch.nn.functional
_ROWS, _IMAGES = ((5, 9, 67),), ((4, 6, 7, 7),)
_EQUATIONS = (
    "MONeT, section 4.2, for rows: xhat = (y - beta) / gamma, "
    "dx = rstd (gamma g - mean(gamma g) - xhat mean(gamma g xhat))"
)

RECORDS = (
    Record(
        name="layer_norm",
        family="normalizations",
        forward_targets=(aten.native_layer_norm.default,),
        backward_targets=(aten.native_layer_norm_backward.default,),
        equations=_EQUATIONS,
        samples=(
            Sample(
                "layer_norm", lambda x, w, b: _f.layer_norm(x, (67,), w, b), _ROWS, (between(0.5, 1.5, (67,)), (67,)),
                HALVES,
            ),
            Sample(
                "layer_norm_of_float32_parameters", lambda x, w, b: _f.layer_norm(x, (67,), w, b), _ROWS,
                (single(0.5, 1.5, (67,)), single(-1.0, 1.0, (67,))), (torch.bfloat16, torch.float16),
            ),
            Sample(
                "layer_norm_without_bias", lambda x, w: _f.layer_norm(x, (67,), w), _ROWS, (between(0.5, 1.5, (67,)),)
            ),
            Sample("layer_norm_without_parameters", lambda x: _f.layer_norm(x, (9, 67)), _ROWS),
        ),
        recompute=recompute_layer_norm,
        backward=backward_layer_norm,
    ),
    Record(
        name="group_norm",
        family="normalizations",
        forward_targets=(aten.native_group_norm.default,),
        backward_targets=(aten.native_group_norm_backward.default,),
        equations=_EQUATIONS + ", a row being a group of channels of one image",
        samples=(
            Sample(
                "group_norm", lambda x, w, b: _f.group_norm(x, 2, w, b), _IMAGES, (between(0.5, 1.5, (6,)), (6,)),
                HALVES,
            ),
            Sample(
                "group_norm_of_float32_parameters", lambda x, w, b: _f.group_norm(x, 2, w, b), _IMAGES,
                (single(0.5, 1.5, (6,)), single(-1.0, 1.0, (6,))), (torch.bfloat16,),
            ),
            Sample("group_norm_without_parameters", lambda x: _f.group_norm(x, 3), _IMAGES),
        ),
        recompute=recompute_group_norm,
        backward=backward_group_norm,
    ),
)  # fmt: skip

"""Smooth activations: from the output where it determines the gradient, else aten's own."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from monet.base.graph import Operator, Ref
from monet.ops.offers import generic
from monet.ops.offers.context import Context
from monet.ops.offers.implementation import Implementation
from monet.ops.offers.record import Record
from monet.ops.offers.sample import Sample

aten = torch.ops.aten
_f = torch.nn.functional

# The largest relative error of one rounding.
ROUNDING = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-9, torch.float16: 2.0**-12}

_NOT_MONOTONIC = (
    "aten's own: the function is not monotonic, so the output does not determine the input; a branch bit and a numeric "
    "inverse lose half of the digits near the minimum. One elementwise operator makes the output from the kept input"
)


def elu_backward(op: Operator, context: Context) -> list[Implementation]:
    """aten's own from the input, and with ``is_result`` from the output, as eager's own in-place ELU takes it.

    With y = a (exp(c x) - 1) for x <= 0, where a = alpha * scale and c = input_scale, the derivative c a exp(c x) is
    c (y + a). Not bitwise: y is rounded to its dtype and to a's digits, so the derivative has an absolute error of
    c a times two roundings, and the product one more.
    """
    found = generic.backward(op, context)
    gradient, alpha, scale, input_scale, of_output, saved = op.args
    if of_output or not isinstance(saved, Ref) or alpha < 0 or op.outputs[0] is None:
        return found
    numbers = (float(alpha), float(scale), float(input_scale))
    for forward in context.graph.forward:
        if forward.target not in (aten.elu.default, aten.celu.default) or forward.outputs[0] is None:
            continue
        if not context.same(forward.args[0].name, saved.name) or not _close(_elu_numbers(forward), numbers):
            continue
        rounding = ROUNDING.get(context.value(forward.outputs[0]).dtype)
        if rounding is None:
            break
        kernel = replace(op, args=(gradient, alpha, scale, input_scale, True, Ref(forward.outputs[0])))
        return found + [
            replace(i, name=f"from-output-{i.name}", exact=False, tolerance=4 * rounding)
            for i in generic.backward(kernel, context)
        ]
    return found


def _elu_numbers(op: Operator) -> tuple[float, ...]:
    """alpha, scale and input_scale of a forward operator."""
    given = [float(a) for a in op.args[1:4]]
    if op.target is aten.celu.default:
        alpha = given[0] if given else 1.0
        return alpha, 1.0, 1.0 / alpha
    return tuple(given + [1.0] * (3 - len(given)))


def _close(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    """celu rounds 1 / alpha to float32."""
    return all(math.isclose(a, b, rel_tol=1e-6) for a, b in zip(one, other, strict=True))


RECORDS = (
    Record(
        name="sigmoid",
        family="activations",
        forward_targets=(aten.sigmoid.default,),
        backward_targets=(aten.sigmoid_backward.default,),
        equations="aten's own, from the output: g y (1 - y)",
        samples=(Sample("sigmoid", torch.sigmoid, ((5, 67),)),),
    ),
    Record(
        name="tanh",
        family="activations",
        forward_targets=(aten.tanh.default,),
        backward_targets=(aten.tanh_backward.default,),
        equations="aten's own, from the output: g (1 - y^2)",
        samples=(Sample("tanh", torch.tanh, ((5, 67),)),),
    ),
    Record(
        name="elu, celu, selu",
        family="activations",
        forward_targets=(aten.elu.default, aten.celu.default),
        backward_targets=(aten.elu_backward.default,),
        equations="from the output: the derivative below 0 is input_scale (y + alpha scale), as eager's in-place ELU",
        samples=(
            Sample("elu", lambda x: _f.elu(x, 1.3), ((5, 67),)),
            Sample("elu_in_place", lambda x: _f.elu_(x, 1.3), ((5, 67),)),
            Sample("celu", lambda x: _f.celu(x, 0.7), ((5, 67),)),
            Sample("selu", torch.selu, ((5, 67),)),
        ),
        backward=elu_backward,
    ),
    Record(
        name="gelu",
        family="activations",
        forward_targets=(aten.gelu.default,),
        backward_targets=(aten.gelu_backward.default,),
        equations=_NOT_MONOTONIC,
        samples=(
            Sample("gelu", _f.gelu, ((5, 67),)),
            Sample("gelu_tanh", lambda x: _f.gelu(x, approximate="tanh"), ((5, 67),)),
        ),
    ),
    Record(
        name="silu",
        family="activations",
        forward_targets=(aten.silu.default,),
        backward_targets=(aten.silu_backward.default,),
        equations=_NOT_MONOTONIC,
        samples=(Sample("silu", _f.silu, ((5, 67),)),),
    ),
    Record(
        name="hardswish",
        family="activations",
        forward_targets=(aten.hardswish.default,),
        backward_targets=(aten.hardswish_backward.default,),
        equations=_NOT_MONOTONIC,
        samples=(Sample("hardswish", _f.hardswish, ((5, 67),)),),
    ),
    Record(
        name="mish",
        family="activations",
        forward_targets=(aten.mish.default,),
        backward_targets=(aten.mish_backward.default,),
        equations=_NOT_MONOTONIC,
        samples=(Sample("mish", _f.mish, ((5, 67),)),),
    ),
    Record(
        name="softplus",
        family="activations",
        forward_targets=(aten.softplus.default,),
        backward_targets=(aten.softplus_backward.default,),
        equations="aten's own: the derivative from the output, 1 - exp(-beta y), costs what the output costs from the "
        "kept input, and has no digits where the output is small",
        samples=(Sample("softplus", lambda x: _f.softplus(x, 1.5, 2.0), ((5, 67),)),),
    ),
    Record(
        name="log_sigmoid",
        family="activations",
        forward_targets=(aten.log_sigmoid_forward.default,),
        backward_targets=(aten.log_sigmoid_backward.default,),
        equations="aten's own, from the input and the exp(-|x|) that its forward kernel leaves",
        samples=(Sample("log_sigmoid", _f.logsigmoid, ((5, 67),)),),
    ),
    Record(
        name="glu",
        family="activations",
        forward_targets=(aten.glu.default,),
        backward_targets=(aten.glu_backward.default,),
        equations="aten's own: one output of two inputs determines neither of them",
        samples=(Sample("glu", lambda x: _f.glu(x, 1), ((5, 66),)),),
    ),
    Record(
        name="prelu",
        family="activations",
        forward_targets=(aten._prelu_kernel.default,),
        backward_targets=(aten._prelu_kernel_backward.default,),
        equations="aten's own: the slopes are trained and may pass 0, and their gradient needs the input itself",
        samples=(Sample("prelu", _f.prelu, ((5, 6, 11),), ((6,),)),),
    ),
)

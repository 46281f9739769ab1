"""ReLU, ReLU6, LeakyReLU and others of straight pieces: gradient from the output or from one saved bit an element."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from monet.base.graph import Operator, Ref, Value
from monet.ops.families.activation.branch import Branch, branch, of_backward
from monet.ops.kernel_names import kernel
from monet.ops.kernels import bits
from monet.ops.offers import generic
from monet.ops.offers.context import Context
from monet.ops.offers.implementation import Implementation, SavedIntermediate
from monet.ops.offers.record import Record
from monet.ops.offers.sample import HALVES, Sample

aten = torch.ops.aten


def _bits(op: Operator, found: Branch, context: Context) -> tuple[Value, Ref] | None:
    """The bits of a forward activation and what they are made from: its output where that tells, else its input."""
    if op.outputs[0] is None or bits.library() is None or context.reads_written(op):
        return None
    read = Ref(op.outputs[0]) if found.of_output is not None else op.args[0]
    value = context.value(read.name)
    return (bits.bit_value(f"{op.name}.bits", value), read) if bits.dense(value) else None


def intermediates(op: Operator, context: Context) -> list[SavedIntermediate]:
    """One bit an element."""
    found = branch(op, context.value(op.outputs[0]).dtype) if op.outputs[0] is not None else None
    made = _bits(op, found, context) if found is not None else None
    if found is None or made is None:
        return []
    value, read = made
    ends = found.of_output if found.of_output is not None else (found.low, found.high)
    stride = list(context.value(read.name).stride)
    make = Implementation("bits", bits.inside_bits, (read, *ends, found.nan, stride), (), (value.name,))
    return [SavedIntermediate(value, make, "sign-bits")]


def backward(op: Operator, context: Context) -> list[Implementation]:
    """aten's own from what eager saved, the same kernel from the output where that tells, and from bits."""
    found = generic.backward(op, context)
    partner = of_backward(op, context)
    if partner is None or op.outputs[0] is None:
        return found
    forward, way = partner
    found += _from_output(op, forward, way, context)
    made = _bits(forward, way, context)
    gradient = op.args[0]
    given = context.value(gradient.name)
    if made is None or not bits.dense(given) or given.stride != context.value(made[1].name).stride:
        return found
    call = (gradient, Ref(made[0].name), way.inside, way.outside, list(given.stride))
    found.append(Implementation("from-bits", bits.branch_gradient, call, (), op.outputs))
    if context.may_overwrite(gradient.name, op, op.outputs[0]):
        found.append(
            Implementation(
                "from-bits-in-place", bits.branch_gradient_, call, (), op.outputs, True, overwrites=gradient.name
            )
        )
    return found


def _from_output(op: Operator, forward: Operator, way: Branch, context: Context) -> list[Implementation]:
    y = forward.outputs[0]
    if y is None or way.of_output is None or context.same(op.args[1].name, y):
        return []
    if op.target is aten.hardsigmoid_backward.default:  # its kernel knows only the input's ends
        if bits.library() is None or not bits.dense(context.value(y)) or not bits.dense(context.value(op.args[0].name)):
            return []
        if context.value(y).stride != context.value(op.args[0].name).stride:
            return []
        stride = list(context.value(y).stride)
        call = (op.args[0], Ref(y), *way.of_output, way.nan, way.inside, way.outside, stride)
        return [Implementation("from-output", branch_from_output, call, (), op.outputs)]
    kernel = replace(op, args=(op.args[0], Ref(y), *op.args[2:]))
    return [replace(i, name=f"from-output-{i.name}") for i in generic.backward(kernel, context)]


@kernel("branch_gradient_from_output")
def branch_from_output(
    gradient: torch.Tensor,
    y: torch.Tensor,
    low: float,
    high: float | None,
    nan: bool,
    inside: float,
    outside: float | None,
    stride: Sequence[int],
) -> torch.Tensor:
    """The gradient of a branch whose output y tells it; the bits are a temporary."""
    return bits.branch_gradient(gradient, bits.inside_bits(y, low, high, nan, stride), inside, outside, stride)


_f = torch.nn.functional

RECORDS = (
    Record(
        name="relu, threshold",
        family="activations",
        forward_targets=(aten.relu.default, aten.threshold.default),
        backward_targets=(aten.threshold_backward.default,),
        equations="sign bits: Gist, section 4; from the output: it is above the threshold where the input is, if the "
        "value below it is not",
        samples=(
            Sample("relu", torch.relu, ((5, 67),), (), HALVES),
            Sample("threshold", lambda x: _f.threshold(x, 0.1, -0.3), ((5, 67),), (), HALVES),
            Sample("threshold_to_more", lambda x: _f.threshold(x, 0.1, 0.7), ((5, 67),), (), HALVES),
        ),
        backward=backward,
        intermediates=intermediates,
    ),
    Record(
        name="hardtanh, relu6",
        family="activations",
        forward_targets=(aten.hardtanh.default,),
        backward_targets=(aten.hardtanh_backward.default,),
        equations="MONeT, section 4.2: the output attains the bounds exactly where the input reaches or passes them, "
        "if the dtype has the bounds; bits of the input otherwise",
        samples=(
            Sample("relu6", _f.relu6, ((5, 67),), (), HALVES),
            Sample("hardtanh_of_odd_bounds", lambda x: _f.hardtanh(x, -0.7, 0.3), ((5, 67),), (), HALVES),
        ),
        backward=backward,
        intermediates=intermediates,
    ),
    Record(
        name="leaky_relu",
        family="activations",
        forward_targets=(aten.leaky_relu.default,),
        backward_targets=(aten.leaky_relu_backward.default,),
        equations="one bit and two slopes (MONeT, section 4.2); the output has the input's sign if the slope is not "
        "negative; bits of the input otherwise",
        samples=(
            Sample("leaky_relu", lambda x: _f.leaky_relu(x, 0.2), ((5, 67),), (), HALVES),
            Sample("leaky_relu_in_place", lambda x: _f.leaky_relu_(x, 0.2), ((5, 67),), (), HALVES),
            Sample("leaky_relu_of_negative_slope", lambda x: _f.leaky_relu(x, -0.3), ((5, 67),), (), HALVES),
        ),
        backward=backward,
        intermediates=intermediates,
    ),
    Record(
        name="hardsigmoid",
        family="activations",
        forward_targets=(aten.hardsigmoid.default,),
        backward_targets=(aten.hardsigmoid_backward.default,),
        equations="one bit (-3 < x < 3) times 1/6 (MONeT, section 4.2); in 16-bit formats the output is inside (0, 1) "
        "exactly there, and in float32 everywhere but at 3 - 2^-22, so it has bits of the input",
        samples=(Sample("hardsigmoid", _f.hardsigmoid, ((5, 67),), (), HALVES),),
        backward=backward,
        intermediates=intermediates,
    ),
)

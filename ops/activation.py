"""ReLU and ReLU6: gradient from the output or from one saved bit an element (Gist, section 4; MONeT, 4.2)."""

from __future__ import annotations

from dataclasses import replace

import torch

from monet.graph import Operator, Ref, Value
from monet.ops import generic, native
from monet.ops.implementation import Context, Implementation, SavedIntermediate
from monet.ops.record import Record
from monet.ops.sample import Sample

aten = torch.ops.aten


def _bounds(op: Operator) -> tuple[float, float | None] | None:
    """Between which inputs the gradient passes, for the operators that have sign bits."""
    if op.target in (aten.relu.default, aten.threshold_backward.default):
        threshold = float(op.args[2]) if op.target is aten.threshold_backward.default else 0.0
        return (threshold, None) if threshold == 0.0 else None
    if op.target is aten.hardtanh.default:
        return (float(op.args[1]) if len(op.args) > 1 else -1.0), (float(op.args[2]) if len(op.args) > 2 else 1.0)
    if op.target is aten.hardtanh_backward.default:
        return float(op.args[2]), float(op.args[3])
    return None


def _dense(value: Value) -> bool:
    return value.dtype is torch.float32 and value.device.type == "cpu" and value.storage_bytes == 4 * value.numel


def _bits(op: Operator, context: Context) -> Value | None:
    """The bit mask of a forward activation; None where it cannot be made from the output."""
    result = op.outputs[0]
    if result is None or native.library() is None or not _dense(context.value(result)) or _bounds(op) is None:
        return None
    name, size = f"{op.name}.bits", (context.value(result).numel + 7) // 8
    return Value(name, (size,), (1,), 0, torch.uint8, context.value(result).device, name, size)


def intermediates(op: Operator, context: Context) -> list[SavedIntermediate]:
    bits, bounds = _bits(op, context), _bounds(op)
    if bits is None or bounds is None or op.outputs[0] is None:
        return []
    make = Implementation("bits", native.pass_bits, (Ref(op.outputs[0]), *bounds), (), (bits.name,))
    return [SavedIntermediate(bits, make, "sign-bits")]


def backward(op: Operator, context: Context) -> list[Implementation]:
    """aten's own, and from bits where the partner is an activation of this family.

    hardtanh's backward reads its input; its output is as good: both comparisons are with the
    bounds, which the output attains exactly where the input reaches or passes them.
    """
    saved = op.args[1]
    activation = _activation(op, context)
    if op.target is aten.hardtanh_backward.default and activation is not None and activation.outputs[0] is not None:
        from_output = replace(op, args=(op.args[0], Ref(activation.outputs[0]), *op.args[2:]))
        found = generic.backward(op, context)
        found += [replace(i, name=f"from-output-{i.name}") for i in generic.backward(from_output, context)]
    else:
        found = generic.backward(op, context)
    bits = _bits(activation, context) if activation is not None else None
    gradient = op.args[0]
    if bits is None or op.outputs[0] is None or _bounds(op) != _bounds(activation) or not isinstance(saved, Ref):  # type: ignore[arg-type]
        return found
    if (
        not _dense(context.value(gradient.name))
        or context.value(gradient.name).stride != context.value(saved.name).stride
    ):
        return found
    call = (gradient, Ref(bits.name))
    found.append(Implementation("from-bits", native.pass_gradient, call, (), op.outputs))
    if context.may_overwrite(gradient.name, op, op.outputs[0]):
        found.append(
            Implementation(
                "from-bits-in-place", native.pass_gradient_, call, (), op.outputs, True, overwrites=gradient.name
            )
        )
    return found


def _activation(op: Operator, context: Context) -> Operator | None:
    """The forward operator that this backward belongs to."""
    saved = op.args[1]
    if not isinstance(saved, Ref):
        return None
    if op.target is aten.threshold_backward.default:
        made = context.producer.get(context.whole(saved.name) or "")
        return made if made is not None and made.target is aten.relu.default else None
    for reader in context.graph.forward:
        if reader.target is aten.hardtanh.default and reader.args[0] == saved:
            return reader
    return None


RECORDS = (
    Record(
        name="relu",
        family="activations",
        forward_targets=(aten.relu.default,),
        backward_targets=(aten.threshold_backward.default,),
        equations="sign bits: Gist, section 4; from the output: the sign of the output is the input's",
        samples=(Sample("relu", torch.relu, ((5, 67),)),),
        backward=backward,
        intermediates=intermediates,
    ),
    Record(
        name="hardtanh, relu6",
        family="activations",
        forward_targets=(aten.hardtanh.default,),
        backward_targets=(aten.hardtanh_backward.default,),
        equations="MONeT, section 4.2: the output attains the bounds exactly where the input reaches or passes them",
        samples=(Sample("relu6", torch.nn.functional.relu6, ((5, 67),)),),
        backward=backward,
        intermediates=intermediates,
    ),
)

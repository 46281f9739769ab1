"""RMS norm, and any scaling: a factor of a forward product again from the product, for the gradients that need it.

torch runs RMS norm as its parts, y = x r w with r = rsqrt(mean(x^2) + eps), and its gradients read x, x r and r. What
follows the norm keeps y (a linear layer for its weight's gradient), and r has one element a row, so that x = y / (w r)
needs no memory of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from monet.base.graph import Operator, Ref, Value
from monet.ops.families.normalization.least_scale import source_of
from monet.ops.kernel_names import kernel
from monet.ops.offers import generic
from monet.ops.offers.context import Context
from monet.ops.offers.implementation import Guard, Implementation
from monet.ops.offers.record import Record
from monet.ops.offers.sample import HALVES, Sample, between, single
from monet.ops.strides import without_gaps

aten = torch.ops.aten

# A product and its division again: each rounds once, and the product in between has lost nothing as long as it does not
# underflow. Two products, two divisions and the gradient's own product are five roundings of the coarsest format.
TOLERANCE = {torch.float32: 5 * 2.0**-24, torch.bfloat16: 5 * 2.0**-9, torch.float16: 5 * 2.0**-12}

# Only underflow loses digits, however small the scale. At these bounds that is an element of x r below 1e-20 (float16:
# 6e-3), beside others of its row whose squares have a mean of 1.
LEAST_SCALE = {torch.float32: 1e-18, torch.bfloat16: 1e-18, torch.float16: 1e-2}


@dataclass(frozen=True, slots=True)
class _Product:
    """``name`` = (factor, cast on the way) times all ``divisors``, in the order to divide by."""

    name: str
    divisors: tuple[Ref, ...]
    scale: str | None
    formats: frozenset[torch.dtype]


def from_product(product: torch.Tensor, divisors: list[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    """The factor of ``dtype``, of the product's shape; ``divisors`` broadcast."""
    if product.dtype is dtype:
        found = torch.div(product, divisors[0])
        divisors = divisors[1:]
    else:
        found = product.to(dtype)
    for divisor in divisors:
        found.div_(divisor)
    return found


@kernel("times_factor")
def times_factor(
    gradient: torch.Tensor, product: torch.Tensor, divisors: list[torch.Tensor], dtype: torch.dtype
) -> torch.Tensor:
    """``gradient`` times the factor."""
    return from_product(product, divisors, dtype).mul_(gradient)


@kernel("power_of_factor")
def power_of_factor(
    exponent: float, product: torch.Tensor, divisors: list[torch.Tensor], dtype: torch.dtype
) -> torch.Tensor:
    """The factor to the power of ``exponent``."""
    found = from_product(product, divisors, dtype)
    return found if exponent == 1.0 else found.pow_(exponent)


def backward(op: Operator, context: Context) -> list[Implementation]:
    """aten's own, and one that divides for a forward value that it reads."""
    found = generic.backward(op, context)
    if op.kwargs or op.outputs[0] is None:
        return found
    if op.target is aten.mul.Tensor:
        for factor, other in ((op.args[0], op.args[1]), (op.args[1], op.args[0])):
            if isinstance(factor, Ref) and isinstance(other, Ref):
                found += _from_output(op, factor, (other,), times_factor, context)
    elif isinstance(op.args[0], Ref):
        found += _from_output(op, op.args[0], (op.args[1],), power_of_factor, context)
    return found


def _from_output(
    op: Operator, factor: Ref, first: tuple[Any, ...], call: Any, context: Context
) -> list[Implementation]:
    value, result = context.value(factor.name), context.value(str(op.outputs[0]))
    product = _product(factor, context)
    if product is None or not _alike(value, result) or value.dtype is not result.dtype:
        return []
    other = first[0]
    if isinstance(other, Ref) and (
        context.value(other.name).dtype is not value.dtype or context.same(other.name, factor.name)
    ):
        return []
    name, divisors = product.name, list(product.divisors)
    guard = None
    if product.scale is not None:
        guard = Guard(product.scale, None, max(LEAST_SCALE[f] for f in product.formats))
    args = (*first, Ref(name), divisors, value.dtype)
    tolerance = max(TOLERANCE[f] for f in product.formats)
    return [Implementation("from-output", call, args, (), op.outputs, True, None, False, tolerance, guard)]


def _product(factor: Ref, context: Context) -> _Product | None:
    """The last product in a row of forward products that begins with the factor, and can be divided again."""
    value = context.value(factor.name)
    if value.dtype not in TOLERANCE or not without_gaps(value):
        return None
    name, divisors, scale, formats = factor.name, list[Ref](), None, {value.dtype}
    while (step := _next(name, context)) is not None:
        reader, divisor = step
        result = context.value(str(reader.outputs[0]))
        if not _alike(value, result) or result.dtype not in TOLERANCE:
            break
        if divisor is not None:
            source = None if _positive(divisor, context) else _parameter(divisor, context)
            if torch.promote_types(context.value(divisor.name).dtype, value.dtype) is not value.dtype:
                break
            if source is not None and scale is not None:
                break  # one guard an implementation
            scale = source or scale
            divisors.insert(0, divisor)
        formats.add(result.dtype)
        name = result.name
    return _Product(name, tuple(divisors), scale, frozenset(formats)) if divisors else None


def _next(name: str, context: Context) -> tuple[Operator, Ref | None] | None:
    """The first forward operator that multiplies the value by what it can be divided by, or casts it."""
    casts: Operator | None = None
    for op in context.forward_readers.get(context.graph.storage(name), ()):
        if op.outputs[0] is None:
            continue
        if op.target is aten.mul.Tensor and all(isinstance(a, Ref) for a in op.args):
            for one, other in ((op.args[0], op.args[1]), (op.args[1], op.args[0])):
                known = _positive(other, context) or _parameter(other, context) is not None
                if known and context.same(one.name, name) and not context.same(other.name, name):
                    return op, other
        elif op.target is aten._to_copy.default and context.same(op.args[0].name, name):
            casts = casts or op
    return None if casts is None else (casts, None)


def _positive(divisor: Ref, context: Context) -> bool:
    """Never 0, whatever the parameters are: a reciprocal root."""
    maker = context.maker(divisor.name)
    return maker is not None and maker.target is aten.rsqrt.default


def _parameter(divisor: Ref, context: Context) -> str | None:
    """The parameter that the divisor has the elements of. Inputs and buffers are often masks, with zeros in them."""
    name = source_of(divisor, context)
    return name if any(s.value == name and s.kind == "parameter" for s in context.graph.sources) else None


def _alike(one: Value, other: Value) -> bool:
    """The same elements in the same order of memory."""
    return (one.shape, one.stride) == (other.shape, other.stride) and without_gaps(other)


def _norm_in_parts(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """As models of transformers have it: in float32, whatever the activations are."""
    wide = x.to(torch.float32)
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
    return weight * wide.to(x.dtype)


_f = torch.nn.functional
_ROWS = ((5, 9, 67),)

RECORDS = (
    Record(
        name="rms_norm",
        family="normalizations",
        forward_targets=(aten.rsqrt.default,),
        backward_targets=(aten.mul.Tensor, aten.pow.Tensor_Scalar),
        equations="on the CPU torch runs and captures it as its parts (pow, mean, rsqrt, mul), each with aten's own "
        "kernels; rsqrt's result has one element a row and is kept, and x * rsqrt is made again by one multiplication. "
        "From the output, as MONeT, section 4.2: x = y / (w r); so is any factor that a parameter (no input or "
        "buffer, which may be a mask) scales",
        samples=(
            Sample("rms_norm", lambda x, w: _f.rms_norm(x, (67,), w), _ROWS, (between(0.5, 1.5, (67,)),), HALVES),
            Sample("rms_norm_without_parameters", lambda x: _f.rms_norm(x, (67,)), _ROWS),
            Sample("rms_norm_in_float32", _norm_in_parts, _ROWS, (between(0.5, 1.5, (67,)),)),
            Sample(
                "scaled_by_a_float32_parameter", lambda x, w: x.tanh() * w, _ROWS, (single(0.5, 1.5, (67,)),),
            ),
        ),
        backward=backward,
    ),
)  # fmt: skip

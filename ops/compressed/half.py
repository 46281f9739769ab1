"""A 16-bit copy of an activation for the backward pass (Gist, section 4: delayed precision reduction).

The forward pass computes with the float32 values; only what the gradients are taken from is rounded, so outputs
are eager's and gradients are not. Offered for the inputs of convolutions (their weight gradient reads
them) and of batch norm.

The format is float16 times a power of two of the tensor's own. float16 alone overflows beyond 65504 and loses
digits below 6e-5; bfloat16 does neither, but keeps 8 significant bits where float16 has 11, so its error
is 8 times as large; Gist's 8- and 10-bit formats clip what does not fit. The power of two takes the tensor's
largest finite magnitude m to [2^14, 2^15): nothing overflows, the error of an element x is at most
max(2^-11 |x|, 2^-39 m), and infinities and NaN stay what they are. It costs one more reading of the tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from monet.base.graph import Operator, Ref, Value
from monet.ops.compressed.packing import Packing, readers
from monet.ops.kernel_names import kernel
from monet.ops.kernels.packed import half_pack, half_unpack, library
from monet.ops.offers.context import Context
from monet.ops.offers.implementation import Implementation, SavedIntermediate

aten = torch.ops.aten

# A weight gradient is a sum of products with x: its error relative to the sum of their magnitudes is at most x's
# own, 2^-11 = 4.9e-4, and the rounding of the sum.
TOLERANCE = 5e-4
# Batch norm's gradient reads xhat = (x - mean) * invstd, whose error is at most 2^-11 |x| * invstd: 2e-3 where |x| is
# within four deviations of 0, and more in proportion where |mean| is many deviations.
BATCH_NORM_TOLERANCE = 2e-3

_TOLERANCES: dict[Callable[..., Any], float] = {
    aten.convolution_backward.default: TOLERANCE,
    aten.native_batch_norm_backward.default: BATCH_NORM_TOLERANCE,
}


def packings(context: Context) -> list[Packing]:
    """Of every value that a convolution's weight gradient or batch norm's gradient reads."""
    if library() is None:
        return []
    found: list[Packing] = []
    for name, reading in readers(context, frozenset(_TOLERANCES)).items():
        maker, value = context.producer[name], context.value(name)
        size = value.numel + 1
        packed = Value(f"{name}.half", (size,), (1,), 0, torch.float16, value.device, f"{name}.half", 2 * size)
        make = Implementation("half", half_pack, (Ref(name),), (), (packed.name,), exact=False)
        found.append(
            Packing(
                name,
                maker.name,
                SavedIntermediate(packed, make, "half"),
                {op.name: _reader(op, packed, value) for op in reading},
            )
        )
    return found


def _reader(op: Operator, packed: Value, value: Value) -> Implementation:
    args = (op.target, op.args[0], Ref(packed.name), list(value.shape), list(value.stride), *op.args[2:])
    return Implementation(
        "from-half",
        gradient_from_half,
        args,
        op.kwargs,
        op.outputs,
        op.single,
        exact=False,
        tolerance=_TOLERANCES[op.target],
    )


@kernel("gradient_from_half")
def gradient_from_half(
    target: Callable[..., Any],
    gradient: torch.Tensor,
    packed: torch.Tensor,
    shape: Sequence[int],
    stride: Sequence[int],
    *rest: Any,
) -> Any:
    """``target(gradient, x, *rest)`` with x unpacked into a temporary of 4 bytes an element."""
    return target(gradient, half_unpack(packed, shape, stride), *rest)

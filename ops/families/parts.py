"""A tensor with a part of it written anew: what tracing makes of ``y[:, :2] = x``.

aten copies all of the first argument's storage, so that ``x = data[:16]`` asks for the memory of ``data``. Where that
argument is an input of the model, whose storage a plan does not know, its elements alone are copied. Where nobody reads
it afterwards, the part is written where it is, as eager's assignment does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from monet.base.graph import Operator, Ref
from monet.ops.kernel_names import kernel
from monet.ops.offers.context import Context, plain
from monet.ops.offers.generic import may_go_into
from monet.ops.offers.implementation import Implementation
from monet.ops.offers.record import Record
from monet.ops.offers.sample import Sample
from monet.ops.strides import is_dense, without_gaps

aten = torch.ops.aten

PART: dict[Callable[..., Any], Callable[..., Any]] = {
    aten.slice_scatter.default: aten.slice.Tensor,
    aten.select_scatter.default: aten.select.int,
    aten.diagonal_scatter.default: aten.diagonal.default,
}
"""The view of the part; it takes what follows the two tensors."""


@kernel("write_part")
def write_part(part: Callable[..., Any], whole: torch.Tensor, source: torch.Tensor, *where: Any) -> torch.Tensor:
    """``whole``, of which ``part(whole, *where)`` is now ``source``."""
    part(whole, *where).copy_(source)
    return whole


@kernel("copy_with_part")
def copy_with_part(part: Callable[..., Any], whole: torch.Tensor, source: torch.Tensor, *where: Any) -> torch.Tensor:
    """``write_part`` of a copy of a dense tensor, in memory for its elements alone."""
    copy = torch.empty_strided(whole.shape, whole.stride(), dtype=whole.dtype, device=whole.device)
    return write_part(part, copy.copy_(whole), source, *where)


def _offers(op: Operator, context: Context) -> list[Implementation]:
    found, whole = plain(op), op.args[0]
    if op.kwargs or not isinstance(whole, Ref) or op.outputs[0] is None:
        return [found]
    args = (PART[op.target], *op.args)
    value = context.value(whole.name)
    if value.storage in context.sources and without_gaps(value) and is_dense(value.shape, value.stride):
        return [Implementation("aten", copy_with_part, args, (), op.outputs)]
    if not may_go_into(whole, op, context, op.outputs[0]):
        return [found]
    # Autograd refuses an assignment where a gradient reads the old elements.
    eagers = not context.read_in_backward(whole.name)
    call = Implementation("in-place", write_part, args, (), op.outputs, overwrites=whole.name, eagers=eagers)
    return [found, call]


def _again(op: Operator, context: Context) -> list[Implementation] | None:
    return None if context.reads_written(op) else _offers(op, context)


def _assigned(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y[:, :2] = x[:, 1:3]
    y[:, 4] = 0.5
    y.diagonal().copy_(x.diagonal() * 3)
    return y.sin()


def _assigned_to_a_copy(x: torch.Tensor) -> torch.Tensor:
    y, z = x.clone(), x.clone()
    y[:, ::2] = 0.5
    z[1] = x[0] * 2
    return y.sin() * z


RECORDS = (
    Record(
        name="assignment to a slice, a row or a diagonal; circular padding",
        family="copies and indexing",
        forward_targets=(*PART,),
        backward_targets=(aten.slice_scatter.default, aten.select_scatter.default),
        equations="linear; a part's gradient is the same part of the whole's, where that of the old elements is zero",
        samples=(
            Sample("assign", _assigned, ((6, 6),)),
            Sample("assign-copy", _assigned_to_a_copy, ((6, 7),)),
            Sample("pad-circular", lambda x: functional.pad(x, (1, 2, 0, 1), "circular"), ((2, 3, 5, 6),)),
        ),
        forward=_offers,
        recompute=_again,
        backward=_offers,
    ),
)

"""What an implementation has to do: which kind of kernel it is, its floating-point operations, its bytes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from monet.base.graph import Ref, Value, references
from monet.ops.estimating.convolutions import convolution
from monet.ops.fusion import loss_head
from monet.ops.kernel_names import call_name
from monet.ops.offers.generic import draw, draw_again
from monet.ops.offers.implementation import Implementation
from monet.ops.offers.shape_only import on_stand_ins

aten = torch.ops.aten

_WRAPPERS = {draw, draw_again, on_stand_ins}
_PRODUCTS = {aten.mm, aten.addmm, aten.bmm, aten.baddbmm, aten.mv, aten.dot}
_ATTENTION = {
    aten._scaled_dot_product_flash_attention_for_cpu.default: 2,
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default: 5,
}
"""Products of queries and keys, or of the like, that each does."""
_POOLING = {
    aten.max_pool2d_with_indices, aten.max_pool3d_with_indices, aten.avg_pool2d, aten.avg_pool3d,
}  # fmt: skip
"""These look at every cell of every window."""
_PICKING = {
    aten.embedding, aten.gather, aten.index, aten.index_select, aten.nll_loss_forward, aten.nll_loss2d_forward,
}  # fmt: skip
"""These read of their first argument no more than they make."""


@dataclass(frozen=True, slots=True)
class Work:
    """``kind``: kernels of one kind are as fast as each other on equal shapes. ``flops``: None where moving its bytes
    is what takes time. ``bytes``: read and written, each element once. ``convolution``: it is one, by whatever kernel.
    """

    kind: str
    flops: float | None
    bytes: int
    convolution: bool = False

    @property
    def intensity(self) -> float:
        """Operations a byte; 0 where only bytes are counted."""
        return 0.0 if self.flops is None else self.flops / max(self.bytes, 1)


def work(run: Implementation, values: Mapping[str, Value]) -> Work:
    """What ``run`` does, by its shapes alone."""
    moved = _moved_bytes(run, values)
    found = convolution(run, values)
    if found is not None:
        return Work(f"{run.call_name}, {found.form}", found.flops, moved, convolution=True)
    inner = _inner(run)
    kind = run.call_name if inner is run.call else f"{run.call_name} {call_name(inner)}"
    if inner in _ATTENTION:
        return Work(kind, _ATTENTION[inner] * _attention_flops(run, values), moved)
    if inner is loss_head.loss_head:
        return Work(kind, loss_head.flops(run, values), moved)
    if getattr(inner, "overloadpacket", None) in _PRODUCTS:
        return Work(kind, _product_flops(run, values), moved)
    if getattr(inner, "overloadpacket", None) in _POOLING:
        return Work(kind, _window_cells(run, values), moved)
    return Work(kind, None, moved)


def _window_cells(run: Implementation, values: Mapping[str, Value]) -> float:
    """Of all windows, whose sizes are the second argument; the result has one element a window."""
    given, kernel = values[run.args[0].name], run.args[1]
    rank = 3 if len(kernel) == 3 else 2
    sizes = list(kernel) * (rank if len(kernel) == 1 else 1)
    made = max((values[name].numel for name in run.outputs if name is not None), default=given.numel)
    return float(made * math.prod(sizes))


def _inner(run: Implementation) -> Callable[..., Any]:
    """The operator that a kernel of ours calls in another way."""
    called: Callable[..., Any] = run.args[0] if run.call in _WRAPPERS else run.call
    return called


def _size(value: Value) -> int:
    """Of what is read: an expanded tensor has fewer elements in memory than in its shape."""
    return min(value.numel * value.dtype.itemsize, value.storage_bytes)


def _moved_bytes(run: Implementation, values: Mapping[str, Value]) -> int:
    read = list(run.inputs())
    made = [name for name in run.outputs if name is not None]
    written = sum(_size(values[name]) for name in made)
    if getattr(_inner(run), "overloadpacket", None) in _PICKING:
        return written + sum(_size(values[name]) for name in read[1:]) + written
    return written + sum(_size(values[name]) for name in read)


def _product_flops(run: Implementation, values: Mapping[str, Value]) -> float:
    """2 for each element of the result and each element of the dimension that is summed over."""
    factors = [values[argument.name] for argument in run.args if isinstance(argument, Ref)][-2:]
    summed = factors[0].shape[-1] if factors[0].shape else 1
    columns = factors[1].shape[-1] if len(factors[1].shape) > 1 else 1
    return 2.0 * math.prod(factors[0].shape[:-1]) * summed * columns


def _attention_flops(run: Implementation, values: Mapping[str, Value]) -> float:
    """Of one product of queries (…, L, E) and keys (…, S, E); where a row sees what is before it alone, half of it."""
    given = [values[name] for name in references(run.args) if len(values[name].shape) == 4]
    backward = _inner(run) is aten._scaled_dot_product_flash_attention_for_cpu_backward.default
    query, key = given[1:3] if backward else given[:2]
    causal = any(argument is True for argument in run.args)
    return (1.0 if causal else 2.0) * math.prod(query.shape) * key.shape[-2]

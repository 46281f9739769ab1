"""The output of a ReLU as a bit mask and its non-zero values (Gist, section 4: sparse storage, dense compute).

A plan promises bytes, and how many values are zero is known only when a step runs. So the storage has a
fixed capacity, a share of the elements (``density``), and a step whose values do not fit ends with an
``ExecutionError``: 4 * ceil(n / 32) + 4 * ceil(density * n) bytes for n elements.

Gist stores CSR with one byte a value for the column; one bit an element is smaller from a
density of 1 / 8 on, and its size does not depend on the data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from monet.base.graph import Operator, Ref, Value
from monet.ops.compressed.packing import Packing, readers
from monet.ops.kernel_names import kernel
from monet.ops.kernels.packed import library, sparse_pack, sparse_unpack, sparse_words
from monet.ops.offers.contents import Contents, Operators
from monet.ops.offers.context import Context
from monet.ops.offers.implementation import Implementation, SavedIntermediate

aten = torch.ops.aten

_SAMPLE = 1 << 20


def packings(context: Context, density: float) -> list[Packing]:
    """Of every ReLU output (also ReLU6's) that a convolution's weight gradient reads."""
    if library() is None:
        return []
    found: list[Packing] = []
    for name, reading in readers(context, frozenset({aten.convolution_backward.default})).items():
        maker, value = context.producer[name], context.value(name)
        if not _makes_zeros(maker):
            continue
        capacity = math.ceil(density * value.numel)
        words = sparse_words(value.numel) + capacity
        packed = Value(f"{name}.sparse", (words,), (1,), 0, torch.int32, value.device, f"{name}.sparse", 4 * words)
        make = Implementation("sparse", sparse_pack, (Ref(name), capacity), (), (packed.name,))
        found.append(
            Packing(
                name,
                maker.name,
                SavedIntermediate(packed, make, "sparse"),
                {op.name: _reader(op, packed, value) for op in reading},
            )
        )
    return found


def _makes_zeros(op: Operator) -> bool:
    """ReLU, or a clamp whose lower end is 0 (ReLU6)."""
    if op.target is aten.hardtanh.default:
        return len(op.args) > 1 and float(op.args[1]) == 0.0
    return op.target is aten.relu.default


def _reader(op: Operator, packed: Value, value: Value) -> Implementation:
    args = (op.args[0], Ref(packed.name), list(value.shape), list(value.stride), *op.args[2:])
    return Implementation("from-sparse", convolution_gradient, args, op.kwargs, op.outputs, op.single)


@kernel("convolution_gradient_from_sparse")
def convolution_gradient(
    gradient: torch.Tensor, packed: torch.Tensor, shape: Sequence[int], stride: Sequence[int], *rest: Any
) -> tuple[torch.Tensor | None, ...]:
    """aten's ``convolution_backward(gradient, x, *rest)`` with x unpacked into a temporary of 4 bytes an element."""
    results: tuple[torch.Tensor | None, ...] = aten.convolution_backward.default(
        gradient, sparse_unpack(packed, shape, stride), *rest
    )
    return results


def _fill_dense(tensor: torch.Tensor, args: Sequence[Any], _: Mapping[str, Any]) -> None:
    """As many non-zero values as the storage holds, spread evenly: time depends on their number."""
    _fill(tensor.as_strided((tensor.numel(),), (1,)), args[1])


def _fill_packed(tensor: torch.Tensor, args: Sequence[Any], _: Mapping[str, Any]) -> None:
    count = math.prod(args[2])
    capacity = tensor.numel() - sparse_words(count)
    dense = torch.empty(count)
    _fill(dense, capacity)
    tensor.copy_(sparse_pack(dense, capacity))


def _fill(flat: torch.Tensor, capacity: int) -> None:
    """Tiles of noise with the same share of non-zero values each, at most ``capacity`` of them."""
    count = flat.numel()
    generator = torch.Generator().manual_seed(0)
    size = min(count, _SAMPLE)
    tile = torch.zeros(size)
    kept = torch.randperm(size, generator=generator)[: capacity * size // count]
    tile[kept] = torch.rand(len(kept), generator=generator).add_(0.1)
    whole = count // size
    flat[: whole * size].view(whole, size).copy_(tile)
    flat[whole * size :].copy_(tile[: count - whole * size])
    surplus = (flat[whole * size :] != 0).sum().item() + whole * len(kept) - capacity
    if surplus > 0:
        rest = flat[whole * size :]
        rest[rest.nonzero().flatten()[: int(surplus)]] = 0.0


CONTENTS: Operators = {
    sparse_pack: Contents(0, _fill_dense),
    convolution_gradient: Contents(1, _fill_packed),
}

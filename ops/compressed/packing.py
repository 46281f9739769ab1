"""Forward values kept for the backward pass in fewer bytes, and which operators can read them so.

Gist (Jain et al., ISCA 2018, section 4) stores an activation encoded between its last use in the forward
pass and its use in the backward pass, and decodes it right before that use. Here the encoded storage is an
intermediate, made on demand, and the decoded tensor a temporary of the operator that reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from monet.base.graph import Operator, Value
from monet.ops.offers.context import Context
from monet.ops.offers.implementation import Implementation, SavedIntermediate

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Packing:
    """``value`` (a whole storage, made by ``operator``) kept as ``saved``. ``readers``: by backward operator, its
    implementation that unpacks into a temporary of the value's size and runs eager's kernel on it."""

    value: str
    operator: str
    saved: SavedIntermediate
    readers: Mapping[str, Implementation]


def readers(context: Context, targets: frozenset[Callable[..., Any]]) -> dict[str, list[Operator]]:
    """Forward values that these backward operators take as their second argument, the forward operator's input.

    Only values that can be packed: float32 on the CPU, a storage of their own without gaps, made by the
    forward pass, and neither an output nor a gradient of the step (these stay in memory anyway).
    """
    made = {name for op in context.graph.forward for name in op.outputs if name is not None}
    found: dict[str, list[Operator]] = {}
    for op in context.graph.backward:
        if op.target not in targets or not _reads_input(op):
            continue
        name = context.whole(op.args[1].name)
        if name is None or name not in made or name in context.escaping:
            continue
        if _packable(context.value(name)):
            found.setdefault(name, []).append(op)
    return found


def _reads_input(op: Operator) -> bool:
    """A convolution's gradients of input and bias need no more of its input than the shape."""
    return op.target is not aten.convolution_backward.default or bool(op.args[-1][1])


def _packable(value: Value) -> bool:
    return value.dtype is torch.float32 and value.device.type == "cpu" and value.storage_bytes == 4 * value.numel > 0


def replaces(
    packing: Packing, backward: Mapping[str, Mapping[str, Implementation]], values: Mapping[str, Value]
) -> bool:
    """Whether the backward pass can do without the dense value: each operator that reads it can also run without it.

    Otherwise the dense value is kept or made again anyway, and a packed one beside it saves little.
    ``backward``: what is offered without the packing.
    """

    def reads_dense(implementation: Implementation) -> bool:
        return any(values[name].storage == packing.value for name in implementation.inputs())

    return all(
        node in packing.readers or not all(reads_dense(implementation) for implementation in named.values())
        for node, named in backward.items()
        if named
    )

"""The operators that stand for an island in a traced graph. What runs in their place is ``Island``'s.

The forward operator also makes a token: the number of its call, by which the backward operator finds what autograd has
kept. What they return is told by two arguments: ``kinds``, the dtype's name and the number of dimensions of each
tensor (``"float32:3;int64:1"``), and ``sizes``, all their shapes and strides, one after the other. A trace over ranges
of shapes has symbols among the latter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import torch

from monet.capture.islands.state import number_of

Geometry = tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...]
"""Of each tensor: the dtype's name, the shape, the strides."""

TOKEN = ("int64", (1,), (1,))


def geometry_of(tensor: torch.Tensor) -> tuple[str, tuple[int, ...], tuple[int, ...]]:
    """Of a copy that fills its memory, as ``torch.empty_like`` makes it."""
    if any(isinstance(size, torch.SymInt) for size in (*tensor.shape, *tensor.stride())):
        # It would ask the symbols, and each answer is a condition on the plan.
        stride = strides_in(tensor.shape, memory_order(tensor.shape, tensor.stride()))
    else:
        stride = tuple(torch.empty_like(tensor, device="meta").stride())
    return str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), stride


def memory_order(shape: Sequence[int], stride: Sequence[int]) -> list[int]:
    """The dimensions as they lie in memory, the outermost first; in their own order where they do not fill it."""
    numbers, steps = list(map(number_of, shape)), list(map(number_of, stride))
    order = sorted(range(len(numbers)), key=lambda axis: (-steps[axis], axis))
    inner = 1
    for axis in reversed(order):
        if numbers[axis] != 1 and steps[axis] != inner:
            return list(range(len(numbers)))
        inner *= numbers[axis]
    return order


def strides_in(shape: Sequence[Any], order: Sequence[int]) -> tuple[Any, ...]:
    """Of a tensor that fills its memory, its dimensions in this order there."""
    found: list[Any] = [1] * len(shape)
    inner: Any = 1
    for axis in reversed(order):
        found[axis] = inner
        inner = inner * shape[axis]
    return tuple(found)


def described_by(geometry: Geometry) -> tuple[str, list[int]]:
    """``kinds`` and ``sizes``."""
    kinds = ";".join(f"{dtype}:{len(shape)}" for dtype, shape, _ in geometry)
    return kinds, [size for _, shape, stride in geometry for size in (*shape, *stride)]


def geometry_from(kinds: str, sizes: Sequence[int]) -> Geometry:
    """What ``described_by`` is given."""
    found, left = [], iter(sizes)
    for kind in kinds.split(";") if kinds else ():
        dtype, _, dimensions = kind.partition(":")
        shape, stride = (tuple(next(left) for _ in range(int(dimensions))) for _ in range(2))
        found.append((dtype, shape, stride))
    return tuple(found)


def empty_results(kinds: str, sizes: Sequence[int]) -> list[torch.Tensor]:
    """Tensors on the CPU, their contents undefined."""
    return [
        torch.empty_strided(shape, stride, dtype=getattr(torch, dtype))
        for dtype, shape, stride in geometry_from(kinds, sizes)
    ]


def _runs_in_a_plan() -> NoReturn:
    raise RuntimeError("an island's operator stands for a module in a plan, and is not called")


def _island(inputs: list[torch.Tensor], key: str, kinds: str, sizes: list[int]) -> list[torch.Tensor]:
    _runs_in_a_plan()


def _backward(
    gradients: list[torch.Tensor],
    token: torch.Tensor,
    key: str,
    outputs: list[int],
    wanted: list[int],
    kinds: str,
    sizes: list[int],
) -> list[torch.Tensor]:
    _runs_in_a_plan()


def _fake(*args: Any) -> list[torch.Tensor]:
    kinds, sizes = args[-2:]
    return empty_results(kinds, sizes)


def _operator(name: str, function: Any, fake: Any, *tags: torch.Tag) -> Any:
    schema = torch.library.infer_schema(function, mutates_args=())
    torch.library.define(f"monet::{name}", schema, tags=tags)
    torch.library.impl(f"monet::{name}", "CompositeExplicitAutograd", function)
    torch.library.register_fake(f"monet::{name}", fake)
    return getattr(torch.ops.monet, name).default


ISLAND = _operator("island", _island, _fake, torch.Tag.nondeterministic_seeded)
"""``(inputs, key, kinds, sizes)``: the tensors that the module is called with and its parameters → what it returns, and
the token. It may draw random numbers, so it keeps its place among those that do."""
ISLAND_BACKWARD = _operator("island_backward", _backward, _fake)
"""``(gradients, token, key, outputs, wanted, kinds, sizes)``: gradients of the inputs at the positions ``wanted``, from
those of the outputs at the positions ``outputs``."""


def _anchor(weight: torch.Tensor) -> torch.Tensor:
    return weight.new_zeros(1)


ANCHOR = _operator("anchor", _anchor, lambda weight: weight.new_empty(1))
"""An element that an island takes in place of a parameter whose gradient is sparse. What it has for a gradient stands
for that one, which no plan can hold: see ``sparse_gradients.py``."""


def _keep_shape(ctx: Any, inputs: Any, output: torch.Tensor) -> None:
    ctx.shape = inputs[0].shape


torch.library.register_autograd(
    "monet::anchor", lambda ctx, gradient: gradient.expand(ctx.shape), setup_context=_keep_shape
)


def _keep(ctx: Any, inputs: Any, output: list[torch.Tensor]) -> None:
    tensors, ctx.key, *_ = inputs
    ctx.wanted = [position for position, tensor in enumerate(tensors) if tensor.requires_grad]
    ctx.geometry = tuple(geometry_of(tensors[position]) for position in ctx.wanted)
    ctx.count = len(tensors)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(output[-1])


def _derive(ctx: Any, gradients: list[torch.Tensor | None]) -> tuple[Any, None, None, None]:
    given = {position: g for position, g in enumerate(gradients) if g is not None}
    found: list[torch.Tensor | None] = [None] * ctx.count
    if given and ctx.wanted:
        made = ISLAND_BACKWARD(
            list(given.values()), ctx.saved_tensors[0], ctx.key, list(given), ctx.wanted, *described_by(ctx.geometry)
        )
        for position, gradient in zip(ctx.wanted, made, strict=True):
            found[position] = gradient
    return found, None, None, None


torch.library.register_autograd("monet::island", _derive, setup_context=_keep)

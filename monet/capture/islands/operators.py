"""The operators that stand for an island in a traced graph. What runs in their place is ``Island``'s.

The forward operator also makes a token: the number of its call, by which the backward operator finds what autograd has
kept.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn

import torch

Geometry = tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...]
"""Of each tensor: the dtype's name, the shape, the strides."""

TOKEN = ("int64", (1,), (1,))


def geometry_of(tensor: torch.Tensor) -> tuple[str, tuple[int, ...], tuple[int, ...]]:
    """Of a copy that fills its memory."""
    strides = tuple(torch.empty_like(tensor, device="meta").stride())
    return str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), strides


def geometry_text(geometry: Geometry) -> str:
    return json.dumps(geometry)


def empty_results(geometry: str) -> list[torch.Tensor]:
    """Tensors on the CPU, their contents undefined."""
    return [
        torch.empty_strided(shape, stride, dtype=getattr(torch, dtype)) for dtype, shape, stride in json.loads(geometry)
    ]


def _runs_in_a_plan() -> NoReturn:
    raise RuntimeError("an island's operator stands for a module in a plan, and is not called")


def _island(inputs: list[torch.Tensor], key: str, geometry: str) -> list[torch.Tensor]:
    _runs_in_a_plan()


def _fake_results(inputs: list[torch.Tensor], key: str, geometry: str) -> list[torch.Tensor]:
    return empty_results(geometry)


def _backward(
    gradients: list[torch.Tensor], token: torch.Tensor, key: str, outputs: list[int], wanted: list[int], geometry: str
) -> list[torch.Tensor]:
    _runs_in_a_plan()


def _fake_gradients(
    gradients: list[torch.Tensor], token: torch.Tensor, key: str, outputs: list[int], wanted: list[int], geometry: str
) -> list[torch.Tensor]:
    return empty_results(geometry)


def _operator(name: str, function: Any, fake: Any, *tags: torch.Tag) -> Any:
    schema = torch.library.infer_schema(function, mutates_args=())
    torch.library.define(f"monet::{name}", schema, tags=tags)
    torch.library.impl(f"monet::{name}", "CompositeExplicitAutograd", function)
    torch.library.register_fake(f"monet::{name}", fake)
    return getattr(torch.ops.monet, name).default


ISLAND = _operator("island", _island, _fake_results, torch.Tag.nondeterministic_seeded)
"""``(inputs, key, geometry)``: the tensors that the module is called with and its parameters → what it returns, and the
token. It may draw random numbers, so it keeps its place among those that do."""
ISLAND_BACKWARD = _operator("island_backward", _backward, _fake_gradients)
"""``(gradients, token, key, outputs, wanted, geometry)``: gradients of the inputs at the positions ``wanted``, from
those of the outputs at the positions ``outputs``."""


def _keep(ctx: Any, inputs: Any, output: list[torch.Tensor]) -> None:
    tensors, ctx.key, _ = inputs
    ctx.wanted = [position for position, tensor in enumerate(tensors) if tensor.requires_grad]
    ctx.geometry = geometry_text(tuple(geometry_of(tensors[position]) for position in ctx.wanted))
    ctx.count = len(tensors)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(output[-1])


def _derive(ctx: Any, gradients: list[torch.Tensor | None]) -> tuple[Any, None, None]:
    given = {position: g for position, g in enumerate(gradients) if g is not None}
    found: list[torch.Tensor | None] = [None] * ctx.count
    if given and ctx.wanted:
        made = ISLAND_BACKWARD(
            list(given.values()), ctx.saved_tensors[0], ctx.key, list(given), ctx.wanted, ctx.geometry
        )
        for position, gradient in zip(ctx.wanted, made, strict=True):
            found[position] = gradient
    return found, None, None


torch.library.register_autograd("monet::island", _derive, setup_context=_keep)

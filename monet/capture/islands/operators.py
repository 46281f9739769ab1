"""The operators that stand for an island in a traced graph. What runs in their place is ``Island``'s."""

from __future__ import annotations

import json
from typing import Any, NoReturn

import torch

Geometry = tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...]
"""Of each result: the dtype's name, the shape, the strides."""


def geometry_text(geometry: Geometry) -> str:
    return json.dumps(geometry)


def empty_results(geometry: Geometry) -> list[torch.Tensor]:
    """Tensors on the CPU, their contents undefined."""
    return [torch.empty_strided(shape, stride, dtype=getattr(torch, dtype)) for dtype, shape, stride in geometry]


def empty_gradients(inputs: list[torch.Tensor], wanted: list[int]) -> list[torch.Tensor]:
    """Of these inputs, their contents undefined."""
    return [torch.empty_like(inputs[position]) for position in wanted]


def _runs_in_a_plan() -> NoReturn:
    raise RuntimeError("an island's operator stands for a module in a plan, and is not called")


def _island(inputs: list[torch.Tensor], key: str, geometry: str) -> list[torch.Tensor]:
    _runs_in_a_plan()


def _fake_results(inputs: list[torch.Tensor], key: str, geometry: str) -> list[torch.Tensor]:
    return empty_results(json.loads(geometry))


def _backward(
    inputs: list[torch.Tensor],
    gradients: list[torch.Tensor],
    states: list[torch.Tensor],
    key: str,
    outputs: list[int],
    wanted: list[int],
) -> list[torch.Tensor]:
    _runs_in_a_plan()


def _fake_gradients(
    inputs: list[torch.Tensor],
    gradients: list[torch.Tensor],
    states: list[torch.Tensor],
    key: str,
    outputs: list[int],
    wanted: list[int],
) -> list[torch.Tensor]:
    return empty_gradients(inputs, wanted)


def _operator(name: str, function: Any, fake: Any, *tags: torch.Tag) -> Any:
    schema = torch.library.infer_schema(function, mutates_args=())
    torch.library.define(f"monet::{name}", schema, tags=tags)
    torch.library.impl(f"monet::{name}", "CompositeExplicitAutograd", function)
    torch.library.register_fake(f"monet::{name}", fake)
    return getattr(torch.ops.monet, name).default


ISLAND = _operator("island", _island, _fake_results)
"""``(inputs, key, geometry)``: the tensors that the module is called with and its parameters → what it returns."""
RANDOM_ISLAND = _operator("random_island", _island, _fake_results, torch.Tag.nondeterministic_seeded)
"""The same, and the state of the generator from before, as the last result."""
ISLAND_BACKWARD = _operator("island_backward", _backward, _fake_gradients)
"""``(inputs, gradients, states, key, outputs, wanted)``: gradients of the inputs at the positions ``wanted``, from
those of the outputs at the positions ``outputs``. ``states``: the generator's, where the island is random."""


def _keep(ctx: Any, inputs: Any, output: list[torch.Tensor]) -> None:
    tensors, key, _ = inputs
    ctx.key = key
    ctx.wanted = [position for position, tensor in enumerate(tensors) if tensor.requires_grad]
    ctx.count = len(tensors)
    ctx.set_materialize_grads(False)
    state = [output[-1]] if ctx.random else []
    ctx.save_for_backward(*tensors, *state)


def _keep_random(ctx: Any, inputs: Any, output: list[torch.Tensor]) -> None:
    ctx.random = True
    _keep(ctx, inputs, output)


def _keep_plain(ctx: Any, inputs: Any, output: list[torch.Tensor]) -> None:
    ctx.random = False
    _keep(ctx, inputs, output)


def _derive(ctx: Any, gradients: list[torch.Tensor | None]) -> tuple[Any, None, None]:
    given = {position: g for position, g in enumerate(gradients) if g is not None}
    inputs, states = list(ctx.saved_tensors[: ctx.count]), list(ctx.saved_tensors[ctx.count :])
    found: list[torch.Tensor | None] = [None] * ctx.count
    if given and ctx.wanted:
        made = ISLAND_BACKWARD(inputs, list(given.values()), states, ctx.key, list(given), ctx.wanted)
        for position, gradient in zip(ctx.wanted, made, strict=True):
            found[position] = gradient
    return found, None, None


torch.library.register_autograd("monet::island", _derive, setup_context=_keep_plain)
torch.library.register_autograd("monet::random_island", _derive, setup_context=_keep_random)

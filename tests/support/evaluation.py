"""Evaluates a captured graph implementation by implementation, on real values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import nn

from monet.base.graph import BUFFER, CONSTANT, INPUT, PARAMETER, Operator, Ref
from monet.capture import Captured
from monet.ops.catalogue import Catalogue
from monet.ops.offers.implementation import Implementation

SEED = 7
# Operators whose results are memory with any content.
UNDEFINED = {
    torch.ops.aten.empty.memory_format,
    torch.ops.aten.empty_like.default,
    torch.ops.aten.empty_strided.default,
    torch.ops.aten.new_empty.default,
    torch.ops.aten.new_empty_strided.default,
}


def call(implementation: Implementation, env: Mapping[str, torch.Tensor], private: set[str]) -> list[Any]:
    """Run it on copies of what it may write to."""
    copies: dict[str, torch.Tensor] = {}

    def real(argument: Any) -> Any:
        if isinstance(argument, Ref):
            if argument.name not in copies:
                tensor = env[argument.name]
                copies[argument.name] = tensor.clone() if argument.name in private else tensor
            return copies[argument.name]
        return [real(a) for a in argument] if isinstance(argument, list | tuple) else argument

    result = implementation.call(
        *(real(a) for a in implementation.args), **{k: real(v) for k, v in implementation.kwargs}
    )
    return [result] if implementation.single else list(result)


def strides(tensor: torch.Tensor) -> list[int]:
    """Of the dimensions in which they mean something."""
    return [step for step, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1]


def _view(op: Operator) -> Implementation:
    return Implementation("view", op.target, op.args, op.kwargs, op.outputs, op.single)


@torch.no_grad()
def evaluate(offers: Catalogue, captured: Captured, model: nn.Module, inputs: list[torch.Tensor]) -> dict[str, Any]:
    """All values of one step by each operator's first implementation, from ``SEED``."""
    torch.manual_seed(SEED)
    env: dict[str, Any] = {}
    graph = captured.graph
    for source in graph.sources:
        if source.kind == INPUT:
            env[source.value] = inputs[int(source.target)].detach()
        elif source.kind == CONSTANT:
            env[source.value] = captured.constants[source.target]
        else:
            find = model.get_parameter if source.kind == PARAMETER else model.get_buffer
            env[source.value] = find(source.target).detach().clone()
    generator = torch.Generator().manual_seed(1001)
    for name in graph.tangents:
        if name is not None:
            value = graph.values[name]
            noise = torch.randn(value.shape, generator=generator)
            env[name] = torch.empty_strided(value.shape, value.stride, dtype=value.dtype).copy_(noise)

    def run(op: Operator, named: Mapping[str, Implementation]) -> None:
        first = _view(op) if op.view else next(iter(named.values()))
        results = call(first, env, {first.overwrites} if first.overwrites else set())
        if first.call in UNDEFINED:
            results[0].zero_()  # a NaN in it would equal nothing
        env.update({n: r for n, r in zip(first.outputs, results, strict=False) if n is not None})
        for saved in offers.intermediates.get(op.name, ()):
            env[saved.value.name] = call(saved.implementation, env, set())[0]

    for op in graph.forward:
        run(op, offers.forward.get(op.name, {}))
    for op in graph.backward:
        run(op, offers.backward.get(op.name, {}))
    return env


def compare_with_eager(
    captured: Captured,
    env: Mapping[str, Any],
    module: nn.Module,
    args: Sequence[torch.Tensor],
    kwargs: Mapping[str, torch.Tensor],
) -> None:
    """Asserts that the outputs and gradients that ``evaluate`` made are those of autograd, bit by bit."""
    torch.manual_seed(SEED)
    leaves = [x.detach().clone().requires_grad_(x.requires_grad) for x in [*args, *kwargs.values()]]
    named = dict(zip(kwargs, leaves[len(args) :], strict=True))
    outputs = pytree.tree_leaves(module(*leaves[: len(args)], **named))
    graph = captured.graph
    graded = []
    for name, tangent, expected in zip(graph.outputs, graph.tangents, outputs, strict=True):
        if name is not None:
            assert torch.equal(env[name], expected), name
        if tangent is not None:
            graded.append((expected, env[tangent]))
    torch.autograd.backward([o for o, _ in graded], [t for _, t in graded])
    for source in graph.sources:
        if source.value in graph.gradients:
            leaf = leaves[int(source.target)] if source.kind == INPUT else module.get_parameter(source.target)
            found = env[graph.gradients[source.value]]
            assert leaf.grad is not None and torch.equal(found, leaf.grad), f"gradient of {source.value}"


@torch.no_grad()
def try_every_implementation(
    offers: Catalogue, captured: Captured, model: nn.Module, env: Mapping[str, torch.Tensor]
) -> int:
    """Asserts that every implementation makes what is in ``env``; how many results were compared."""
    sources = captured.graph.sources
    old = {s.value: model.get_buffer(s.target) for s in sources if s.kind == BUFFER}
    # A view of a buffer made before it changed shows the new content by now: read it anew.
    old |= {
        op.outputs[0]: call(_view(op), {**env, **old}, set())[0]
        for op in captured.graph.forward
        if op.view and op.outputs[0] is not None and captured.graph.storage(op.outputs[0]) in old
    }
    tried = 0
    for group, again in ((offers.forward, False), (offers.recompute, True), (offers.backward, False)):
        for node, named in group.items():
            for implementation in named.values():
                if implementation.call in UNDEFINED or (not again and not any(implementation.outputs)):
                    continue  # a counter or a write-back: covered by comparing buffers
                written = {implementation.overwrites} if implementation.overwrites else set()
                before = torch.get_rng_state()
                if implementation.call.__name__ == "draw":
                    torch.set_rng_state(env[f"{node}.rng"])
                # Running statistics are updated by a forward run: give it copies.
                seen = env if again or group is offers.backward else {**env, **old}
                results = call(implementation, seen, written | _running(captured))
                if again:
                    assert torch.equal(before, torch.get_rng_state()), f"{node} moves the generator"
                for name, result in zip(implementation.outputs, results, strict=False):
                    if name is None:
                        continue
                    tried += 1
                    expected = env[name]
                    what = f"{node} by {implementation.name}: {name}"
                    assert result.shape == expected.shape and strides(result) == strides(expected), what
                    assert result.dtype == expected.dtype, what
                    if implementation.exact:
                        assert torch.equal(result, expected), what
                    else:
                        error = (result - expected).abs().max() / _scale(implementation, env, name, expected)
                        assert float(error) <= implementation.tolerance, f"{what}: {float(error)}"
    return tried


def _scale(implementation: Implementation, env: Mapping[str, Any], name: str, expected: torch.Tensor) -> torch.Tensor:
    """What an error is relative to: for a sum, the sum of its terms' magnitudes, as they may cancel."""
    if implementation.name.startswith(("chunks", "channels-last", "im2col")):
        magnitudes = {n: env[n].abs() for n in implementation.inputs()}
        results = dict(zip(implementation.outputs, call(implementation, magnitudes, set()), strict=False))
        largest: torch.Tensor = results[name].abs().max()
        return largest
    return expected.abs().max().clamp_min(1e-30)


def _running(captured: Captured) -> set[str]:
    return {source.value for source in captured.graph.sources if source.kind == BUFFER}

"""A planned step in autograd's graph: as one node, or as a chain of nodes that each give some of the gradients.

One node gives all gradients when its backward pass ends. ``DistributedDataParallel`` reduces buckets of gradients while
the backward pass goes on, so inside of it the step is a chain. The first node of its backward pass is the one whose
outputs are the model's; each gives a token without elements to the node after it, which waits for that alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any

import torch

from monet.base.graph import is_reached
from monet.errors import ExecutionError
from monet.executor.accumulator import Accumulator
from monet.executor.backward_parts import BackwardParts
from monet.executor.codegen import Generated
from monet.executor.held_gradients import HeldGradients
from monet.executor.runner import Runner


def planned_outputs(
    runner: Runner,
    sources: Sequence[torch.Tensor],
    accumulator: Accumulator | None,
    held: HeldGradients | None,
    part_bytes: tuple[int, ...] | None,
) -> tuple[torch.Tensor, ...]:
    """The outputs of a step, through which autograd finds its backward pass. ``part_bytes``: of gradients in each part
    of that; None: it has no parts."""
    code = None if part_bytes is None else runner.code_in_parts(part_bytes)
    if code is None or len(code.parts) < 2:
        return _Whole.apply(runner, accumulator, held, *sources)  # type: ignore[no-untyped-call, no-any-return]
    assert accumulator is None
    named = dict(zip(code.forward_sources, sources, strict=True))
    under_way = _UnderWay(runner, code)
    token = None
    for number in reversed(range(1, len(code.parts))):
        token = _Part.apply(under_way, number, token, *(named[s] for s in code.parts[number]))  # type: ignore[no-untyped-call]
    # The others are no inputs of the first node: their gradients come from later ones.
    first = code.parts[0]
    others = {name: source.detach() for name, source in named.items() if name not in first}
    return _First.apply(under_way, held, others, token, *(named[s] for s in first))  # type: ignore[no-untyped-call, no-any-return]


def _forward(
    ctx: Any, runner: Runner, held: HeldGradients | None, sources: Mapping[str, torch.Tensor]
) -> tuple[torch.Tensor, ...]:
    """Run the forward pass, and give ``ctx`` what the backward pass takes."""
    outputs, activations, generation = runner.forward([sources[name] for name in runner.code.forward_sources])
    ctx.runner, ctx.activations, ctx.generation = runner, activations, generation
    ctx.begun = runner.begun(generation)
    ctx.held = held
    named = {**sources, **dict(zip(runner.code.outputs, outputs, strict=True))}
    # Checks versions too: a parameter changed before backward is an error, as in eager.
    ctx.save_for_backward(*(named[name] for name in runner.code.kept))  # None for a .grad
    tangents = dict(zip(runner.graph.outputs, runner.graph.tangents, strict=True))
    # No zeros for outputs that the loss leaves out: where one takes a gradient, backward makes them.
    ctx.set_materialize_grads(False)
    constant = [named[n] for n in runner.code.outputs if tangents[n] is None]
    ctx.mark_non_differentiable(*constant)
    # A plan counts outputs as long as the step is under way. The results of conditions are nobody else's.
    ctx.conditions = [output for output in constant if output.numel() == 1]
    return outputs


def _tangents(runner: Runner, gradients: Sequence[torch.Tensor | None]) -> tuple[list[torch.Tensor], frozenset[str]]:
    """What the backward pass is given, in the order of the graph's tangents and with their strides, and the names of
    those that the loss depends on. ``gradients``: of the outputs, from autograd."""
    graph = runner.graph
    tangent_of = {o: t for o, t in zip(graph.outputs, graph.tangents, strict=True) if o is not None}
    given = dict(zip((tangent_of[o] for o in runner.code.outputs), gradients, strict=True))
    tangents = []
    for name in graph.tangents:
        if name is None:
            continue
        value, tangent = runner.value(name), given[name]
        if tangent is None:
            tangent = torch.empty_strided(value.shape, value.stride, dtype=value.dtype, device=value.device).zero_()
        elif tuple(tangent.stride()) != value.stride:
            tangent = torch.empty_strided(value.shape, value.stride, dtype=tangent.dtype, device=tangent.device).copy_(
                tangent
            )
        tangents.append(tangent)
    reached = (name for name, tangent in given.items() if name is not None and tangent is not None)
    return tangents, frozenset(reached)


def _used(
    runner: Runner, gradients: Mapping[str, torch.Tensor], reached: frozenset[str]
) -> dict[str, torch.Tensor | None]:
    """By source; None as in eager: a parameter that leads only to outputs that the loss leaves out has no gradient. A
    gradient of zeros would be another thing: an optimiser uses it (weight decay, momentum)."""
    graph, behind, islands = runner.graph, runner.tangents_behind, runner.islands
    return islands.with_sparse(
        {
            name: g if is_reached(graph, behind[name], reached) and islands.has_gradient(name) else None
            for name, g in gradients.items()
        }
    )


def _first_order(backward: Callable[..., Any]) -> Callable[..., Any]:
    """A ``backward`` whose gradients are constants. It raises ``ExecutionError`` where they are to have derivatives:
    ``once_differentiable`` leaves that out without a word where no gradient of an output requires one."""
    once = torch.autograd.function.once_differentiable(backward)

    @wraps(backward)
    def checked(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        if torch.is_grad_enabled():  # autograd runs it so for create_graph=True
            raise ExecutionError(
                "create_graph=True: gradients of a planned step have no derivatives, which a gradient penalty needs; "
                "call the model without a plan for it (model.forward(...) of a model that monet.apply has planned, or "
                "the model that the MonetModule was made of), or leave create_graph out"
            )
        return once(ctx, *gradients)

    return checked


class _Whole(torch.autograd.Function):
    """The whole step as one node of autograd's graph."""

    @staticmethod
    def forward(
        ctx: Any, runner: Runner, accumulator: Accumulator | None, held: HeldGradients | None, *sources: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        ctx.accumulator = accumulator
        return _forward(ctx, runner, held, dict(zip(runner.code.forward_sources, sources, strict=True)))

    @staticmethod
    @_first_order
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        runner: Runner = ctx.runner
        tangents, reached = _tangents(runner, gradients)
        runner.islands.begin_backward(reached)
        totals = {} if ctx.accumulator is None else ctx.accumulator.begin(reached)
        if ctx.held is not None:
            ctx.held.tell_before_backward()
        kept = [totals.get(name, saved) for name, saved in zip(runner.code.kept, ctx.saved_tensors, strict=True)]
        gradient_of = runner.backward(ctx.generation, kept, ctx.activations, tangents)
        if ctx.accumulator is not None:
            ctx.accumulator.end(totals)
        used = _used(runner, gradient_of, reached)
        return (None, None, None, *(used.get(name) for name in runner.code.forward_sources))


class _UnderWay:
    """What the nodes of one step share: its backward pass, from the first node on."""

    def __init__(self, runner: Runner, code: Generated) -> None:
        self.runner, self.code = runner, code
        self._parts: BackwardParts | None = None
        self._reached: frozenset[str] = frozenset()

    def begin(self, parts: BackwardParts, reached: frozenset[str]) -> None:
        """``reached``: the tangents that the loss depends on."""
        self._parts, self._reached = parts, reached

    def gradients(self, number: int) -> list[torch.Tensor | None]:
        """Of the sources of this part, in their order; None where one has no gradient."""
        assert self._parts is not None  # the first node has run: the others wait for it
        return list(_used(self.runner, self.runner.part(self._parts, number), self._reached).values())

    def token(self, number: int) -> torch.Tensor | None:
        """The gradient of the token that part ``number`` was given; None for the last part."""
        return torch.empty(0) if number + 1 < len(self.code.parts) else None


class _First(torch.autograd.Function):
    """The step's forward pass, and the first part of its backward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        under_way: _UnderWay,
        held: HeldGradients | None,
        others: Mapping[str, torch.Tensor],
        token: torch.Tensor,
        *sources: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        ctx.under_way = under_way
        first = dict(zip(under_way.code.parts[0], sources, strict=True))
        return _forward(ctx, under_way.runner, held, {**others, **first})

    @staticmethod
    @_first_order
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        under_way, runner = ctx.under_way, ctx.runner
        tangents, reached = _tangents(runner, gradients)
        runner.islands.begin_backward(reached)
        if ctx.held is not None:
            ctx.held.tell_before_backward()
        parts = runner.backward_in_parts(
            under_way.code, ctx.generation, list(ctx.saved_tensors), ctx.activations, tangents
        )
        under_way.begin(parts, reached)
        # autograd.grad for some parameters alone does not call the later nodes, and nobody can any more.
        torch.autograd.Variable._execution_engine.queue_callback(parts.close)
        return (None, None, None, under_way.token(0), *under_way.gradients(0))


class _Part(torch.autograd.Function):
    """A later part of the backward pass. Its forward pass makes the token that the part before depends on."""

    @staticmethod
    def forward(
        ctx: Any, under_way: _UnderWay, number: int, token: torch.Tensor | None, *sources: torch.Tensor
    ) -> torch.Tensor:
        ctx.under_way, ctx.number = under_way, number
        ctx.set_materialize_grads(False)
        return torch.empty(0)

    @staticmethod
    @_first_order
    def backward(ctx: Any, token: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        under_way: _UnderWay = ctx.under_way
        return (None, None, under_way.token(ctx.number), *under_way.gradients(ctx.number))

"""Operators without a record of their own: their aten kernel, in place where aten has the same kernel in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from monet.graph import Operator, Ref
from monet.ops.implementation import Context, Implementation, plain

aten = torch.ops.aten

# Elementwise operators whose in-place overload runs the same kernel.
IN_PLACE: dict[Callable[..., Any], Callable[..., Any]] = {
    aten.add.Tensor: aten.add_.Tensor,
    aten.mul.Tensor: aten.mul_.Tensor,
    aten.mul.Scalar: aten.mul_.Scalar,
    aten.div.Tensor: aten.div_.Tensor,
    aten.relu.default: aten.relu_.default,
    aten.hardtanh.default: aten.hardtanh_.default,
    aten.sigmoid.default: aten.sigmoid_.default,
    aten.tanh.default: aten.tanh_.default,
}

# Their gradient may be written where the incoming gradient is.
GRADIENT_IN_PLACE: dict[Callable[..., Any], Callable[..., Any]] = {
    aten.threshold_backward.default: aten.threshold_backward.grad_input,
    aten.hardtanh_backward.default: aten.hardtanh_backward.grad_input,
    aten.sigmoid_backward.default: aten.sigmoid_backward.grad_input,
    aten.tanh_backward.default: aten.tanh_backward.grad_input,
}


def forward(op: Operator, context: Context) -> list[Implementation]:
    """The aten kernel and, where safe, the same in place. A random operator also returns the
    generator's state from before, so that it can be run again with the same numbers."""
    if op.random:
        state = f"{op.name}.rng"
        return [Implementation("aten", draw, (op.target, *op.args), op.kwargs, (*op.outputs, state), False)]
    return [plain(op), *in_place(op, context)]


def in_place(op: Operator, context: Context) -> list[Implementation]:
    """The in-place overload on an argument that nobody needs afterwards."""
    overload = IN_PLACE.get(op.target)
    result = op.outputs[0] if op.outputs else None
    if overload is None or result is None or not isinstance(op.args[0], Ref):
        return []
    found: list[Implementation] = []
    arguments = [op.args[0]]
    if op.target is aten.add.Tensor and not op.kwargs and isinstance(op.args[1], Ref) and op.args[0] != op.args[1]:
        arguments.append(op.args[1])  # addition commutes, exactly
    for position, target in enumerate(arguments):
        others = [Ref(n) for n in _names(op) if Ref(n) != target]
        shares = any(context.graph.storage(o.name) == context.graph.storage(target.name) for o in others)
        if shares or not context.may_overwrite(target.name, op, result):
            continue
        args = op.args if position == 0 else (op.args[1], op.args[0])
        name = "in-place" if position == 0 else "in-place-other"
        found.append(Implementation(name, overload, args, op.kwargs, op.outputs, True, overwrites=target.name))
    return found


def _names(op: Operator) -> list[str]:
    return [a.name for a in op.args if isinstance(a, Ref)]


def recompute(op: Operator, context: Context) -> list[Implementation] | None:
    """How to run a forward operator again; None where it cannot be."""
    schema = getattr(op.target, "_schema", None)
    if schema is not None and any(a.alias_info is not None and a.alias_info.is_write for a in schema.arguments):
        return None
    if context.reads_written(op):
        return None
    if op.random:
        state = Ref(f"{op.name}.rng")
        return [Implementation("aten", draw_again, (op.target, state, *op.args), op.kwargs, op.outputs, op.single)]
    return [plain(op), *in_place(op, context)]


def backward(op: Operator, context: Context) -> list[Implementation]:
    """The aten kernel, and the same into the incoming gradient's memory where that dies here."""
    found = [plain(op), *in_place(op, context)]
    overload = GRADIENT_IN_PLACE.get(op.target)
    result = op.outputs[0] if op.outputs else None
    if overload is not None and result is not None and isinstance(op.args[0], Ref):
        gradient = op.args[0]
        if context.may_overwrite(gradient.name, op, result):
            kwargs = (*op.kwargs, ("grad_input", gradient))
            found.append(
                Implementation("in-place", overload, op.args, kwargs, op.outputs, True, overwrites=gradient.name)
            )
    return found


def draw(target: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
    """A random operator's results followed by the generator's state from before (CPU: 5,056 bytes)."""
    state = _get_state(args)
    results = target(*args, **kwargs)
    return (*results, state) if isinstance(results, tuple | list) else (results, state)


def draw_again(target: Callable[..., Any], state: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """A random operator run from a saved state; the generator is afterwards where it was before."""
    now = _get_state(args)
    _set_state(args, state)
    try:
        return target(*args, **kwargs)
    finally:
        _set_state(args, now)


def _device(args: tuple[Any, ...]) -> torch.device:
    return next((a.device for a in args if isinstance(a, torch.Tensor)), torch.device("cpu"))


def _get_state(args: tuple[Any, ...]) -> torch.Tensor:
    device = _device(args)
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def _set_state(args: tuple[Any, ...], state: torch.Tensor) -> None:
    device = _device(args)
    if device.type == "cuda":
        torch.cuda.set_rng_state(state, device)
    else:
        torch.set_rng_state(state)

"""Operators without a record of their own: their aten kernel, in place where aten has the same kernel in place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from monet.base.graph import Operator, Ref, references
from monet.errors import ExecutionError
from monet.ops.kernel_names import kernel
from monet.ops.offers.context import Context, plain
from monet.ops.offers.implementation import Implementation

aten = torch.ops.aten

# Operators whose in-place overload runs the same kernel: elementwise ones, and those of ``READS_ELSEWHERE``.
IN_PLACE: dict[Callable[..., Any], Callable[..., Any]] = {
    aten.add.Tensor: aten.add_.Tensor,
    aten.add.Scalar: aten.add_.Scalar,
    aten.sub.Tensor: aten.sub_.Tensor,
    aten.sub.Scalar: aten.sub_.Scalar,
    aten.mul.Tensor: aten.mul_.Tensor,
    aten.mul.Scalar: aten.mul_.Tensor,  # mul_.Scalar rounds the number to a 16-bit format first
    aten.div.Tensor: aten.div_.Tensor,
    aten.div.Scalar: aten.div_.Scalar,
    aten.pow.Tensor_Scalar: aten.pow_.Scalar,
    aten.neg.default: aten.neg_.default,
    aten.abs.default: aten.abs_.default,
    aten.exp.default: aten.exp_.default,
    aten.expm1.default: aten.expm1_.default,
    aten.log.default: aten.log_.default,
    aten.log1p.default: aten.log1p_.default,
    aten.sqrt.default: aten.sqrt_.default,
    aten.rsqrt.default: aten.rsqrt_.default,
    aten.reciprocal.default: aten.reciprocal_.default,
    aten.sin.default: aten.sin_.default,
    aten.cos.default: aten.cos_.default,
    aten.erf.default: aten.erf_.default,
    aten.clamp.default: aten.clamp_.default,
    aten.clamp_min.default: aten.clamp_min_.default,
    aten.clamp_max.default: aten.clamp_max_.default,
    aten.masked_fill.Scalar: aten.masked_fill_.Scalar,
    aten.masked_fill.Tensor: aten.masked_fill_.Tensor,
    aten.relu.default: aten.relu_.default,
    aten.threshold.default: aten.threshold_.default,
    aten.hardtanh.default: aten.hardtanh_.default,
    aten.leaky_relu.default: aten.leaky_relu_.default,
    aten.hardsigmoid.default: aten.hardsigmoid_.default,
    aten.hardswish.default: aten.hardswish_.default,
    aten.sigmoid.default: aten.sigmoid_.default,
    aten.tanh.default: aten.tanh_.default,
    aten.elu.default: aten.elu_.default,
    aten.celu.default: aten.celu_.default,
    aten.gelu.default: aten.gelu_.default,
    aten.silu.default: aten.silu_.default,
    aten.mish.default: aten.mish_.default,
    # These first copy the argument, and then run the kernel that is the one in place.
    aten.tril.default: aten.tril_.default,
    aten.triu.default: aten.triu_.default,
    aten.copy.default: aten.copy_.default,
    aten.index_put.default: aten.index_put_.default,
    aten.index_add.default: aten.index_add_.default,
    aten.index_copy.default: aten.index_copy_.default,
    aten.index_fill.int_Scalar: aten.index_fill_.int_Scalar,
    aten.scatter.src: aten.scatter_.src,
    aten.scatter.value: aten.scatter_.value,
    aten.scatter_add.default: aten.scatter_add_.default,
    aten.scatter_reduce.two: aten.scatter_reduce_.two,
    aten.masked_scatter.default: aten.masked_scatter_.default,
}

READS_ELSEWHERE = frozenset({
    aten.index_put.default, aten.index_add.default, aten.index_copy.default, aten.index_fill.int_Scalar,
    aten.scatter.src, aten.scatter.value, aten.scatter_add.default, aten.scatter_reduce.two,
    aten.masked_scatter.default, aten.slice_scatter.default, aten.select_scatter.default,
    aten.diagonal_scatter.default,
})  # fmt: skip
"""An element of another argument goes to another place: not where that argument is the one that is overwritten."""

# The gradient of what was taken out of a tensor: autograd puts it among zeros, in place.
INDEXED = (aten.index_put.default, aten.index_add.default, aten.scatter_add.default)
ASSIGNS = (aten.index_put.default, aten.copy.default)
"""What ``y[indices] = x`` and ``y.copy_(x)`` are traced as."""
ZEROS = (aten.new_zeros.default, aten.zeros_like.default, aten.zeros.default)

# Overloads that write into a given tensor, which may be the first argument, and what they call it. Softmax sums a row
# before it writes the row, and threads share no row.
INTO: dict[Callable[..., Any], tuple[Callable[..., Any], str]] = {
    aten._softmax.default: (aten._softmax.out, "out"),
    aten._log_softmax.default: (aten._log_softmax.out, "out"),
    aten.softplus.default: (aten.softplus.out, "out"),
}

# Into the second argument's memory: addition and multiplication commute exactly, so their in-place kernels are called
# with the arguments exchanged; the others have a kernel that writes into any tensor.
COMMUTE = (aten.add.Tensor, aten.mul.Tensor)
INTO_OTHER: dict[Callable[..., Any], Callable[..., Any]] = {
    aten.sub.Tensor: aten.sub.out,
    aten.div.Tensor: aten.div.out,
    aten.where.self: aten.where.self_out,
}

# The gradient may be written where the incoming one, the first argument, is. hardswish and mish have no such kernel.
GRADIENT_IN_PLACE: dict[Callable[..., Any], tuple[Callable[..., Any], str]] = {
    aten.threshold_backward.default: (aten.threshold_backward.grad_input, "grad_input"),
    aten.hardtanh_backward.default: (aten.hardtanh_backward.grad_input, "grad_input"),
    aten.leaky_relu_backward.default: (aten.leaky_relu_backward.grad_input, "grad_input"),
    aten.hardsigmoid_backward.default: (aten.hardsigmoid_backward.grad_input, "grad_input"),
    aten.sigmoid_backward.default: (aten.sigmoid_backward.grad_input, "grad_input"),
    aten.tanh_backward.default: (aten.tanh_backward.grad_input, "grad_input"),
    aten.elu_backward.default: (aten.elu_backward.grad_input, "grad_input"),
    aten.gelu_backward.default: (aten.gelu_backward.grad_input, "grad_input"),
    aten.silu_backward.default: (aten.silu_backward.grad_input, "grad_input"),
    aten.softplus_backward.default: (aten.softplus_backward.grad_input, "grad_input"),
    aten.log_sigmoid_backward.default: (aten.log_sigmoid_backward.grad_input, "grad_input"),
    aten._softmax_backward_data.default: (aten._softmax_backward_data.out, "grad_input"),
    aten._log_softmax_backward_data.default: (aten._log_softmax_backward_data.out, "out"),
}


def forward(op: Operator, context: Context) -> list[Implementation]:
    """The aten kernel and, where safe, the same in place. A random operator also returns the
    generator's state from before, so that it can be run again with the same numbers."""
    if op.random and not runs_once(op):
        state = f"{op.name}.rng"
        return [Implementation("aten", draw, (op.target, *op.args), op.kwargs, (*op.outputs, state), False)]
    first = op.args[0] if op.args else None
    # Autograd refuses an assignment where a gradient reads the old elements.
    eagers = op.target in ASSIGNS and isinstance(first, Ref) and not context.read_in_backward(first.name)
    return [plain(op), *(replace(run, eagers=eagers) for run in in_place(op, context))]


def runs_once(op: Operator) -> bool:
    """Whether the operator stands for a part of the model that runs as it is (``monet.capture.islands``): what it
    leaves behind, in buffers and for its backward operator, is there once."""
    schema = getattr(op.target, "_schema", None)
    return schema is not None and schema.name == "monet::island"


def in_place(op: Operator, context: Context) -> list[Implementation]:
    """The same kernel on the memory of an argument that nobody needs afterwards."""
    result = op.outputs[0] if op.outputs else None
    if result is None or not op.args or not isinstance(op.args[0], Ref):
        return []
    found: list[Implementation] = []
    first, second = op.args[0], op.args[1] if len(op.args) > 1 else None
    if may_go_into(first, op, context, result):
        if op.target in IN_PLACE:
            found.append(_over(first, IN_PLACE[op.target], op.args, op.kwargs, op, "in-place"))
        elif op.target in INTO:
            overload, keyword = INTO[op.target]
            found.append(_over(first, overload, op.args, (*op.kwargs, (keyword, first)), op, "in-place"))
    if isinstance(second, Ref) and second != first and may_go_into(second, op, context, result):
        if op.target in COMMUTE and not op.kwargs:
            found.append(_over(second, IN_PLACE[op.target], (second, first, *op.args[2:]), (), op, "in-place-other"))
        elif op.target in INTO_OTHER:
            kwargs = (*op.kwargs, ("out", second))
            found.append(_over(second, INTO_OTHER[op.target], op.args, kwargs, op, "in-place-other"))
    return found


def may_go_into(target: Ref, op: Operator, context: Context, result: str) -> bool:
    """Whether the result may go into the target's memory, which no other argument shares."""
    names = [*references(op.args), *references([value for _, value in op.kwargs])]
    if op.target in READS_ELSEWHERE and names.count(target.name) > 1:
        return False
    others = [name for name in names if name != target.name]
    shares = any(context.graph.storage(name) == context.graph.storage(target.name) for name in others)
    return not shares and context.may_overwrite(target.name, op, result)


def _over(
    target: Ref, overload: Callable[..., Any], args: tuple[Any, ...], kwargs: tuple[Any, ...], op: Operator, name: str
) -> Implementation:
    return Implementation(name, overload, args, kwargs, op.outputs, True, overwrites=target.name)


def recompute(op: Operator, context: Context) -> list[Implementation] | None:
    """How to run a forward operator again; None where it cannot be."""
    schema = getattr(op.target, "_schema", None)
    if schema is not None and any(a.alias_info is not None and a.alias_info.is_write for a in schema.arguments):
        return None
    if context.reads_written(op) or runs_once(op):
        return None
    if op.random:
        state = Ref(f"{op.name}.rng")
        return [Implementation("aten", draw_again, (op.target, state, *op.args), op.kwargs, op.outputs, op.single)]
    return [plain(op), *in_place(op, context)]


def backward(op: Operator, context: Context) -> list[Implementation]:
    """The aten kernel, and the same into the incoming gradient's memory where that dies here."""
    first = op.args[0] if op.args else None
    maker = context.maker(first.name) if isinstance(first, Ref) else None
    eagers = op.target in INDEXED and maker is not None and maker.target in ZEROS
    found = [plain(op), *(replace(run, eagers=eagers) for run in in_place(op, context))]
    overload, keyword = GRADIENT_IN_PLACE.get(op.target, (None, ""))
    result = op.outputs[0] if op.outputs else None
    if overload is not None and result is not None and isinstance(op.args[0], Ref):
        gradient = op.args[0]
        if may_go_into(gradient, op, context, result):
            found.append(_over(gradient, overload, op.args, (*op.kwargs, (keyword, gradient)), op, "in-place"))
    return found


@kernel("draw")
def draw(target: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
    """A random operator's results followed by the generator's state from before (CPU: 5,056 bytes)."""
    state = _get_state(args)
    results = target(*args, **kwargs)
    return (*results, state) if isinstance(results, tuple | list) else (results, state)


@kernel("draw_again")
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
    """Raises ``ExecutionError`` while a graph is captured, whose replays draw by a state of their own."""
    device = _device(args)
    if device.type != "cuda":
        return torch.get_rng_state()
    with torch.cuda.device(device):
        if torch.cuda.is_current_stream_capturing():
            raise ExecutionError(
                "a planned step that draws random numbers (dropout) cannot be captured in a graph: the plan keeps the "
                "generator's state, which a graph's replays leave as it is; run the step outside of torch.cuda.graph, "
                "or set the model's dropout to 0 and plan again"
            )
    return torch.cuda.get_rng_state(device)


def _set_state(args: tuple[Any, ...], state: torch.Tensor) -> None:
    device = _device(args)
    if device.type == "cuda":
        torch.cuda.set_rng_state(state, device)
    else:
        torch.set_rng_state(state)

"""Activations of straight pieces: which inputs the gradient passes, and what it is multiplied by on each side.

One bit an element is all that their gradient needs (Gist, section 4; MONeT, section 4.2). The output tells the bit too
where the function does not take two sides to one value, in the numbers of the tensor's dtype.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from monet.base.graph import Operator, Ref
from monet.ops.offers.context import Context

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Branch:
    """The gradient times ``inside`` for low < x < high (None: no upper end), else times ``outside`` (None: it is +0).

    ``nan``: whether NaN counts as inside. ``of_output``: the ends between which an output lies exactly where its input
    is inside; None where the output does not tell.
    """

    low: float
    high: float | None
    nan: bool
    inside: float
    outside: float | None
    of_output: tuple[float, float | None] | None


def _number(args: tuple[Any, ...], position: int, default: float) -> float:
    return float(args[position]) if len(args) > position else default


def _rounded(number: float, dtype: torch.dtype) -> float:
    """The number as the forward kernel writes it into a tensor."""
    return float(torch.tensor(number, dtype=dtype))


def _single(number: float) -> float:
    """The number as backward kernels compare with it, in float32 for all three formats."""
    return _rounded(number, torch.float32)


def _relu(args: tuple[Any, ...], dtype: torch.dtype) -> Branch:
    return Branch(0.0, None, True, 1.0, None, (0.0, None))


def _threshold(args: tuple[Any, ...], dtype: torch.dtype) -> Branch:
    low, value = _single(args[1]), _rounded(args[2], dtype)
    return Branch(low, None, True, 1.0, None, (low, None) if value <= low else None)


def _hardtanh(args: tuple[Any, ...], dtype: torch.dtype) -> Branch:
    """The output attains the bounds, rounded to its dtype, exactly where the input reaches or passes them.

    Of NaN aten's vector loop makes 0, as here, and its scalar loop, which does the last few elements, the gradient.
    """
    low, high = _number(args, 1, -1.0), _number(args, 2, 1.0)
    told = _rounded(low, dtype) == _single(low) and _rounded(high, dtype) == _single(high)
    low, high = _single(low), _single(high)
    return Branch(low, high, False, 1.0, None, (low, high) if told else None)


def _leaky_relu(args: tuple[Any, ...], dtype: torch.dtype) -> Branch:
    slope = _single(_number(args, 1, 0.01))
    return Branch(0.0, None, False, 1.0, slope, (0.0, None) if slope >= 0.0 else None)


def _hardsigmoid(args: tuple[Any, ...], dtype: torch.dtype) -> Branch:
    """In float32 the input 3 - 2^-22 is inside, and its output is rounded to 1; 16-bit formats have no such input."""
    told = (0.0, 1.0) if dtype in (torch.bfloat16, torch.float16) else None
    return Branch(-3.0, 3.0, False, _single(1 / 6), None, told)


_OF: dict[Callable[..., Any], Callable[[tuple[Any, ...], torch.dtype], Branch]] = {
    aten.relu.default: _relu,
    aten.threshold.default: _threshold,
    aten.hardtanh.default: _hardtanh,
    aten.leaky_relu.default: _leaky_relu,
    aten.hardsigmoid.default: _hardsigmoid,
}

# Backward → the forward operators that it may belong to.
_FORWARD: dict[Callable[..., Any], tuple[Callable[..., Any], ...]] = {
    aten.threshold_backward.default: (aten.relu.default, aten.threshold.default),
    aten.hardtanh_backward.default: (aten.hardtanh.default,),
    aten.leaky_relu_backward.default: (aten.leaky_relu.default,),
    aten.hardsigmoid_backward.default: (aten.hardsigmoid.default,),
}


def branch(op: Operator, dtype: torch.dtype) -> Branch | None:
    """The branch of a forward activation; None for an operator that has none."""
    of = _OF.get(op.target)
    return of(op.args, dtype) if of is not None else None


def of_backward(op: Operator, context: Context) -> tuple[Operator, Branch] | None:
    """The forward activation that a backward operator belongs to, which reads its input or its output, with the branch.

    Two activations of one input may differ in their numbers, so these are compared.
    """
    saved = op.args[1]
    if not isinstance(saved, Ref):
        return None
    for forward in context.graph.forward:
        if forward.target not in _FORWARD[op.target] or forward.outputs[0] is None:
            continue
        if context.same(saved.name, forward.outputs[0]) or context.same(saved.name, forward.args[0].name):
            found = branch(forward, context.value(forward.outputs[0]).dtype)
            if found is not None and _numbers(op) == _numbers_of(forward, found):
                return forward, found
    return None


def _numbers(op: Operator) -> tuple[float, ...]:
    """What a backward operator is told of the function, as the kernel sees it."""
    count = 2 if op.target is aten.hardtanh_backward.default else 1
    known = op.target is not aten.hardsigmoid_backward.default
    return tuple(_single(float(a)) for a in op.args[2 : 2 + count]) if known else ()


def _numbers_of(forward: Operator, found: Branch) -> tuple[float, ...]:
    if forward.target is aten.hardtanh.default:
        return found.low, found.high if found.high is not None else 0.0
    if forward.target is aten.leaky_relu.default:
        return (found.outside if found.outside is not None else 0.0,)
    return () if forward.target is aten.hardsigmoid.default else (found.low,)

"""Sizes that vary: what a value takes at each shape, by the expressions of a plan's file, is never more than at the
largest, for which its buffer is.

An expression has whole numbers, the dimensions ``d0``, ``d1``, … in the order of ``sizes``, ``+``, ``-``, ``*``, ``//``
and ``%``. One of sums and products alone only grows; others are looked at shape by shape.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from monet.errors import InvalidPlan
from monet.plans.format import PlanData

MOST_SHAPES = 4096
"""Of larger ranges, as many that are evenly apart, the ends among them."""
_OTHER = (ast.Sub, ast.FloorDiv, ast.Mod)
_FORMS = (ast.BinOp, ast.Load, ast.Add, ast.Mult, *_OTHER)


@dataclass(frozen=True, slots=True)
class Expression:
    """``at``: what it is at a shape, the sizes in order. ``grows``: it is never less at a larger shape."""

    at: Callable[..., int]
    grows: bool


def expression(text: str, count: int) -> Expression:
    """Of ``count`` dimensions. Raises ``ValueError`` where it is none."""
    names = [f"d{k}" for k in range(count)]
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"{text!r:.80} is no expression") from error
    nodes = list(ast.walk(tree.body))
    for node in nodes:
        is_number = isinstance(node, ast.Constant) and type(node.value) is int
        is_size = isinstance(node, ast.Name) and node.id in names
        if not (is_number or is_size or isinstance(node, _FORMS)):
            raise ValueError(f"{text!r:.80} has more than sums, products, quotients and rests of d0 to d{count - 1}")
    grows = not any(isinstance(node, _OTHER) for node in nodes)
    arguments = ast.arguments([], [ast.arg(name) for name in names], None, [], [], None, [])
    function = ast.fix_missing_locations(ast.Expression(ast.Lambda(arguments, tree.body)))
    try:
        code = compile(function, "<a plan's sizes>", "eval")
    except RecursionError as error:
        raise ValueError(f"{text!r:.80} is nested too deeply") from error
    return Expression(eval(code, {"__builtins__": {}}), grows)


def is_expression(text: str, count: int) -> bool:
    """Whether ``expression`` reads it."""
    try:
        expression(text, count)
    except ValueError:
        return False
    return True


def check_sizes(plan: PlanData) -> None:
    """Raises ``InvalidPlan`` where a buffer is too small for its value at some shape."""
    dynamic = plan.model.get("dynamic")
    if dynamic is None:
        return
    sizes = list(dynamic["sizes"].values())
    largest = [most for _, most in sizes]
    most_of: dict[str, int] = {}
    for text in dict.fromkeys(dynamic["bytes"].values()):
        try:
            found = expression(text, len(sizes))
            most_of[text] = found.at(*largest)
            larger = None if found.grows else _larger(found, sizes, most_of[text])
        except (ValueError, ZeroDivisionError, OverflowError) as error:
            raise InvalidPlan(f"the bytes {text!r:.80} of a size that varies: {error}") from error
        if larger is not None:
            raise InvalidPlan(
                f"the bytes {text!r:.80} are more at {_named(dynamic['sizes'], larger)} than at the largest"
            )
    for buffer in plan.buffers:
        text = dynamic["bytes"].get(buffer.value)
        if text is not None and buffer.bytes < most_of[text]:
            raise InvalidPlan(
                f"buffer {buffer.id}: has {buffer.bytes} bytes, and {buffer.value!r} takes {most_of[text]} at the "
                "largest shape"
            )


def _larger(found: Expression, sizes: Sequence[Sequence[int]], most: int) -> tuple[int, ...] | None:
    """A shape at which it is more than ``most``."""
    each = max(2, int(MOST_SHAPES ** (1 / len(sizes))))
    axes = [sorted({least + (top - least) * k // (each - 1) for k in range(each)}) for least, top in sizes]
    return next((shape for shape in itertools.product(*axes) if found.at(*shape) > most), None)


def _named(sizes: Mapping[str, object], shape: Sequence[int]) -> str:
    return ", ".join(f"{name} = {size}" for name, size in zip(sizes, shape, strict=True))

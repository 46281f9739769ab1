"""Sizes that vary: what a value takes at each shape, by the expressions of a plan's file, is never more than at the
largest, for which its buffer is.

An expression has whole numbers, the dimensions ``d0``, ``d1``, … in the order of ``sizes``, ``+``, ``-``, ``*``, ``//``
and ``%``. One of sums and products alone only grows; others are looked at shape by shape.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from monet.errors import InvalidPlan
from monet.plans.format import PlanData

MOST_SHAPES, MOST_LOOKS = 4096, 400_000
"""Of larger ranges, as many that are evenly apart, the ends among them; of all expressions together."""
MOST_TEXT, MOST_BYTES = 2000, 1 << 62
"""Characters of an expression, and what a size or bytes may be: no honest plan comes near."""
_OTHER = (ast.Sub, ast.FloorDiv, ast.Mod)
_FORMS = (ast.BinOp, ast.Load, ast.Add, ast.Mult, *_OTHER)


@dataclass(frozen=True, slots=True)
class Expression:
    """``at``: what it is at a shape, the sizes in order. ``grows``: it is never less at a larger shape."""

    at: Callable[..., int]
    grows: bool


def expression(text: str, count: int) -> Expression:
    """Of ``count`` dimensions. Raises ``ValueError`` where it is none."""
    if len(text) > MOST_TEXT:
        raise ValueError(f"{text!r:.80} has {len(text)} characters")
    names = [f"d{k}" for k in range(count)]
    try:
        tree = ast.parse(text, mode="eval")
        nodes = list(ast.walk(tree.body))
        for node in nodes:
            is_number = isinstance(node, ast.Constant) and type(node.value) is int
            is_size = isinstance(node, ast.Name) and node.id in names
            if not (is_number or is_size or isinstance(node, _FORMS)):
                raise ValueError(f"{text!r:.80} has more than sums, products, quotients and rests of dimensions")
        arguments = ast.arguments([], [ast.arg(name) for name in names], None, [], [], None, [])
        function = ast.fix_missing_locations(ast.Expression(ast.Lambda(arguments, tree.body)))
        code = compile(function, "<a plan's sizes>", "eval")
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"{text!r:.80} is no expression, or is nested too deeply") from error
    grows = not any(isinstance(node, _OTHER) for node in nodes)
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
    if max(largest, default=0) > MOST_BYTES:
        raise InvalidPlan(f"a size that varies is more than {MOST_BYTES}")
    found: dict[str, Expression] = {}
    most_of: dict[str, int] = {}
    for text in dict.fromkeys(dynamic["bytes"].values()):
        try:
            found[text] = expression(text, len(sizes))
            most_of[text] = found[text].at(*largest)
        except (ValueError, ZeroDivisionError) as error:
            raise InvalidPlan(f"the bytes {text!r:.80} of a size that varies: {error}") from error
        if not 0 <= most_of[text] <= MOST_BYTES:
            raise InvalidPlan(f"the bytes {text!r:.80} of a size that varies are none at the largest shape")
    unclear = {text: each for text, each in found.items() if not each.grows}
    shapes = list(_shapes(sizes, min(MOST_SHAPES, MOST_LOOKS // max(1, len(unclear))))) if unclear else []
    for text, each in unclear.items():
        try:
            larger = next((shape for shape in shapes if each.at(*shape) > most_of[text]), None)
        except ZeroDivisionError as error:
            raise InvalidPlan(f"the bytes {text!r:.80} of a size that varies: {error}") from error
        if larger is not None:
            at = ", ".join(f"{name} = {size}" for name, size in zip(dynamic["sizes"], larger, strict=True))
            raise InvalidPlan(f"the bytes {text!r:.80} are more at {at} than at the largest")
    for buffer in plan.buffers:
        text = dynamic["bytes"].get(buffer.value)
        if text is not None and buffer.bytes < most_of[text]:
            raise InvalidPlan(
                f"buffer {buffer.id}: has {buffer.bytes} bytes, and {buffer.value!r} takes {most_of[text]} at the "
                "largest shape"
            )


def _shapes(sizes: Sequence[Sequence[int]], most: int) -> Iterator[tuple[int, ...]]:
    """Up to ``most``, the least first."""
    each = max(2, int(most ** (1 / len(sizes)))) if sizes else 2
    axes = [sorted({least + (top - least) * k // (each - 1) for k in range(each)}) for least, top in sizes]
    return itertools.islice(itertools.product(*axes), most)

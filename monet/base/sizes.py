"""Sizes that vary from call to call.

A step is captured at its largest shape, where every size is a number. A ``Size`` is such a number that also knows what
it is at the other shapes: an expression of a few named dimensions (``batch``, ``length``). Sums, products and whole
quotients of sizes are sizes; comparisons see the largest shape alone, so whatever is decided by them must be checked at
another shape, as ``Ranges.other`` is for.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from monet.base.graph import Graph, Operator, Value

if TYPE_CHECKING:
    import sympy

MOST_POINTS = 50_000
"""Shapes that are looked at one by one; of larger ranges, only what is clear without that is known."""


class Size(int):
    """An int at the largest shape; ``expression``: what it is at any."""

    expression: sympy.Expr

    def __new__(cls, number: int, expression: sympy.Expr) -> Size:
        size = super().__new__(cls, number)
        size.expression = expression
        return size

    def __getnewargs__(self) -> tuple[int, sympy.Expr]:  # type: ignore[override]
        return int(self), self.expression

    def __add__(self, other: Any) -> Any:
        return _combined(self, other, int.__add__, lambda a, b: a + b)

    __radd__ = __add__

    def __mul__(self, other: Any) -> Any:
        return _combined(self, other, int.__mul__, lambda a, b: a * b)

    __rmul__ = __mul__

    def __sub__(self, other: Any) -> Any:
        return _combined(self, other, int.__sub__, lambda a, b: a - b)

    def __rsub__(self, other: Any) -> Any:
        return _combined(self, other, int.__rsub__, lambda a, b: b - a)

    def __neg__(self) -> Any:
        return self * -1

    def __floordiv__(self, other: Any) -> Any:
        return _combined(self, other, int.__floordiv__, _quotient)

    def __rfloordiv__(self, other: Any) -> Any:
        return _combined(self, other, int.__rfloordiv__, lambda a, b: _quotient(b, a))

    def __mod__(self, other: Any) -> Any:
        return self - self // other * other if isinstance(other, int) else NotImplemented


class Ratio(float):
    """A float at the largest shape that is calculated from sizes (``1 / x.shape[0]``); ``expression``: what it is at
    any. What is calculated from it is a plain float, which other shapes show to be another."""

    expression: sympy.Expr

    def __new__(cls, number: float, expression: sympy.Expr) -> Ratio:
        ratio = super().__new__(cls, number)
        ratio.expression = expression
        return ratio

    def __getnewargs__(self) -> tuple[float, sympy.Expr]:  # type: ignore[override]
        return float(self), self.expression


Varied = Size | Ratio


def at_largest(number: Varied) -> Any:
    """The plain number."""
    return float(number) if isinstance(number, Ratio) else int(number)


def _quotient(a: Any, b: Any) -> Any:
    from torch.utils._sympy.functions import FloorDiv

    return FloorDiv(a, b)


def _combined(one: Size, other: Any, of_numbers: Any, of_expressions: Callable[[Any, Any], Any]) -> Any:
    number = of_numbers(int(one), other)
    if number is NotImplemented or not isinstance(other, int):
        return number
    return sized(number, of_expressions(one.expression, expression_of(other)))


def expression_of(number: int) -> Any:
    """Of a size, or of a number that does not vary."""
    import sympy

    return number.expression if isinstance(number, Size) else sympy.Integer(int(number))


def sized(number: int, expression: Any) -> int:
    """A size, or the number where nothing in the expression varies."""
    return Size(number, expression) if expression.free_symbols else int(number)


@dataclass(frozen=True, slots=True)
class Dimension:
    """``least`` to ``most``, both included, are its sizes."""

    name: str
    least: int
    most: int


@dataclass(frozen=True)
class Ranges:
    """Which sizes of a step's inputs vary.

    ``inputs``: by position in the flattened call, the dimension's name of each axis, None for one that does not vary.
    ``guards``: conditions on the dimensions, as expressions, under which the capture holds.
    """

    dimensions: tuple[Dimension, ...]
    inputs: Mapping[int, tuple[str | None, ...]]
    guards: tuple[Any, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(dimension.name for dimension in self.dimensions)

    @property
    def largest(self) -> dict[str, int]:
        return {dimension.name: dimension.most for dimension in self.dimensions}

    def contains(self, shape: Mapping[str, int]) -> bool:
        """Whether the capture holds at this shape."""
        within = all(d.least <= shape[d.name] <= d.most for d in self.dimensions)
        return within and self.broken(shape) is None

    def broken(self, shape: Mapping[str, int]) -> Any | None:
        """A guard that does not hold at this shape."""
        held = self._guards_at(*(shape[name] for name in self.names))
        return next((guard for guard, holds in zip(self.guards, held, strict=True) if not holds), None)

    @cached_property
    def _guards_at(self) -> Callable[..., list[Any]]:
        return evaluator(self.names, self.guards)

    def capped(self, name: str, most: int) -> Ranges:
        """Where this dimension is at most that. Of ranges without guards."""
        dimensions = tuple(replace(d, most=most) if d.name == name else d for d in self.dimensions)
        return Ranges(dimensions, self.inputs)

    def without(self, fixed: Collection[str]) -> Ranges | None:
        """Where these dimensions do not vary; None where nothing does then. Of ranges without guards."""
        inputs = {
            position: tuple(None if name in fixed else name for name in axes) for position, axes in self.inputs.items()
        }
        left = tuple(dimension for dimension in self.dimensions if dimension.name not in fixed)
        return Ranges(left, {position: axes for position, axes in inputs.items() if any(axes)}) if left else None

    def shapes(self) -> Iterator[dict[str, int]]:
        """Every shape within the ranges, those at which a guard is broken included."""
        axes = [range(d.least, d.most + 1) for d in self.dimensions]
        return (dict(zip(self.names, point, strict=True)) for point in itertools.product(*axes))

    @property
    def count(self) -> int:
        """Of shapes within the ranges."""
        return math.prod(dimension.most - dimension.least + 1 for dimension in self.dimensions)

    def other(self) -> dict[str, int] | None:
        """A shape at which the capture holds, each of whose sizes is another than the largest; the odder the better: at
        it, sizes that are equal by chance are not. None where there is none."""
        numbers = [[n for n in _oddest(d) if n != d.most] or [d.most] for d in self.dimensions]
        for turn in range(max(map(len, numbers))):
            shape = {
                d.name: of[(turn + k) % len(of)] for k, (d, of) in enumerate(zip(self.dimensions, numbers, strict=True))
            }
            if shape != self.largest and self.contains(shape):
                return shape
        return None


def larger_at(ranges: Ranges, sizes: Sequence[Size]) -> tuple[Size, dict[str, int] | None] | None:
    """A size that is larger at some shape than at the largest one, with that shape; None for the shape where there are
    too many to look at. None where no size is: those are sums of products of dimensions, or no shape has shown it."""
    unclear = {size.expression: size for size in sizes if not _only_grows(size.expression)}
    if not unclear:
        return None
    if ranges.count > MOST_POINTS:
        return next(iter(unclear.values())), None
    evaluate, most = evaluator(ranges.names, list(unclear)), list(unclear.values())
    for shape in filter(ranges.contains, ranges.shapes()):
        for number, size in zip(evaluate(*shape.values()), most, strict=True):
            if number > size:
                return size, shape
    return None


def _only_grows(expression: Any) -> bool:
    """Whether it is a polynomial without negative coefficients: dimensions are positive."""
    polynomial = expression.as_poly(*sorted(expression.free_symbols, key=str))
    return polynomial is not None and all(coefficient >= 0 for coefficient in polynomial.coeffs())


def _oddest(dimension: Dimension) -> list[int]:
    """Sizes of a dimension, those of few divisors first and of these the largest."""
    from sympy import divisor_count

    within = range(max(1, dimension.least, dimension.most - 200), dimension.most + 1)
    return sorted(within, key=lambda n: (int(divisor_count(n)) if n > 1 else 9, -n))


def evaluator(names: Sequence[str], expressions: Sequence[Any]) -> Callable[..., list[Any]]:
    """A function of the dimensions, in the order of ``names``, that gives what each expression is there."""
    import torch

    terms = ", ".join(texts_of(names, expressions))
    arguments = ", ".join(f"d{k}" for k in range(len(names)))
    function: Callable[..., list[Any]] = eval(f"lambda {arguments}: [{terms}]", {"math": math, "torch": torch})
    return function


def texts_of(names: Sequence[str], expressions: Collection[Any]) -> list[str]:
    """Expressions as Python's, of ``d0``, ``d1``, … for the dimensions: their own names may come from a file, and are
    no code."""
    import sympy
    from torch.utils._sympy.printers import PythonPrinter

    plain = {sympy.Symbol(name, integer=True, positive=True): sympy.Symbol(f"d{k}") for k, name in enumerate(names)}
    printer = PythonPrinter()
    return [printer.doprint(expression.xreplace(plain)) for expression in expressions]


def numbering(names: Sequence[str], expressions: Collection[Any]) -> Callable[..., dict[Any, Any]]:
    """As ``evaluator``; the numbers by their expressions."""
    evaluate = evaluator(names, tuple(expressions))

    def number_of(*shape: int) -> dict[Any, Any]:
        numbers = (n if isinstance(n, float) else int(n) for n in evaluate(*shape))
        return dict(zip(expressions, numbers, strict=True))

    return number_of


def sizes_in(tree: Any) -> Iterator[Varied]:
    """The sizes in a tree of arguments, and what is calculated from them."""
    if isinstance(tree, Size | Ratio):
        yield tree
    elif isinstance(tree, tuple | list):
        for item in tree:
            yield from sizes_in(item)


def resized(tree: Any, number_of: Callable[[Any], Any]) -> Any:
    """The tree of arguments with other numbers in place of its sizes."""
    if isinstance(tree, Size | Ratio):
        return number_of(tree)
    if isinstance(tree, tuple | list):
        return type(tree)(resized(item, number_of) for item in tree)
    return tree


def value_at(value: Value, number_of: Callable[[Any], Any]) -> Value:
    """The value at another shape."""
    return replace(
        value,
        shape=resized(value.shape, number_of),
        stride=resized(value.stride, number_of),
        offset=resized(value.offset, number_of),
        storage_bytes=resized(value.storage_bytes, number_of),
    )


def numbers_at(ranges: Ranges, shape: Mapping[str, int]) -> Callable[[Any], Any]:
    """What a size is at ``shape``."""
    known: dict[Any, Any] = {}

    def number_of(size: Varied) -> Any:
        if size.expression not in known:
            known.update(numbering(ranges.names, [size.expression])(*(shape[name] for name in ranges.names)))
        return known[size.expression]

    return number_of


def graph_at(graph: Graph, number_of: Callable[[Any], Any]) -> Graph:
    """The graph at another shape, where its sizes are numbers that do not vary."""

    def at(op: Operator) -> Operator:
        kwargs = tuple((key, resized(value, number_of)) for key, value in op.kwargs)
        return replace(op, args=resized(op.args, number_of), kwargs=kwargs)

    return replace(
        graph,
        values={name: value_at(value, number_of) for name, value in graph.values.items()},
        forward=tuple(map(at, graph.forward)),
        backward=tuple(map(at, graph.backward)),
    )

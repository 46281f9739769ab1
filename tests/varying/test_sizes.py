"""Sizes that vary: their arithmetic, and what is known of them at other shapes."""

from __future__ import annotations

import copy
import pickle

import pytest
import sympy
from hypothesis import given
from hypothesis import strategies as st

from monet.base.sizes import Dimension, Ranges, Size, larger_at, numbers_at, resized, sized

BATCH, LENGTH = (sympy.Symbol(name, integer=True, positive=True) for name in ("batch", "length"))
RANGES = Ranges((Dimension("batch", 1, 8), Dimension("length", 1, 64)), {0: ("batch", "length")})


def size(expression: sympy.Expr) -> Size:
    number = sized(int(expression.subs({BATCH: 8, LENGTH: 64})), expression)
    assert isinstance(number, Size)
    return number


@given(st.integers(1, 8), st.integers(1, 64), st.integers(1, 9))
def test_arithmetic_is_that_of_the_numbers_at_every_shape(batch: int, length: int, other: int) -> None:
    b, n = size(BATCH), size(LENGTH)
    at = numbers_at(RANGES, {"batch": batch, "length": length})
    tree = [b + other, other + b, b * n, n - b, other - n, -n, n // other, (b * n) // 3, n % other, (n + 7) // 8 * 8]
    assert resized(tree, at) == [
        batch + other, other + batch, batch * length, length - batch, other - length, -length, length // other,
        batch * length // 3, length % other, (length + 7) // 8 * 8,
    ]  # fmt: skip


def test_a_size_is_a_number_to_all_others() -> None:
    n = size(LENGTH)
    assert n == 64 and isinstance(n, int) and f"{n} {n!r}" == "64 64" and hash(n) == hash(64)
    assert n - n == 0 and not isinstance(n - n, Size)
    for copied in (copy.deepcopy(n), pickle.loads(pickle.dumps(n))):
        assert copied == 64 and copied.expression == LENGTH
    assert n / 2 == 32.0 and not isinstance(n / 2, Size)


def test_the_other_shape_has_other_sizes_and_no_guard_is_broken_there() -> None:
    assert RANGES.other() == {"batch": 7, "length": 59}
    even = Ranges(RANGES.dimensions, RANGES.inputs, (sympy.Eq(sympy.Mod(LENGTH, 8), 0),))
    shape = even.other()
    assert shape is not None and shape["length"] % 8 == 0 and shape["length"] < 64 and shape["batch"] < 8
    fixed = Ranges(RANGES.dimensions, RANGES.inputs, (sympy.Eq(LENGTH, 64), sympy.Eq(BATCH, 8)))
    assert fixed.other() is None
    assert even.broken({"batch": 8, "length": 63}) == even.guards[0] and even.contains({"batch": 1, "length": 8})
    assert not even.contains({"batch": 9, "length": 8})


def test_what_is_larger_at_a_smaller_shape_is_found() -> None:
    grows = [size(BATCH * LENGTH * 4 + 3), size((LENGTH + 7) // 8)]
    assert larger_at(RANGES, grows) is None
    shrinks = size(100 - LENGTH)
    found = larger_at(RANGES, [*grows, shrinks])
    assert found is not None and found[0] is shrinks and found[1] == {"batch": 1, "length": 1}
    wide = Ranges((Dimension("batch", 1, 1000), Dimension("length", 1, 1000)), {})
    assert larger_at(wide, [shrinks]) == (shrinks, None)


@pytest.mark.parametrize("name", ["x); import os; (y", "lambda", "max"])
def test_names_are_no_code(name: str) -> None:
    ranges = Ranges((Dimension(name, 1, 4),), {})
    number = Size(4, sympy.Symbol(name, integer=True, positive=True))
    assert numbers_at(ranges, {name: 3})(number) == 3

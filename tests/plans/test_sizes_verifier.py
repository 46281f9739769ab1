"""Bytes that vary: expressions of a plan's file are read as what they say, and none may be more than at the largest."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from random_plans import random_plan

from monet.errors import InvalidPlan
from monet.plans.plan import Plan
from monet.plans.sizes import check_sizes, expression
from monet.plans.verifier import verify


def texts() -> st.SearchStrategy[str]:
    """Of two dimensions."""
    leaves = st.one_of(st.integers(0, 9).map(str), st.sampled_from(["d0", "d1"]))
    return st.recursive(
        leaves,
        lambda inner: st.tuples(inner, st.sampled_from(["+", "-", "*", "//", "%"]), inner).map(
            lambda parts: "({}{}{})".format(*parts)
        ),
        max_leaves=8,
    )


def with_bytes(text: str, most: tuple[int, int], bytes: int) -> Plan:
    """A plan whose first buffer's value takes ``text`` bytes at shapes up to ``most``."""
    plan = random_plan(1, steps=4)
    first = replace(plan.buffers[0], bytes=bytes)
    sizes = {"batch": [1, most[0]], "length": [1, most[1]]}
    dynamic = {"sizes": sizes, "axes": {}, "bytes": {first.value: text}}
    return replace(plan, buffers=(first, *plan.buffers[1:]), model={**plan.model, "dynamic": dynamic})


@given(texts(), st.integers(1, 9), st.integers(1, 9))
@settings(max_examples=300, deadline=None)
def test_it_is_refused_where_any_shape_takes_more(text: str, batch: int, length: int) -> None:
    try:
        at = {(a, b): eval(text, {"d0": a, "d1": b}) for a in range(1, batch + 1) for b in range(1, length + 1)}
    except ZeroDivisionError:
        return
    most = at[batch, length]
    assume(most >= 1)
    found = expression(text, 2)
    assert all(found.at(*shape) == number for shape, number in at.items())
    if found.grows:
        assert max(at.values()) == most
    if max(at.values()) > most:
        with pytest.raises(InvalidPlan, match=r"are more at batch = .*, length = .* than at the largest"):
            check_sizes(with_bytes(text, (batch, length), most))
        return
    check_sizes(with_bytes(text, (batch, length), most))
    if most > 1:
        with pytest.raises(InvalidPlan, match=rf"has {most - 1} bytes, and .* takes {most} at the largest"):
            check_sizes(with_bytes(text, (batch, length), most - 1))


def test_the_verifier_looks_at_them() -> None:
    plan = random_plan(1, steps=4)
    first = plan.buffers[0]

    def of(text: str) -> Plan:
        dynamic = {"sizes": {"batch": [1, 2]}, "axes": {}, "bytes": {first.value: text}}
        return replace(plan, model={**plan.model, "dynamic": dynamic})

    verify(of(f"{first.bytes - 2} + d0"))
    with pytest.raises(InvalidPlan, match="at the largest shape"):
        verify(of(f"{first.bytes - 1} + d0"))


def test_what_takes_no_bytes_may_be_there() -> None:
    check_sizes(with_bytes("0", (4, 4), 100))
    with pytest.raises(InvalidPlan, match="are none at the largest shape"):
        check_sizes(with_bytes("d0 - 5", (4, 4), 100))


def test_a_large_range_is_looked_at_from_end_to_end() -> None:
    check_sizes(with_bytes("(d0 * d1 + 63) // 64 * 64", (100_000, 100_000), 10_000_000_000 // 64 * 64))
    with pytest.raises(InvalidPlan, match="are more at batch = 1, length = 50794 than"):
        check_sizes(with_bytes("(200000 - d0) * d1", (100_000, 100_000), 10_000_000_000))


@pytest.mark.parametrize(
    "text",
    ["", "d2", "x", "d0 ** d1", "d0 / 2", "d0.real", "f(d0)", "-d0", "1.5 * d0", "d0 if d1 else 1", "True", "'a'",
     "d0;d1", "[d0]", "(lambda: d0)()", "d0 // 0", "__import__('os')", "(" * 500 + "d0" + ")" * 500,
     "+".join(["d0"] * 100_000)],
)  # fmt: skip
def test_what_is_no_such_expression_is_refused(text: str) -> None:
    with pytest.raises(InvalidPlan, match="of a size that varies"):
        check_sizes(with_bytes(text, (4, 4), 100))


def test_a_file_cannot_make_the_verifier_slow() -> None:
    """Many dimensions, many expressions, large numbers."""
    plan = with_bytes("d0 - d0 + 1", (4, 4), 100)
    sizes = {f"x{k}": [1, 2] for k in range(60)}
    check_sizes(replace(plan, model={"dynamic": {**plan.model["dynamic"], "sizes": sizes}}))
    many = {f"v{k}": f"d0 - d1 + {100 + k}" for k in range(5000)}
    dynamic = {**plan.model["dynamic"], "sizes": {"batch": [1, 100_000], "length": [1, 100_000]}, "bytes": many}
    with pytest.raises(InvalidPlan, match="are more at"):
        check_sizes(replace(plan, model={"dynamic": dynamic}))
    for text in ("d0*" + "9" * 1500, "*".join(["d0"] * 600), "-".join(["d0"] * 600)):
        with pytest.raises(InvalidPlan, match="of a size that varies"):
            check_sizes(with_bytes(text, (10**9, 10**9), 100))
    with pytest.raises(InvalidPlan, match="a size that varies is more than"):
        check_sizes(with_bytes("d0", (10**5000, 1), 100))

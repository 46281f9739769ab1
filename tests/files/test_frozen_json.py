"""Frozen dataclasses as JSON: read exactly as they were written, and nothing else is read."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monet.base.files.frozen_json import Unreadable, decode, description, encode


@dataclass(frozen=True, slots=True)
class Leaf:
    count: int
    share: float
    name: str
    flag: bool
    last: int | None = None


@dataclass(frozen=True)
class Tree:
    leaves: tuple[Leaf, ...]
    pair: tuple[int, str]
    best: Leaf | None
    places: Mapping[str, tuple[int | None, ...]]
    below: Mapping[str, Tree] = field(default_factory=dict)


LEAF = Leaf(3, 0.1, "x", True)
TREE = Tree((LEAF, Leaf(-1, 1e300, "", False, 0)), (1, "é\n\x00"), None, {"a": (1, None), "": ()}, {})

_leaves = st.builds(
    Leaf,
    st.integers(),
    st.one_of(st.floats(allow_nan=False), st.integers()),
    st.text(),
    st.booleans(),
    st.none() | st.integers(),
)
_places = st.dictionaries(st.text(), st.lists(st.none() | st.integers()).map(tuple))
_tops = st.builds(
    Tree, st.lists(_leaves).map(tuple), st.tuples(st.integers(), st.text()), st.none() | _leaves, _places, st.just({})
)
trees = st.recursive(
    _tops,
    lambda smaller: st.builds(
        Tree, st.just(()), st.just((0, "")), st.none(), _places, st.dictionaries(st.text(), smaller)
    ),
    max_leaves=5,
)


def _typed(value: object) -> str:
    """Equal only where types are, too: 1 is not 1.0, nor True."""
    return repr(value)


@given(trees)
def test_what_is_written_is_read_exactly(tree: Tree) -> None:
    text = encode(tree, Tree)
    found = decode(text, Tree)
    assert found == tree and _typed(found) == _typed(tree)
    assert encode(found, Tree) == text


@pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan, -0.0, 5e-324, 0.1 + 0.2, 2**70, 0])
def test_every_float_is_read_exactly(number: float) -> None:
    found = decode(encode(Leaf(0, number, "", False), Leaf), Leaf).share
    assert _typed(found) == _typed(number)


@given(st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["leaves", "pair", "count", "share"]), inner),
    max_leaves=20,
))  # fmt: skip
def test_other_json_is_unreadable(data: Any) -> None:
    with pytest.raises(Unreadable):
        decode(json.dumps(data), Tree)


def _changed(**fields: Any) -> str:
    return json.dumps({**json.loads(encode(LEAF, Leaf)), **fields})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (_changed(more=1), "Leaf has an unknown field more"),
        ('{"count": 3, "share": 0.1, "name": "x", "flag": true}', "Leaf has no field last"),
        (_changed(count=3.0), r"\.count is 3\.0, not of type int"),
        (_changed(count=True), r"\.count is True, not of type int"),
        (_changed(count=None), r"\.count is None, not of type int"),
        (_changed(flag=1), r"\.flag is 1, not of type bool"),
        (_changed(share="0.1"), r"\.share is '0\.1', not of type float"),
        (_changed(share=True), r"\.share is True, not of type float"),
        (_changed(name=["x"]), r"\.name is \['x'\], not of type str"),
        (_changed(last="x" * 1000), r"\.last is 'x{39}\.\.\., not of type int$"),
        ("[]", r"it is \[\], not of type Leaf"),
        ("{", "no JSON"),
        ("", "no JSON"),
        ("[" * 100_000, "no JSON"),
        ('{"last": ' * 100_000, "no JSON"),
        ("1" * 10_000, "no JSON"),
        ("gASVCgAAAAAAAACMBnBpY2tsZZQu", "no JSON"),
    ],
)  # fmt: skip
def test_what_is_not_as_declared_is_unreadable(text: str, message: str) -> None:
    with pytest.raises(Unreadable, match=message):
        decode(text, Leaf)


@pytest.mark.parametrize(
    ("part", "wrong", "message"),
    [
        ("pair", [1], r"\.pair is \[1\], not of type tuple\[int, str\]"),
        ("pair", [1, "a", 2], r"\.pair is "),
        ("leaves", {}, r"\.leaves is \{\}, not of type tuple\[Leaf, \.\.\.\]"),
        ("places", [], r"\.places is \[\], not of type Mapping"),
        ("places", {"a": [1, "b"]}, r"\.places\['a'\]\[1\] is 'b', not of type int"),
        ("below", {"a": None}, r"\.below\['a'\] is None, not of type Tree"),
        ("best", {}, r"\.best has no field count"),
    ],
)
def test_the_error_says_where(part: str, wrong: Any, message: str) -> None:
    text = json.dumps({**json.loads(encode(TREE, Tree)), part: wrong})
    with pytest.raises(Unreadable, match=message):
        decode(text, Tree)


@dataclass
class Changeable:
    count: int


@dataclass(frozen=True)
class Declared:
    """With a hint of its own in each test."""

    content: Any


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (Leaf("3", 0.1, "x", True), Leaf),  # type: ignore[arg-type]
        (Leaf(True, 0.1, "x", True), Leaf),
        (Leaf(3, 0.1, b"x", True), Leaf),  # type: ignore[arg-type]
        (Changeable(1), Changeable),
        (LEAF, Tree),
        ([1], tuple[int, ...]),
        ((1,), list[int]),
        ({1: 1}, Mapping[str, int]),
        ({1: 1}, Mapping[int, int]),
        (1, int | str),
        (1, object),
        (Declared(1), Declared),
    ],
)
def test_what_has_no_json_is_not_written(value: Any, kind: Any) -> None:
    with pytest.raises(TypeError):
        encode(value, kind)


def test_a_description_has_all_fields_and_no_place() -> None:
    assert description(tuple[Tree, int]) == (
        "tuple[Tree, int]; Tree(leaves: tuple[Leaf, ...], pair: tuple[int, str], best: Leaf | None, "
        "places: Mapping[str, tuple[int | None, ...]], below: Mapping[str, Tree]); "
        "Leaf(count: int, share: float, name: str, flag: bool, last: int | None)"
    )
